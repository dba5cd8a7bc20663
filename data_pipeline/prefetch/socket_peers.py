"""Peers: fetch samples from the caches of other ranks, over plain TCP.

A request to a peer that is dead, slow or lacks the sample takes a bounded time; the caller then reads the archive.
Messages hold only numbers and a checksum. Every request and every response proves that its sender knows the secret of
the run. The secret itself is never sent, and a program without it gets no response.
"""

from __future__ import annotations

import hmac
import os
import secrets
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
"""Function that returns the encoded bytes of a sample from this rank's cache, or None."""
Address = tuple[str, int]

_REQUEST = struct.Struct("<16sQ32s")
"""Random bytes, number of the sample, and an HMAC of both."""
_RESPONSE = struct.Struct("<Q32s")
"""Number of bytes that follow (0 if the sample is not cached), and an HMAC of it and the request's random bytes."""
_MAX_SAMPLE_BYTES = 2**40
"""Most bytes that a valid response announces."""
_SECRET_BYTES = 32


def _proof(secret: bytes, what: bytes, nonce: bytes, number: int) -> bytes:
    return hmac.digest(secret, what + nonce + number.to_bytes(8, "little"), "sha256")


class Peers(Protocol):
    """Protocol of the other ranks, from which `Tiers` fetches samples."""

    def serve(self, lookup: Lookup) -> None:
        """Start to serve samples to other ranks; `lookup` returns a sample."""

    def fetch(self, rank: int, index: int) -> bytearray | None:
        """Return the encoded bytes of a sample from the cache of `rank`, or None; within a bounded time."""

    def close(self) -> None:
        """Stop responding."""


class SocketPeers:
    """Exchanges samples over TCP, with one server thread and one connection per request; samples take megabytes.

    All ranks of a run have the same `secret`. The server listens only at the address `bind`. A request takes at most
    `timeout` seconds. After a failed request, the rank gets no request for `pause` seconds.
    """

    def __init__(
        self, rank: int, secret: bytes, bind: Address = ("127.0.0.1", 0), *, timeout: float = 10.0, pause: float = 30.0
    ) -> None:
        self.rank, self._timeout, self._pause = rank, timeout, pause
        self._secret = secret
        self._addresses: list[Address] = []
        self._paused_until: dict[int, float] = {}
        self._server = _Server(bind, _Handler)
        self._server.secret, self._server.timeout_s = secret, timeout
        # The server starts now, so that an early request is answered "not cached" instead of failing to connect.
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="peers", daemon=True).start()

    @property
    def address(self) -> Address:
        """The address and port at which this rank listens."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    @classmethod
    def from_store(cls, rank: int, ranks: int, store: Store, key: str, host: str, **seconds: float) -> SocketPeers:
        """Listen at any free port of the interface with the address `host`, to which the other ranks connect.

        The ranks exchange their addresses, and the secret that the first rank makes, through a store of
        `torch.distributed`. Ranks with the same `key` have the same samples. `seconds` are `timeout` and `pause`.
        """
        place = f"prefetch/{key}"
        if rank == 0:
            store.set(f"{place}/secret", secrets.token_hex(_SECRET_BYTES))
        peers = cls(rank, bytes.fromhex(store.get(f"{place}/secret").decode()), (host, 0), **seconds)
        store.set(f"{place}/{rank}", "{} {}".format(*peers.address))
        for other in range(ranks):
            name, port = store.get(f"{place}/{other}").decode().split()
            peers._addresses.append((name, int(port)))
        return peers

    def serve(self, lookup: Lookup) -> None:
        """Start to serve samples to other ranks; `lookup` returns a sample."""
        self._server.lookup = lookup

    def fetch(self, rank: int, index: int) -> bytearray | None:
        """Return the encoded bytes of a sample from the cache of `rank`, or None; within `timeout` seconds."""
        if self._paused_until.get(rank, 0) > time.monotonic():
            return None
        deadline = time.monotonic() + self._timeout
        try:
            with socket.create_connection(self._addresses[rank], self._timeout) as connection:
                nonce = os.urandom(16)
                connection.sendall(_REQUEST.pack(nonce, index, _proof(self._secret, b"request", nonce, index)))
                size, proof = _RESPONSE.unpack(_receive(connection, _RESPONSE.size, deadline))
                if not hmac.compare_digest(proof, _proof(self._secret, b"response", nonce, size)):
                    raise ConnectionError("the response comes from another program")
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
    secret: bytes
    timeout_s: float
    lookup: Lookup | None = None

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a failed connection, because the rank at the other end then reads the archive."""


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Respond to one request."""
        self.request.settimeout(self.server.timeout_s)
        request = _receive(self.request, _REQUEST.size, time.monotonic() + self.server.timeout_s)
        nonce, index, proof = _REQUEST.unpack(request)
        secret = self.server.secret
        if not hmac.compare_digest(proof, _proof(secret, b"request", nonce, index)):
            return
        pieces = self.server.lookup(index) if self.server.lookup is not None else None
        size = sum(map(len, pieces or ()))
        with suppress(OSError):
            self.request.sendall(_RESPONSE.pack(size, _proof(secret, b"response", nonce, size)))
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
