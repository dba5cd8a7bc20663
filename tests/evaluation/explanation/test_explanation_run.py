"""`correct explain=true` as a whole: EMOS, a mixture of experts and a committee on GRIB files."""

import re
import sys
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr
from correction_runs import write_members
from grib_parts import GRID

from data_pipeline.common.errors import InputError
from data_pipeline.task import Task
from evaluation.explanation.explanation_run import expert_map, shown_forecasts
from evaluation.explanation.forecast_explanation import explain_forecast
from models import correct
from models.correction.corrected import Corrected
from models.corrector import Corrector
from models.engines.forecast import RawForecast
from models.engines.torch_engine import TorchEngine

MEMBERS, LEADS = 4, (24, 48)
TASK = Task("t2m", ["2t", "msl"], ["2t"], list(LEADS))


def make_corrector(model="models.statistical.emos.EMOS", task=TASK, **options):
    torch.manual_seed(1)
    one = Corrector(task, GRID, {"_target_": model, **options}, torch.rand(3, *GRID.shape))
    one.normalizer.location.copy_(torch.tensor([280.0, 1e5])[: len(task.channels), None, None].expand(-1, *GRID.shape))
    one.normalizer.scale.copy_(torch.tensor([8.0, 900.0])[: len(task.channels)])
    for tensor in one.model.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(0.05 * torch.randn_like(tensor))
    return one.eval()


@pytest.fixture(scope="module")
def forecasts(tmp_path_factory):
    draw, laws = np.random.default_rng(0), {"2t": (280, 8), "msl": (1e5, 900)}
    fields = {
        (name, *key): mean + scale * draw.standard_normal(GRID.shape)
        for name, (mean, scale) in laws.items()
        for key in product((20200101, 20200102), LEADS, range(1, MEMBERS + 1))
    }
    return write_members(tmp_path_factory.mktemp("forecasts") / "in.grib", fields)


def read(channels=2):
    draw = np.random.default_rng(2)
    center, scale = np.array([280, 1e5])[:channels, None, None], np.array([8, 900])[:channels, None, None]
    ensemble = (center + scale * draw.standard_normal((MEMBERS, channels, *GRID.shape))).astype(np.float32)
    mask = np.ones(ensemble.shape[1:], bool)
    start = np.datetime64("2020-01-02", "s")
    return RawForecast(ensemble, mask, ensemble[:, :1].astype(float), start, 24, tuple(range(MEMBERS)))


@pytest.mark.parametrize("committee", [False, True])
def test_the_part_of_emos_is_its_slope_times_the_departure(committee):
    """Against a finite difference: EMOS is linear, so the ratio of change and shift is its slope anywhere."""
    corrector = emos = make_corrector(task=TASK.only_targets())
    if committee:
        spec = {"_target_": "models.averages.committee.Committee", "specs": [emos.spec, emos.spec]}
        corrector = Corrector(emos.task, GRID, spec, torch.rand(3, *GRID.shape)).eval()
        for part in corrector.model.correctors:
            part.load_state_dict(emos.state_dict())
    engine, forecast = TorchEngine(corrector), read(1)
    found = explain_forecast(engine.predict, forecast, GRID, ["2t"], (0,), engine.climate)
    shifted = replace(forecast, ensemble=forecast.ensemble + 16, raw=forecast.raw + 16)
    slope = (engine.predict(shifted).mean() - engine.predict(forecast).mean())[0] / 16
    expected = (slope - 1) * (forecast.raw.mean(0)[0] - 280)
    assert abs(expected).max() > 0.1
    np.testing.assert_allclose(found.strongest_part[0], expected, atol=2e-3)
    rest = (found.corrected_mean - found.raw_mean)[0] - expected
    np.testing.assert_allclose(found.usual_change[0], rest, atol=2e-3)


def test_rounding_errors_are_no_changes():
    corrector = make_corrector("models.statistical.raw.Raw", TASK.only_targets())
    engine = TorchEngine(corrector)
    found = explain_forecast(engine.predict, read(1), GRID, ["2t"], (0,), engine.climate)
    assert abs(found.corrected_mean - found.raw_mean).max() > 0
    assert (found.cell == -1).all()


def test_a_model_of_physical_values_has_no_climate():
    engine = TorchEngine(make_corrector())
    assert engine.climate is not None
    engine.corrector.model.physical = True
    assert engine.climate is None
    assert expert_map(engine, read(1), GRID) is None


def test_the_experts_of_a_mixture_are_the_first_choices_of_its_gate():
    mixture = {"experts": 2, "gate": "latent"}
    corrector = make_corrector("models.networks.unet.UNet", width=4, depth=1, mixture=mixture)
    engine = TorchEngine(corrector)
    found = expert_map(engine, read(), GRID)
    gate = corrector.get_submodule(found.layer).gate
    np.testing.assert_array_equal(found.chosen, gate.weight.detach().argmax(0))


def test_shown_forecasts_are_of_the_latest_start_and_evenly_spaced():
    def done(day, lead, method="corrector"):
        return Corrected(np.datetime64(f"2020-01-0{day}", "s"), lead, None, (), method=method)

    made = [done(day, lead) for lead in range(12, 252, 12) for day in (1, 2)]
    assert {one.init_time for one in shown_forecasts(made)} == {np.datetime64("2020-01-02", "s")}
    assert [one.lead_time for one in shown_forecasts(made, 4)] == [12, 84, 168, 240]
    fallback = [done(3, 24, "raw"), done(2, 24), done(2, 48)]
    assert [one.lead_time for one in shown_forecasts(fallback)] == [24, 48]
    assert shown_forecasts([done(1, 24, "emos")]) == []


def test_the_verb_writes_the_page_and_refuses_a_mesh(forecasts, tmp_path, monkeypatch, capsys):
    make_corrector().save(tmp_path / "c.safetensors")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    files = [f"corrector={tmp_path / 'c.safetensors'}", f"input={forecasts}", f"output={tmp_path / 'out.grib'}"]
    monkeypatch.setattr(sys, "argv", ["correct", *files, "explain=true"])
    correct.main()
    assert f"{tmp_path / 'out.grib.explain.html'}: what was changed, and why" in capsys.readouterr().out
    text = (tmp_path / "out.grib.explain.html").read_text()
    assert "msl" in text
    assert "2 of 4 corrected forecasts are explained" in text
    assert re.findall(r"<td>(2 Jan 12 UTC \+\d+ h)</td>", text) == ["2 Jan 12 UTC +24 h", "2 Jan 12 UTC +48 h"]
    with xr.open_dataset(tmp_path / "out.grib.explain.nc", group="corrector_0") as data:
        assert dict(data.sizes) == {"forecast": 2, "target": 1, "place": 8, "input": 2, "latitude": 9, "longitude": 14}
        named = {name: list(data[name].values) for name in ("lead_time", "target", "input")}
        assert named == {"lead_time": [24, 48], "target": ["2t"], "input": ["2t", "msl"]}
        assert data.attrs["total"] == 4
    with pytest.raises(InputError, match=r"^explain.* needs a single process; set mesh=\[1,1\]"):
        correct.explanation(True, tmp_path / "out.grib", [forecasts], SimpleNamespace(ranks=2))
