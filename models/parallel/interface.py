"""The network interface through which a rank reaches the other machines of its run."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress

ELSEWHERE = "192.0.2.1"
"""An address for documentation (RFC 5737), which the default route leads to; nothing is sent to it."""
GET_ADDRESS = 0x8915
"""Linux' request SIOCGIFADDR."""


def own_address(towards: str) -> str:
    """Return the IPv4 address of this machine's interface that leads to the host `towards`.

    If `towards` is this machine itself, as for the first rank, its name may stand for a loopback address; then the
    result is the address of the default route, so that others can connect.
    """
    found = _address_towards(towards) or "127.0.0.1"
    return (_address_towards(ELSEWHERE) or found) if found.startswith("127.") else found


def interface_towards(host: str) -> str | None:
    """Return the name of the interface that leads to the machine `host`; None where it is unknown.

    Without this name gloo listens at the address of this machine's host name, which is a loopback address on machines
    whose `/etc/hosts` lists the name, as Debian's installer writes it. Ranks on other machines then cannot connect.
    """
    address = own_address(host)
    return None if address.startswith("127.") else _interface_of(address)


def _address_towards(host: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, 9))  # sends nothing
        return str(probe.getsockname()[0])
    return None


def _interface_of(address: str) -> str | None:
    """Return the interface whose first address is `address`, on Linux."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address, or another operating system
                answer = fcntl.ioctl(probe, GET_ADDRESS, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None
