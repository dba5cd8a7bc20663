"""References of the validation: their units, the reasons to leave one out, and what is said of each lead time."""

import re

import deepweather as dw
import numpy as np
import pytest
import torch
import xarray as xr
from training_parts import GRID, TASK

from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.sample import Sample
from models.corrector import Corrector, needed_task
from models.parallel.mesh import Mesh
from training import validation_references
from training.run.trainer_options import TrainerOptions
from training.validation_references import SHOWN_LEADS, ReferenceInUnits, compare_lead_times, fitted_references

MLP = {"_target_": "models.networks.mlp.MLP", "width": 8, "depth": 1}
EMOS = {"_target_": "models.statistical.emos.EMOS", "shared": False}


def batch_of(members, starts, lead, corrector):
    """A batch of members (B, M, 1, H, W) as the corrector reads it."""
    B, _, _, H, W = members.shape
    seconds = torch.tensor(starts.astype("datetime64[s]").astype(np.int64))
    return Sample(
        members, torch.ones(B, 1, H, W, dtype=torch.bool), corrector.static.expand(B, -1, H, W),
        torch.zeros(B, 1, H, W), seconds, torch.full((B,), lead),
    )  # fmt: skip


def fitted(toy, spec, count, seed):
    task = needed_task(spec, TASK)
    data = toy(task, GRID, count, seed=seed)
    corrector = Corrector(task, GRID, spec, data.static)
    corrector.fit(data)
    return corrector.eval()


def test_crps_in_units_of_a_network_is_the_physical_crps_divided_by_its_scale(toy):
    """Both normalisers are fitted to different samples, so that a mistake in either direction would show."""
    network, emos = fitted(toy, MLP, 24, 0), fitted(toy, EMOS, 40, 3)
    data = toy(TASK, GRID, 6, seed=7)
    batch = torch.utils.data.default_collate([data[k] for k in range(6)])
    normalised = network.normalizer(batch)
    found = ReferenceInUnits(emos, network)(normalised).crps(normalised.target)
    own = batch._replace(
        ensemble=batch.ensemble[:, :, :1], mask=batch.mask[:, :1],
        static=batch.static[:, [TASK.static_names.index(name) for name in emos.task.static_names]],
    )  # fmt: skip
    scale = network.normalizer.target_scaling[1]
    assert emos.task.channels == TASK.channels[:1]
    torch.testing.assert_close(found, emos(own).crps(batch.target) / scale, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("minutes", "reason"), [(0, ""), (10.0, "is not compared with emos: too long")])
def test_emos_is_left_out_with_a_reason(toy, minutes, reason, monkeypatch, capsys):
    def refuse(*arguments, **options):
        raise InputError("too long")

    monkeypatch.setattr(validation_references, "fit_emos", refuse)
    corrector = fitted(toy, MLP, 8, 0)
    chosen = TrainerOptions(emos_minutes=minutes)
    monkeypatch.setattr(validation_references, "ForecastDataset", refuse)
    assert fitted_references(None, TASK, None, None, corrector, chosen, Mesh.single()) == {}
    climatology, *emos = capsys.readouterr().out.splitlines()
    assert climatology == "the validation is not compared with climatology: too long"
    assert reason in "".join(emos)
    assert bool(reason) == bool(emos)


def test_a_lost_rank_is_not_a_reason_to_leave_emos_out(toy, monkeypatch):
    def lose(*arguments, **options):
        raise InterruptedRunError("another rank is gone")

    monkeypatch.setattr(validation_references, "fit_emos", lose)
    monkeypatch.setattr(validation_references, "ForecastDataset", lose)
    with pytest.raises(InterruptedRunError):
        fitted_references(None, TASK, None, None, fitted(toy, MLP, 8, 0), TrainerOptions(), Mesh.single())


def world():
    """Forecasts and truth of two years; in the second, forecasts of 24 h are far better, and those of 48 h worse."""
    rng, space = np.random.default_rng(3), {"latitude": [60.0, 0.0, -60.0], "longitude": [0.0, 90.0, 180.0, 270.0]}
    starts = np.concatenate([np.datetime64(f"{year}-01-05", "ns") + np.arange(30) * np.timedelta64(11, "D")
                             for year in (2014, 2015)])  # fmt: skip
    truth = 280 + 5 * rng.normal(size=(60, 2, 3, 4))
    members = truth[:, :, None] - 3 + rng.normal(size=(60, 2, 1, 3, 4)) + rng.normal(size=(60, 2, 5, 3, 4))
    members[30:, 1] += 3  # the bias of the training year at 48 h is gone
    ensemble = xr.Dataset(
        {"2t": (("init_time", "lead_time", "number", *space), members, {"units": "K"})},
        {"init_time": starts, "lead_time": [24, 48], "number": range(5), **space},
    )  # fmt: skip
    valid = (starts[:, None] + np.array([24, 48]) * np.timedelta64(1, "h")).ravel()
    fields = truth.reshape(-1, 3, 4)
    return ensemble, xr.Dataset({"2t": (("time", *space), fields, {"units": "K"})}, {"time": valid, **space})


@pytest.mark.filterwarnings("ignore:.*(no year can be held out|training starts at the raw):UserWarning")
def test_train_says_at_which_lead_time_a_model_loses(recwarn):
    """The shares are those of physical scores of the second year, from the distributions that `score` gets."""
    ensemble, truth = world()
    task = dw.Task(name="two", inputs=["2t"], targets=["2t"], lead_times=[24, 48])
    emos = {"model": "emos", "seasonal": False, "shared": True}
    corrector = dw.fit(emos, ensemble, truth, task=task, train=[2014, 2014], val=[2015, 2015], gap_days=0)
    (line,) = [line for line in corrector.notes if line.startswith("validation: crps")]
    shares = {
        int(lead): (float(share), name) for share, lead, name in re.findall(r"([\d.]+) at (\d+) h \((\w+)\)", line)
    }
    second = ensemble["2t"].isel(init_time=slice(30, 60))
    found = {}
    for lead in (24, 48):
        own = second.sel(lead_time=[lead])
        raw = xr.Dataset({"mean": own.mean("number"), "std": own.std("number", ddof=1)})
        samples = torch.tensor(own.transpose("init_time", "lead_time", "number", ...).values[:, 0, :, None]).float()
        sample = batch_of(samples, own.init_time.values, lead, corrector)
        forecast = corrector(sample)
        ours = raw.copy(data={"mean": forecast.mean[:, 0, None].numpy(), "std": forecast.std[:, 0, None].numpy()})
        # The mean over all cells with equal areas at 60 and -60 degrees.
        ours, raw = (
            dw.score(one, truth["2t"], scores=["crps"]).crps.sel(region="global").item() for one in (ours, raw)
        )
        found[lead] = ours / raw
    assert shares[24] == (pytest.approx(found[24], abs=6e-4), "raw")
    assert shares[48] == (pytest.approx(found[48], abs=6e-4), "raw")
    assert found[24] < 0.6 < 1.5 < found[48]
    (warning,) = [str(one.message) for one in recwarn if "worse" in str(one.message)]
    assert warning.startswith("the model is worse than the raw ensemble at 48 h on the validation dates")


def test_many_lead_times_are_a_range_and_all_losses_are_named():
    leads = range(6, 6 * (SHOWN_LEADS + 3), 6)
    scores = {"model": {lead: lead / 50 for lead in leads}, "raw": dict.fromkeys(leads, 1.0), "emos": {6: 0.1}}
    line, warning = compare_lead_times(scores)
    assert line.endswith("0.240 at 12 h (raw) to 1.440 at 72 h (raw)")
    assert "worse than EMOS at 6 h and than the raw ensemble at 54, 60, 66, 72 h on" in warning
    assert compare_lead_times({"model": {24: 1.0}, "raw": {24: 1.0}})[1] == ""
