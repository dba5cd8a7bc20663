"""Models and experiments that have the name of a paper follow the paper."""

from pathlib import Path

import pytest
import torch

from conf import build, plain
from conf.hydra_command import composed
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import build_model
from models.layers.gate import LatentGate
from models.layers.mixture import RIGHT, SpatialMixture
from models.published.poet import EnsembleAttention, PoET
from training.optimization.loss import CRPS, GaussianCRPS

CONF = Path(__file__).parents[2] / "conf"
GRID = Grid.regular(17, 24)
TOY = Task("toy", ["2t", "msl"], ["2t"], [48])


def compose_config(*overrides):
    return composed("train", overrides)


def experiments(words):
    return sorted(path.stem for path in (CONF / "experiment").glob(f"*{words}*.yaml"))


SMOE = ["model=smoe_unet", *(f"experiment={name}" for name in experiments("smoe_unet"))]


@pytest.mark.parametrize("choice", SMOE)
def test_a_mixture_of_experts_chooses_experts_and_trains_its_gate_by_routing(choice):
    """The gate has weights for each cell; `layers/test_mixture.py` tests choice and routing."""
    model = build_model(plain(compose_config(choice).model), TOY, GRID)
    layers = [layer for layer in model.modules() if isinstance(layer, SpatialMixture)]
    assert layers
    for layer in layers:
        assert isinstance(layer.gate, LatentGate)
        assert (layer.routing.classify, layer.routing.damping, layer.scale_by_gate) == (True, 0, False)
    assert RIGHT == 1e-5


@pytest.mark.parametrize(("task", "inputs"), [("t850", 7), ("t2m_poet", 21)])
def test_poet_is_trained_as_published(task, inputs):
    cfg = compose_config("experiment=poet", f"task={task}")
    task = build(cfg.task)
    with torch.device("meta"):
        model = build_model(plain(cfg.model), task, Grid.regular(360, 720))
    assert isinstance(model, PoET)
    assert sum(isinstance(layer, EnsembleAttention) for layer in model.modules()) == 3
    assert len(task.inputs) == inputs
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_923_665 + (inputs - 7) * 8 * 5 * 5
    assert isinstance(build(cfg.loss), GaussianCRPS)
    assert cfg.max_members == 5
    assert list(task.lead_times) == [24, 48]
    assert (cfg.trainer.batch_size, cfg.trainer.learning_rate, cfg.trainer.weight_decay) == (8, 1e-3, 0)
    assert (cfg.trainer.epochs, cfg.trainer.patience) == (500, 25)


OURS = ("ens10_joint_mlp", "ens10_joint_unet")
"""Experiments on ENS-10's data that are not of the paper."""


@pytest.mark.parametrize(
    "experiment", [name for name in experiments("ens10") if "emos" not in name and name not in OURS]
)
def test_networks_of_ens10_are_trained_without_cell_weights(experiment):
    """The paper's loss is the plain mean over the rows and columns of the grid."""
    loss = build(compose_config(f"experiment={experiment}").loss)
    assert loss.cell_weights(torch.tensor(GRID.weights)[:, None].expand(GRID.shape)).eq(1).all()


@pytest.mark.parametrize("experiment", experiments("emos"))
def test_experiments_of_emos_set_no_loss(experiment):
    """Training refuses a loss for a model that is fitted in closed form."""
    assert build(compose_config(f"experiment={experiment}").loss) == CRPS()
