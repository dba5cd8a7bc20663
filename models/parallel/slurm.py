"""Slurm: the environment variables of torchrun, from the variables of a task of srun."""

from __future__ import annotations

import re
from collections.abc import Mapping

from data_pipeline.common.errors import InputError


def variables_from_slurm(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torchrun would set, from Slurm's variables; none where this process is the only rank.

    A process is the only rank outside Slurm, in a batch script itself and in a step of one task. The result is also
    empty under a torchrun that srun has started, because torchrun has set them already.
    """
    if "WORLD_SIZE" in given or int(given.get("SLURM_STEP_NUM_TASKS", 1)) == 1:
        return {}
    # Steps of several jobs may share a machine, so each has a port of its own.
    port = 15_000 + (16 * int(given["SLURM_JOB_ID"]) + int(given["SLURM_STEP_ID"])) % 10_000
    return {
        "WORLD_SIZE": given["SLURM_STEP_NUM_TASKS"],
        "RANK": given["SLURM_PROCID"],
        "LOCAL_RANK": given["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(tasks_by_node(given["SLURM_STEP_TASKS_PER_NODE"])[int(given["SLURM_NODEID"])]),
        "MASTER_ADDR": given.get("MASTER_ADDR", first_host(given["SLURM_STEP_NODELIST"])),
        "MASTER_PORT": given.get("MASTER_PORT", str(port)),
    }


def refuse_without_srun(given: Mapping[str, str]) -> None:
    """Raise InputError in a job of several nodes without srun: all ranks would start on the first node."""
    nodes = int(given.get("SLURM_JOB_NUM_NODES", 1))
    if nodes > 1 and "SLURM_STEP_ID" not in given:
        raise InputError(
            f"this job has {nodes} nodes, but without srun all ranks of the mesh would start on one of them; "
            "write `srun deepweather ...`, which makes every task a rank"
        )


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list.

    >>> first_host("rack[01-04,07],login"), first_host("r[1-2]n[0-3]"), first_host("a100-1,a100-2")
    ('rack01', 'r1n0', 'a100-1')
    """
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)


def tasks_by_node(tasks: str) -> list[int]:
    """Return the number of tasks on each node, from Slurm's notation.

    >>> tasks_by_node("4(x2),3")
    [4, 4, 3]
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks)
    return [int(count) for count, times in found for _ in range(int(times or 1))]
