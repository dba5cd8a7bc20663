"""Workers that score: threads of this process, or those of a cluster that fits the mesh and the device."""

import pytest
import torch

from data_pipeline.cluster import LocalProcesses, Threads
from data_pipeline.common.errors import InputError
from data_pipeline.common.threads import BUDGET
from evaluation.scoring_workers import check_workers, scoring_workers
from models.parallel.mesh import Mesh

CPU = torch.device("cpu")


def test_a_cluster_is_refused_beside_ranks_or_an_accelerator():
    check_workers(LocalProcesses(), Mesh.single(), CPU)
    check_workers(Threads(), Mesh(data=2), torch.device("cuda"))
    with pytest.raises(InputError, match=r"mesh has 2 ranks; leave out one of them"):
        check_workers(LocalProcesses(), Mesh(data=2), CPU)
    with pytest.raises(InputError, match=r"device is cuda; set device=cpu"):
        check_workers(LocalProcesses(), Mesh.single(), torch.device("cuda"))


def test_threads_limit_those_of_pytorch_and_of_the_kernels(monkeypatch):
    limits = []
    monkeypatch.setattr(torch, "set_num_threads", limits.append)
    monkeypatch.setattr(BUDGET, "limit", limits.append)
    with scoring_workers(Threads(3)) as workers:
        assert workers is None
    with scoring_workers(Threads()):
        assert limits == [3, 3]
