"""Steps that are replayed train like steps that Python computes, and what would be wrong is not replayed.

No graph of a GPU is recorded here: a double computes a replay from the recorded inputs.
"""

from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from specs import SPECS
from training_parts import NET, module

from data_pipeline.prefetch.budget import Budget
from data_pipeline.sample import Sample
from models.parallel.mesh import Mesh
from training import network_training
from training.network_training import train_network
from training.step import step_graph
from training.step.training_data import open_training_data


class Double(step_graph._Recorded):
    """A recording that computes its step again; with `frozen`, it keeps the first batch."""

    frozen, replays = False, 0

    @classmethod
    def of(cls, compute, parameters, batch, shape):
        made = cls(shape, None, Sample(*(one.clone() for one in batch)), torch.zeros((), dtype=torch.int64), (), [], 0)

        def replay():
            cls.replays += 1
            inputs = Sample(*(one.clone() for one in batch)) if cls.frozen else made.batch
            loss, *others = compute(inputs, made.key)
            made.gradients = step_graph._gradients(loss, parameters)
            made.results = loss.detach(), *(other.detach() for other in others)

        made.graph = SimpleNamespace(replay=replay)
        return made

    def fits(self):
        return True


def trained(toy, folder, recording=None, spec=NET):
    net, train, val = module(toy, Mesh.single(), torch.float32, spec, count=26, epochs=5, cuda_graphs=True)
    with (
        patch.object(step_graph, "_Recorded", recording),
        patch.object(network_training, "is_recordable", lambda module, device: recording is not None),
        open_training_data(train, val, Budget(), net.options, net.mesh) as data,
    ):
        train_network(net, data, folder)
    return {name: value.numpy() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("spec", [NET, SPECS["ens10_unet"]], ids=["dropout", "batch norm"])
def test_replayed_steps_train_the_same_weights(toy, tmp_path, capsys, spec):
    expected = trained(toy, tmp_path / "computed", spec=spec)
    Double.replays = 0
    found = trained(toy, tmp_path / "replayed", Double, spec)
    assert Double.replays > 8
    assert "CUDA graph" not in "".join(capsys.readouterr())
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("wrong", [{"frozen": True}, {"fits": lambda self: False}])
def test_a_step_that_cannot_be_replayed_is_computed_and_said_once(toy, tmp_path, capsys, wrong):
    expected = trained(toy, tmp_path / "computed")
    found = trained(toy, tmp_path / "replayed", type("Wrong", (Double,), wrong))
    assert "".join(capsys.readouterr()).count("the training step is no CUDA graph") == 1
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
