"""Variables of Slurm, translated to those of torchrun; the address through which other machines reach this one."""

import json
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from required import skip

from data_pipeline.common.errors import InputError
from models.parallel import interface
from models.parallel.interface import interface_towards, own_address
from models.parallel.mesh import join_mesh
from models.parallel.slurm import first_host, refuse_without_srun, tasks_by_node, variables_from_slurm

# As `srun --ntasks 4 --nodes 2` of Slurm 22.05 set them, on a machine with two nodes.
TASK = {
    "SLURM_JOB_ID": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "3",
    "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "rack-[01-02]", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "3,1",
}  # fmt: skip


def test_a_task_is_a_rank_with_the_users_master_address_if_there_is_one():
    assert variables_from_slurm(TASK) == {
        "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "rack-01",
        "MASTER_PORT": "15016",
    }  # fmt: skip
    other = TASK | {"SLURM_LOCALID": "2", "SLURM_NODEID": "0", "SLURM_PROCID": "2"}
    assert variables_from_slurm(other)["LOCAL_WORLD_SIZE"] == "3"
    found = variables_from_slurm(TASK | {"MASTER_ADDR": "rack-02.cluster", "MASTER_PORT": "29500"})
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("rack-02.cluster", "29500")


def batch_script():
    """A job of four tasks, outside of a step."""
    return {name: value for name, value in TASK.items() if not name.startswith("SLURM_STEP")} | {"SLURM_PROCID": "0"}


def test_processes_that_are_no_rank_of_slurm_get_no_variables():
    for alone in ({}, batch_script(), TASK | {"SLURM_STEP_NUM_TASKS": "1"}, TASK | {"WORLD_SIZE": "8"}):
        assert variables_from_slurm(alone) == {}


def test_a_batch_script_on_several_nodes_needs_srun(monkeypatch):
    for name, value in (batch_script() | {"SLURM_JOB_NUM_NODES": "2"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=r"this job has 2 nodes, but without srun .* write `srun deepweather \.\.\.`"):
        join_mesh([2, 2]).__enter__()
    with join_mesh([1, 1]) as mesh:
        assert mesh.ranks == 1
    for alone in ({}, batch_script() | {"SLURM_JOB_NUM_NODES": "1"}, TASK | {"SLURM_JOB_NUM_NODES": "2"}):
        refuse_without_srun(alone)  # no Slurm, one node, a step


@given(st.integers(0, 10**7), st.integers(0, 2000))
def test_ports_are_unprivileged_and_differ_between_steps(job, step):
    first, second = (
        int(variables_from_slurm(TASK | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(number)})["MASTER_PORT"])
        for number in (step, step + 1)
    )
    assert 15_000 <= first < 25_000
    assert (second - first) % 10_000 == 1


def test_the_first_host_equals_that_of_scontrol():
    """Node lists of Slurm 22.05, and the first line of `scontrol show hostnames`."""
    for nodes, first in (
        ("a100-1,a100-2", "a100-1"), ("r[1-2]n[0-3]", "r1n0"), ("gpu[003,005-007],x9", "gpu003"), ("node", "node"),
        ("a,b[1-3]", "a"), ("cn[10-12,1]", "cn10"), ("host.domain.org,host2", "host.domain.org"),
    ):  # fmt: skip
        assert first_host(nodes) == first


@given(st.lists(st.integers(1, 16), min_size=1, max_size=12))
def test_tasks_per_node_are_read_from_slurms_notation(tasks):
    words, rest = [], list(tasks)
    while rest:
        times = next((k for k, count in enumerate(rest) if count != rest[0]), len(rest))
        words.append(f"{rest[0]}(x{times})" if times > 1 else f"{rest[0]}")
        rest = rest[times:]
    assert tasks_by_node(",".join(words)) == tasks


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
