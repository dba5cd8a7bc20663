"""What the report shows: a corrector, cells and lead times of plumes, and the choices of a mixture of experts."""

import numpy as np
import pytest
import torch
from torch import nn

from data_pipeline.grid import Grid
from data_pipeline.task import Task
from evaluation.regions import region_weights
from evaluation.run.shown_cases import MOST_LEADS, chosen_cells, chosen_forecasts, show_experts, show_forecast
from evaluation.run.shown_corrector import choose_shown
from evaluation.scoring.scoring import score_models
from models.corrector import Corrector
from models.distribution import Normal
from models.layers.mixture import SpatialMixture
from models.parallel.domain import Domain
from models.statistical.raw import Raw

GRID = Grid.regular(9, 14)


def normal(batch):
    return Normal(batch.ensemble.mean(1) - 1, torch.ones_like(batch.target))


class TimedForecasts:
    """Forecasts of some starts and lead times; each has its own values."""

    def __init__(self, toy, starts, leads):
        self.task, self.grid = Task("toy", ["2t"], ["2t"], leads), GRID
        self.samples = toy(self.task, GRID, starts * len(leads)).samples
        for k, sample in enumerate(self.samples):
            start, lead = divmod(k, len(leads))
            self.samples[k] = sample._replace(
                init_time=torch.tensor(86400 * start), lead_time=torch.tensor(leads[lead])
            )
        self.members = self.samples[0].ensemble.shape[0]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


@pytest.mark.parametrize("count", [1, 3, 30])
def test_a_plume_has_the_lead_times_of_its_start(toy, count):
    leads = [6 * (k + 1) for k in range(count)]
    forecasts = TimedForecasts(toy, 2, leads)
    models = {"raw": Raw(forecasts.task, GRID), "net": normal}
    board = score_models(models, forecasts, region_weights(GRID))
    row = 2 * count - 1
    shown = show_forecast(board, forecasts, row, 0, models["raw"], normal, Domain.of(GRID))
    assert (shown.init_time, shown.lead_time) == (86400, leads[-1])
    assert len(shown.plumes) == 3
    for plume in shown.plumes:
        assert len(plume.leads) == min(count, MOST_LEADS)
        assert {leads[0], leads[-1]} <= set(plume.leads.tolist()) <= set(leads)
        for k, lead in enumerate(plume.leads):
            sample = forecasts[count + leads.index(lead)]
            members = sample.ensemble[:, 0][:, *plume.cell].numpy()
            np.testing.assert_allclose(plume.members[k], members, rtol=1e-6)
            np.testing.assert_allclose(plume.truth[k], sample.target[0][plume.cell], rtol=1e-6)
            levels = [-1.644854, -0.674490, 0, 0.674490, 1.644854]
            np.testing.assert_allclose(plume.quantiles[k], members.mean() - 1 + np.array(levels), atol=1e-4)


def test_a_single_forecast_is_shown_once(toy):
    forecasts = TimedForecasts(toy, 1, [48])
    board = score_models({"raw": Raw(forecasts.task, GRID), "net": normal}, forecasts, region_weights(GRID))
    assert list(chosen_forecasts(board, 0, "net", 48)) == ["median"]


def test_cells_have_the_largest_the_median_and_the_lowest_gain():
    gain = np.array([[3.0, -5.0, np.nan], [1.0, 0.0, 8.0]])
    assert chosen_cells(gain) == {"largest gain": (1, 2), "median gain": (1, 0), "lowest gain": (0, 1)}
    assert chosen_cells(np.array([[np.nan, 2.0]])) == {"largest gain": (0, 1)}
    assert chosen_cells(np.full((2, 2), np.nan)) == {}


class Mixed(nn.Module):
    """A network of a mixture on half of the grid, and one on the whole grid."""

    def __init__(self):
        super().__init__()
        self.coarse = SpatialMixture(Grid.regular(5, 7), 1, 1, 3)
        self.fine = SpatialMixture(GRID, 1, 2, 4)

    def forward(self, batch):
        x = batch.ensemble.mean(1)
        self.coarse(x[..., :5, :7])
        return self.fine(x)


def test_the_map_of_experts_is_the_first_choice_of_the_gate_of_the_whole_grid(toy):
    forecasts, network = TimedForecasts(toy, 1, [48]), Mixed().eval()
    found = show_experts(network, forecasts, 0, network, Domain.of(GRID), "cpu")
    assert (found.layer, found.count) == ("fine", 4)
    np.testing.assert_array_equal(found.chosen, network.fine.gate.weight.detach().argmax(0))
    assert not any(layer.gate._forward_hooks for layer in (network.coarse, network.fine))
    assert show_experts(nn.Identity(), forecasts, 0, normal, Domain.of(GRID), "cpu") is None


SCORES = {"models": {
    "raw": {"crps": 0.1, "crps_fair": 0.1, "crps_fair_valid": True},
    "a": {"crps": 0.5, "crps_fair": 0.5, "crps_fair_valid": True},
    "b": {"crps": 0.6, "crps_fair": 0.4, "crps_fair_valid": True},
    "c": {"crps": 0.7, "crps_fair": 0.3, "crps_fair_valid": False},
}}  # fmt: skip
TASK = Task("t2m", ["2t"], ["2t"], [48])


def corrector(score, model="models.statistical.emos.EMOS", **provenance):
    dates = {"train_dates": [["1998-01-01", "2013-12-31"]], "val_dates": [["2014-01-01", "2015-12-31"]]}
    alike = {**dates, "data": "x", "members": 10}
    provenance = alike | ({} if score is None else {"validation_crps": score}) | provenance
    return Corrector(TASK, GRID, {"_target_": model}, torch.zeros(len(TASK.static_names), *GRID.shape), provenance)


def test_the_option_comes_before_validation_years_and_these_before_scored_years():
    correctors = {"a": corrector(0.1), "b": corrector(0.2), "c": corrector(0.3)}
    assert choose_shown("c", correctors, SCORES) == {"model": "c", "by": "option"}
    assert choose_shown(None, correctors, SCORES) == {"model": "a", "by": "validation years"}
    climatology = {"models": {"raw": {}, "climatology": SCORES["models"]["a"]}}
    assert choose_shown(None, {}, climatology)["model"] == "climatology"


@pytest.mark.parametrize(
    "other",
    [
        lambda: corrector(None),
        lambda: corrector(0.01, train_dates=[["2010-01-01", "2013-12-31"]]),
        lambda: corrector(0.01, val_dates=[["2014-01-01", "2014-12-31"]]),
        lambda: corrector(0.01, data="y"),
        lambda: corrector(0.01, runs=["r", "s"]),
    ],
)
def test_validation_scores_that_are_not_comparable_are_not_used(other):
    """The scored years choose: the lowest CRPS, the fair one where it is valid."""
    correctors = {"a": corrector(0.1), "b": corrector(0.2), "c": other()}
    assert choose_shown(None, correctors, SCORES) == {"model": "b", "by": "scored years"}
