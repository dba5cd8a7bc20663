"""Ranks fetch samples from each other: real processes, real sockets, killed and stopped peers."""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from torch.distributed import HashStore

from data_pipeline.prefetch.disk import decode_sample, encode_sample
from data_pipeline.prefetch.peers import SocketPeers
from data_pipeline.prefetch.tiers import ReadRates

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[3]


def start(rank, ranks, folder, *stay):
    command = [sys.executable, HERE / "rank.py", str(rank), str(ranks), folder, *stay]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_ranks_fetch_from_each_other_the_samples_that_they_do_not_cache(tmp_path):
    ranks = 2
    processes = [start(rank, ranks, tmp_path) for rank in range(ranks)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    for rank in range(ranks):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["filled"] <= 60  # half of the samples are cached here, some of them fetched from the other rank
        assert found["right"] == 30  # correct batches in three epochs
        assert found["same"]
        # Of 180 reads in three epochs, nearly all find the sample in a cache.
        assert found["read"] <= 20


@pytest.fixture
def neighbour(tmp_path):
    """A rank in another process with a full cache, and this process as the other rank."""
    process = start(1, 2, tmp_path, "stay")
    data, _, tiers, _ = runpy.run_path(str(HERE / "rank.py"))["open_tiers"](0, 2, tmp_path, timeout=4)
    while not (tmp_path / "1.ready").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    while tiers.fill_one():
        pass
    # The archive is measured as slow, so the neighbour is preferred even on a busy machine.
    tiers._rates = ReadRates()
    tiers._rates.measure("archive", 1, lambda: time.sleep(0.01) or True)
    data.seconds = 0
    data.reads.clear()
    yield process, data, tiers
    tiers.close()
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()
    process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_that_dies_or_hangs_is_replaced_by_the_archive(neighbour, numbered, same, number):
    process, data, tiers = neighbour
    remote = [k for k in range(120) if tiers._own.tier[k] < 0 and tiers._placements[1].tier[k] == 0]
    assert len(remote) > 20
    half = len(remote) // 2
    assert all(same(tiers[k], numbered(120)[k]) for k in remote[:half])
    assert not data.reads
    process.send_signal(number)
    if number == signal.SIGKILL:
        process.wait()
    assert all(same(tiers[k], numbered(120)[k]) for k in remote[half:])
    assert data.reads == dict.fromkeys(remote[half:], 1)


@pytest.fixture
def pair(numbered):
    """Two ranks of one process; the second has sample 3."""
    pieces = encode_sample(numbered(5)[3])
    store = HashStore()
    second = SocketPeers(1, "run", timeout=2)
    store.set("prefetch/run/1", f"localhost {second.port}")
    first = SocketPeers.from_store(0, 2, store, "run", "localhost", timeout=2)
    second.serve(lambda index: pieces if index == 3 else None)
    yield first, second
    second.close()
    first.close()


def test_a_cached_sample_is_sent_and_an_absent_one_is_not(pair, numbered, same):
    first, _ = pair
    data = numbered(5)
    for _ in range(3):
        assert same(decode_sample(first.fetch(1, 3), data.static), data[3])
        assert first.fetch(1, 4) is None


def test_a_rank_of_another_run_gets_no_response(pair):
    _, second = pair
    stranger = SocketPeers.from_addresses(0, [("localhost", 0), ("localhost", second.port)], "another run", timeout=2)
    assert stranger.fetch(1, 3) is None
    stranger.close()


def test_invalid_requests_do_not_stop_the_server(pair):
    first, second = pair
    for noise in (b"GET / HTTP/1.1\r\n\r\n" * 9, b"", b"x"):
        with socket.create_connection(("localhost", second.port)) as connection:
            connection.sendall(noise)
    assert first.fetch(1, 3) is not None


def test_a_failed_rank_is_not_asked_for_a_while(pair):
    first, second = pair
    second.close()
    assert first.fetch(1, 3) is None
    again = SocketPeers(1, "run", ("", second.port))
    again.serve(lambda index: [memoryview(b"here")])
    assert first.fetch(1, 3) is None
    first._paused_until.clear()
    assert first.fetch(1, 3) == b"here"
    again.close()


def test_addresses_can_be_given(numbered):
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    addresses = [("localhost", 0), ("localhost", port)]
    second = SocketPeers.from_addresses(1, addresses, "run")
    second.serve(lambda index: [memoryview(bytes([index]))])
    first = SocketPeers.from_addresses(0, addresses, "run")
    assert first.fetch(1, 7) == b"\x07"
    first.close()
    second.close()


@pytest.mark.parametrize("size", [2**63, 100])
def test_a_response_with_a_wrong_size_counts_as_absent(size):
    """The announced size is larger than any sample, or larger than the data that follow."""
    with socket.create_server(("localhost", 0)) as server:
        first = SocketPeers.from_addresses(0, [("localhost", 0), server.getsockname()[:2]], "run", timeout=0.5)

        def respond():
            connection, _ = server.accept()
            connection.sendall(size.to_bytes(8, "little") + b"short")
            time.sleep(1)
            connection.close()

        thread = threading.Thread(target=respond)
        thread.start()
        assert first.fetch(1, 3) is None
        thread.join()
        first.close()
