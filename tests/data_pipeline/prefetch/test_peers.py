"""Ranks fetch samples from each other: real processes, real sockets, killed and stopped peers."""

import contextlib
import hmac
import json
import runpy
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from forks import Program
from torch.distributed import HashStore

from data_pipeline.prefetch.disk import encode_sample
from data_pipeline.prefetch.socket_peers import SocketPeers
from data_pipeline.prefetch.tiers import ReadRates
from models.parallel.interface import own_address

HERE = Path(__file__).parent


def start(rank, ranks, folder, *stay):
    return Program([HERE / "rank.py", str(rank), str(ranks), folder, *stay], stderr=subprocess.PIPE, text=True)


def test_ranks_fetch_from_each_other_the_samples_that_they_do_not_cache(tmp_path):
    ranks = 2
    processes = [start(rank, ranks, tmp_path) for rank in range(ranks)]
    for process in processes:
        _, errors = process.communicate(timeout=900)
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
    """Two ranks of one process; the second has sample 3 and notes the requests that it answers."""
    first, second = meet()
    pieces = encode_sample(numbered(5)[3])
    second.requests = []

    def lookup(index):
        second.requests.append(index)
        return pieces if index == 3 else None

    second.serve(lookup)
    yield first, second
    second.close()
    first.close()


def meet(store=None):
    """Return two ranks that know each other; the second one waits for the first one's secret."""
    store = store or HashStore()
    host = "127.0.0.1"
    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(SocketPeers.from_store, rank, 2, store, "run", host, timeout=60) for rank in range(2)]
        return [rank.result() for rank in ranks]


def test_a_rank_of_another_run_gets_no_response(pair):
    """The other run has the same data and order, so only the secret differs."""
    _, second = pair
    stranger, other = meet()
    stranger._addresses[1] = second.address
    assert stranger.fetch(1, 3) is None
    assert second.requests == []
    other.close()
    stranger.close()


def test_connections_without_the_secret_get_nothing_and_do_no_harm(pair):
    first, second = pair
    noises = [b"GET / HTTP/1.1\r\n\r\n" * 9, b"", b"x", bytes(16) + (3).to_bytes(8, "little") + bytes(32)]
    idle = socket.create_connection(second.address)
    for noise in noises:
        with socket.create_connection(second.address) as connection:
            connection.sendall(noise)
            # The server closes the connection once it has read one request. Bytes that it left unread reset the
            # connection, and then there is nothing to shut down (ENOTCONN).
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""
    assert second.requests == []
    assert first.fetch(1, 3) is not None
    idle.close()


def test_a_rank_listens_only_at_its_own_interface(pair):
    _, second = pair
    assert second.address[0] == "127.0.0.1"
    for other in ("127.0.0.2", own_address("192.0.2.1")):
        if other != "127.0.0.1":
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((other, second.address[1]), 2)


def test_the_secret_is_random_and_is_never_sent(monkeypatch):
    stores, sent = [HashStore(), HashStore()], []
    for store in stores:
        for rank in meet(store):
            rank.close()
    secret, other = (bytes.fromhex(store.get("prefetch/run/secret").decode()) for store in stores)
    assert secret != other
    assert len(secret) == 32
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = SocketPeers(0, secret, timeout=60)
        first._addresses = [first.address, server.getsockname()]
        thread = threading.Thread(target=lambda: sent.append(respond(server, b"")))
        thread.start()
        assert first.fetch(1, 3) is None
        thread.join()
        first.close()
    assert len(sent[0]) == 56
    assert secret not in sent[0]
    assert secret.hex().encode() not in sent[0]


def test_a_failed_rank_is_not_asked_for_a_while(pair):
    first, second = pair
    second.close()
    assert first.fetch(1, 3) is None
    again = SocketPeers(1, second._secret, second.address)
    again.serve(lambda index: [memoryview(b"here")])
    assert first.fetch(1, 3) is None
    first._paused_until.clear()
    assert first.fetch(1, 3) == b"here"
    again.close()


def respond(server, answer):
    """Accept one request and answer it; return the request."""
    connection, _ = server.accept()
    request = connection.recv(1000)
    connection.sendall(answer(request) if callable(answer) else answer)
    time.sleep(0.6 if answer else 0)
    connection.close()
    return request


def proven(size):
    """Return a function that announces `size` bytes with the right proof, and sends five."""
    return lambda request: (
        size.to_bytes(8, "little")
        + hmac.digest(b"secret", b"response" + request[:16] + size.to_bytes(8, "little"), "sha256")
        + b"short"
    )


@pytest.mark.parametrize(
    "answer",
    [proven(2**63), proven(100), (5).to_bytes(8, "little") + bytes(32) + b"wrong"],
    ids=["larger than any sample", "larger than the data", "without the secret"],
)
def test_a_wrong_response_counts_as_absent(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = SocketPeers(0, b"secret", timeout=0.5)
        first._addresses = [first.address, server.getsockname()]
        thread = threading.Thread(target=respond, args=(server, answer))
        thread.start()
        assert first.fetch(1, 3) is None
        thread.join()
        first.close()
