"""The address and the interface through which other machines reach this one."""

import json
import shutil
import subprocess

from required import skip

from models.parallel import interface
from models.parallel.interface import interface_towards, own_address


def test_the_address_towards_this_machine_is_that_of_the_default_route(monkeypatch):
    routes = {"node1": "127.0.1.1", "192.0.2.1": "10.0.0.1", "node2": "10.1.0.1"}
    monkeypatch.setattr(interface, "_address_towards", routes.get)
    assert own_address("node2") == "10.1.0.1"
    assert own_address("node1") == "10.0.0.1"
    assert own_address("unknown") == "10.0.0.1"
    monkeypatch.setattr(interface, "_address_towards", lambda host: None)
    assert own_address("node2") == "127.0.0.1"
    assert interface_towards("node2") is None


def test_an_interface_is_found_by_its_address(monkeypatch):
    """The program `ip` knows the same addresses, by another way than an ioctl."""
    ip = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if ip is None:
        skip("needs `ip` (Debian: iproute2)")
    found = json.loads(subprocess.run([ip, "-json", "-4", "address"], capture_output=True, check=True).stdout)
    assert found
    for device in found:
        assert interface._interface_of(device["addr_info"][0]["local"]) == device["ifname"]
    for device in found:
        monkeypatch.setattr(interface, "_address_towards", lambda host, device=device: device["addr_info"][0]["local"])
        assert interface_towards("node2") == (None if device["ifname"] == "lo" else device["ifname"])
    assert interface._interface_of("192.0.2.1") is None
