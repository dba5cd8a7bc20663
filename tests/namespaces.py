"""Two nodes on one machine: network namespaces that a pair of virtual Ethernet devices joins.

Each node has a loopback device, one Ethernet device and one address, and reaches the other node only through the link.
Processes of both nodes share files and processors. Making namespaces needs root; `fault()` says what is missing.
"""

import functools
import itertools
import os
import shutil
import subprocess
import sys

from forks import Program

_numbers = itertools.count()


class TwoNodes:
    """Two namespaces and their link, until `close`."""

    def __init__(self):
        mark = f"{os.getpid()}-{next(_numbers)}"
        self.names = [f"deepweather-{mark}-{node}" for node in range(2)]
        self.addresses = ["10.213.0.1", "10.213.0.2"]
        self.device = "link0"
        self.programs = []
        first, second = self.names
        _ip(
            [], f"netns add {first}", f"netns add {second}",
            f"link add name {self.device} netns {first} type veth peer name {self.device} netns {second}",
        )  # fmt: skip
        for name, address in zip(self.names, self.addresses, strict=True):
            up = [f"link set {device} up" for device in ("lo", self.device)]
            _ip(["-n", name], f"address add {address}/24 dev {self.device}", *up)

    def start(self, node, arguments, *, environment=None, folder, kind=Program):
        """Start a Python program on a node; `kind` is `subprocess.Popen` for a new process instead of a fork."""
        options = {
            "cwd": folder, "env": os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | (environment or {}),
            "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True,
        }  # fmt: skip
        if kind is Program:
            program = Program(arguments, network=f"/run/netns/{self.names[node]}", **options)
        else:
            program = kind([_tool("ip"), "netns", "exec", self.names[node], *arguments], **options)
        self.programs.append(program)
        return program

    def ranks(self, node, arguments, *, count=1, port=29_500, environment=None, **options):
        """Start `count` ranks of a run on a node; the other node has as many."""
        return [
            self.start(
                node, arguments,
                environment={
                    "RANK": str(node * count + local), "WORLD_SIZE": str(2 * count),
                    "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(count),
                    "MASTER_ADDR": self.addresses[0], "MASTER_PORT": str(port),
                } | (environment or {}),
                **options,
            )
            for local in range(count)
        ]  # fmt: skip

    def cut(self):
        """Cut the link: packets are lost, and no side is told."""
        _ip(["-n", self.names[0]], f"link set {self.device} down")

    def mend(self):
        """Undo `cut`."""
        _ip(["-n", self.names[0]], f"link set {self.device} up")

    def slow_down(self, node, rate):
        """Limit what a node sends, as in `1mbit`."""
        shaper = ["tbf", "rate", rate, "burst", "32kbit", "latency", "400ms"]
        command = [_tool("tc"), "-n", self.names[node], "qdisc", "add", "dev", self.device, "root", *shaper]
        subprocess.run(command, check=True, capture_output=True)

    def close(self):
        """End all programs and remove the namespaces."""
        for program in self.programs:
            program.kill()
            program.wait()
        _ip([], *(f"netns delete {name}" for name in self.names))


@functools.cache
def fault():
    """Return why this machine cannot make two nodes, "" where it can."""
    if _tool("ip") is None:
        return "two nodes need `ip` (Debian: iproute2)"
    try:
        TwoNodes().close()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"two nodes need the permission to make network namespaces: {error}"
    return ""


def _tool(name):
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _ip(options, *lines):
    """Run commands of `ip` in one process."""
    text = "\n".join(lines)
    subprocess.run([_tool("ip"), *options, "-batch", "-"], input=text, check=True, capture_output=True, text=True)
