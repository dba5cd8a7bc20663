"""Peers: samples from the caches of other ranks, over plain TCP.

A peer that is dead, slow or does not have the sample costs a bounded time and nothing else: the caller then reads the
archive. Only numbers travel, checked by their checksum; a rank of another run gets no answer.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from torch.distributed import Store

Lend = Callable[[int], Sequence[memoryview] | None]
"""Gives the bytes of a sample that this rank has, or None."""
Address = tuple[str, int]

QUESTION = struct.Struct("<32sQ")
"""Key of the run, number of the sample."""
ANSWER = struct.Struct("<Q")
"""Bytes that follow; none if the sample is not here."""
MOST = 2**40
"""No sample is larger; a longer answer is not one of ours."""


class Peers(Protocol):
    """What tiers need of the other ranks."""

    def start(self, lend: Lend) -> None:
        """Begin to answer the others from `lend`."""

    def ask(self, rank: int, index: int) -> bytearray | None:
        """Return the bytes of a sample from the cache of `rank`, or None; always within a bounded time."""

    def close(self) -> None:
        """Stop answering."""


class SocketPeers:
    """A server thread per question, one connection per sample: samples are megabytes, a connection is not.

    `key` names the run; `timeout` seconds bound a whole question. A rank that failed is left alone for `pause` seconds.
    """

    def __init__(
        self, rank: int, key: str, bind: Address = ("", 0), *, timeout: float = 10.0, pause: float = 30.0
    ) -> None:
        self.rank, self._timeout, self._pause = rank, timeout, pause
        self._key = hashlib.sha256(key.encode()).digest()
        self._addresses: list[Address] = []
        self._silent: dict[int, float] = {}
        self._server = _Server(bind, _Handler)
        self._server.key, self._server.timeout_s = self._key, timeout
        # From now on, so that one who asks early is told that there is nothing yet, and does not think us dead.
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="peers", daemon=True).start()

    @property
    def port(self) -> int:
        """Where this rank listens."""
        return int(self._server.server_address[1])

    @classmethod
    def at(
        cls, rank: int, addresses: Sequence[Address], key: str, *, timeout: float = 10.0, pause: float = 30.0
    ) -> SocketPeers:
        """Listen at `addresses[rank]`; the others are at theirs."""
        peers = cls(rank, key, ("", addresses[rank][1]), timeout=timeout, pause=pause)
        peers._addresses = list(addresses)
        return peers

    @classmethod
    def meet(
        cls,
        rank: int,
        ranks: int,
        store: Store,
        key: str,
        host: str | None = None,
        *,
        timeout: float = 10.0,
        pause: float = 30.0,
    ) -> SocketPeers:
        """Listen at any port and learn the others' addresses through a store of `torch.distributed`.

        `host` is the name by which the others know this machine.
        """
        peers = cls(rank, key, timeout=timeout, pause=pause)
        store.set(f"prefetch/{key}/{rank}", f"{host or socket.gethostname()} {peers.port}")
        for other in range(ranks):
            name, port = store.get(f"prefetch/{key}/{other}").decode().split()
            peers._addresses.append((name, int(port)))
        return peers

    def start(self, lend: Lend) -> None:
        """Begin to answer the others from `lend`."""
        self._server.lend = lend

    def ask(self, rank: int, index: int) -> bytearray | None:
        """Return the bytes of a sample from the cache of `rank`, or None; always within `timeout` seconds."""
        if self._silent.get(rank, 0) > time.monotonic():
            return None
        deadline = time.monotonic() + self._timeout
        try:
            with socket.create_connection(self._addresses[rank], self._timeout) as connection:
                connection.sendall(QUESTION.pack(self._key, index))
                (size,) = ANSWER.unpack(_receive(connection, ANSWER.size, deadline))
                return _receive(connection, size, deadline) if 0 < size < MOST else None
        except (OSError, MemoryError):
            self._silent[rank] = time.monotonic() + self._pause
            return None

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    key: bytes
    timeout_s: float
    lend: Lend | None = None

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a peer that hangs up, or is none, is its own concern."""


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Answer one question."""
        self.request.settimeout(self.server.timeout_s)
        question = _receive(self.request, QUESTION.size, time.monotonic() + self.server.timeout_s)
        key, index = QUESTION.unpack(question)
        if not hmac.compare_digest(key, self.server.key):
            return
        pieces = self.server.lend(index) if self.server.lend is not None else None
        with suppress(OSError):
            self.request.sendall(ANSWER.pack(sum(map(len, pieces or ()))))
            for piece in pieces or ():
                self.request.sendall(piece)


def _receive(connection: socket.socket, size: int, deadline: float) -> bytearray:
    """Read exactly `size` bytes before `deadline`."""
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError("a peer is too slow")
        connection.settimeout(left)
        if not (count := connection.recv_into(view[done:])):
            raise ConnectionError("a peer hung up")
        done += count
    return data
