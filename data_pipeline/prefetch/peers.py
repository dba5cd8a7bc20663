"""Peers: samples from the caches of other ranks, over plain TCP.

A peer that is dead, slow or without the sample costs a bounded time: the caller then reads the archive. Messages hold
only numbers and a checksum; ranks of other runs get no response.
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

Lookup = Callable[[int], Sequence[memoryview] | None]
"""Returns the encoded bytes of a sample from this rank's cache, or None."""
Address = tuple[str, int]

_REQUEST = struct.Struct("<32sQ")
"""Key of the run, number of the sample."""
_RESPONSE = struct.Struct("<Q")
"""Number of bytes that follow; 0 if the sample is not cached."""
_MAX_SAMPLE_BYTES = 2**40
"""A response that announces more comes from another program."""


class Peers(Protocol):
    """The other ranks as `Tiers` uses them."""

    def serve(self, lookup: Lookup) -> None:
        """Start to respond to other ranks with the samples of `lookup`."""

    def fetch(self, rank: int, index: int) -> bytearray | None:
        """Return the encoded bytes of a sample from the cache of `rank`, or None; within a bounded time."""

    def close(self) -> None:
        """Stop responding."""


class SocketPeers:
    """Exchanges samples over TCP: one server thread and one connection per request, cheap beside megabytes of sample.

    `key` identifies the run; a request takes at most `timeout` seconds. After a failure a rank is not asked for `pause`
    seconds.
    """

    def __init__(
        self, rank: int, key: str, bind: Address = ("", 0), *, timeout: float = 10.0, pause: float = 30.0
    ) -> None:
        self.rank, self._timeout, self._pause = rank, timeout, pause
        self._key = hashlib.sha256(key.encode()).digest()
        self._addresses: list[Address] = []
        self._paused_until: dict[int, float] = {}
        self._server = _Server(bind, _Handler)
        self._server.key, self._server.timeout_s = self._key, timeout
        # The server responds from now on, so that an early request gets "not cached" and not a failed connection.
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="peers", daemon=True).start()

    @property
    def port(self) -> int:
        """The port at which this rank listens."""
        return int(self._server.server_address[1])

    @classmethod
    def from_addresses(
        cls, rank: int, addresses: Sequence[Address], key: str, *, timeout: float = 10.0, pause: float = 30.0
    ) -> SocketPeers:
        """Listen at the port of `addresses[rank]`; the other entries are the addresses of the other ranks."""
        peers = cls(rank, key, ("", addresses[rank][1]), timeout=timeout, pause=pause)
        peers._addresses = list(addresses)
        return peers

    @classmethod
    def from_store(
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
        """Listen at any free port and exchange addresses through a store of `torch.distributed`.

        `host` is the name under which the other ranks reach this machine.
        """
        peers = cls(rank, key, timeout=timeout, pause=pause)
        store.set(f"prefetch/{key}/{rank}", f"{host or socket.gethostname()} {peers.port}")
        for other in range(ranks):
            name, port = store.get(f"prefetch/{key}/{other}").decode().split()
            peers._addresses.append((name, int(port)))
        return peers

    def serve(self, lookup: Lookup) -> None:
        """Start to respond to other ranks with the samples of `lookup`."""
        self._server.lookup = lookup

    def fetch(self, rank: int, index: int) -> bytearray | None:
        """Return the encoded bytes of a sample from the cache of `rank`, or None; within `timeout` seconds."""
        if self._paused_until.get(rank, 0) > time.monotonic():
            return None
        deadline = time.monotonic() + self._timeout
        try:
            with socket.create_connection(self._addresses[rank], self._timeout) as connection:
                connection.sendall(_REQUEST.pack(self._key, index))
                (size,) = _RESPONSE.unpack(_receive(connection, _RESPONSE.size, deadline))
                return _receive(connection, size, deadline) if 0 < size < _MAX_SAMPLE_BYTES else None
        except (OSError, MemoryError):
            self._paused_until[rank] = time.monotonic() + self._pause
            return None

    def close(self) -> None:
        """Stop responding."""
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    key: bytes
    timeout_s: float
    lookup: Lookup | None = None

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a failed connection: only the other side is affected, and it falls back to the archive."""


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Respond to one request."""
        self.request.settimeout(self.server.timeout_s)
        request = _receive(self.request, _REQUEST.size, time.monotonic() + self.server.timeout_s)
        key, index = _REQUEST.unpack(request)
        if not hmac.compare_digest(key, self.server.key):
            return
        pieces = self.server.lookup(index) if self.server.lookup is not None else None
        with suppress(OSError):
            self.request.sendall(_RESPONSE.pack(sum(map(len, pieces or ()))))
            for piece in pieces or ():
                self.request.sendall(piece)


def _receive(connection: socket.socket, size: int, deadline: float) -> bytearray:
    """Read exactly `size` bytes before `deadline`."""
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError("the peer did not respond in time")
        connection.settimeout(left)
        if not (count := connection.recv_into(view[done:])):
            raise ConnectionError("the peer closed the connection")
        done += count
    return data
