"""Forecasts in files are scored like the model that made them, on the same forecasts as all others."""

from types import SimpleNamespace

import numpy as np
import pytest
import scores as scores_package
import torch
import xarray as xr
from forecast_files import write_forecasts
from memory_archive import GRID, MemoryArchive

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.sample import Sample
from evaluation.run.forecast_writer import check_writing
from evaluation.scores.quantile_scores import forecast_quantiles
from models.corrector import Corrector
from models.distribution import Quantiles
from models.members.coupling import written_members

KELVIN = {"units": "K"}
OF_MEMBERS = ("crps", "rmse", "bias", "spread", "spread_skill")
NUMBERS = ("crps", "crps_fair", "rmse", "bias", "spread", "spread_skill")


ARCHIVE = MemoryArchive()
STARTS = ARCHIVE.starts[ARCHIVE.starts >= np.datetime64("2016-01-01")]
SCORED = np.searchsorted(ARCHIVE.starts, STARTS)


@pytest.fixture(scope="module")
def files(emos, tmp_path_factory):
    """Members as `correct` writes them, mean and standard deviation, and quantiles of EMOS; and the raw members."""
    folder, corrector = tmp_path_factory.mktemp("files"), Corrector.load(emos)
    data = ForecastDataset(ARCHIVE, corrector.task, [2016])
    batch = Sample(*(torch.stack(fields) for fields in zip(*data, strict=True)))
    with torch.no_grad():
        forecast = corrector(batch)
        members = written_members(forecast, batch, corrector.task, GRID).members[:, :, 0]
    moments = {"t2m_mean": ((), forecast.mean[:, 0, None], KELVIN), "t2m_std": ((), forecast.std[:, 0, None], KELVIN)}
    levels = (np.arange(5) + 0.5) / 5

    def write(name, variables, further=None):
        return write_forecasts(folder / name, STARTS, [48], GRID, variables, further)

    by_start = members.movedim(0, 1)[:, None].numpy()
    number = {"number": ("number", range(5))}
    return {
        "raw": write("raw.nc", {"t2m": (("number",), batch.ensemble[:, None, :, 0], KELVIN)}, number),
        "members": write("members.zarr", {"t2m": (("number",), by_start, KELVIN)}, number),
        "normal": write("normal.nc", moments),
        "quantiles": write(
            "quantiles.nc", {"t2m": (("quantile",), np.sort(by_start, axis=2), KELVIN)}, {"quantile": levels}
        ),
    }


def close(found, expected, keys=NUMBERS):
    assert {key: found[key] for key in keys} == {key: pytest.approx(expected[key], rel=2e-6, abs=2e-6) for key in keys}


def test_files_get_the_scores_of_the_model_that_made_them(files, emos, scores_of, capsys):
    entries = [
        f"same: {files['raw']}", f"written: {{path: {files['members']}, drawn: false}}", f"normal: {files['normal']}",
        f"quantiles: {files['quantiles']}",
    ]  # fmt: skip
    options = f"correctors={{emos: {emos}}}", f"forecasts={{{', '.join(entries)}}}"
    scores = scores_of("run", *options)
    models = scores["models"]
    assert list(models) == ["raw", "climatology", "emos", "same", "written", "normal", "quantiles"]
    close(models["same"], models["raw"])
    assert models["same"]["diagrams"] == models["raw"]["diagrams"]
    close(models["normal"], models["emos"])
    written = models["emos"]["members"]
    assert {key: models["written"][key] for key in OF_MEMBERS} == {key: written[key] for key in OF_MEMBERS}
    close(models["quantiles"], written, OF_MEMBERS)
    assert not models["written"]["crps_fair_valid"]
    assert models["quantiles"]["crps_fair"] == models["quantiles"]["crps"]
    assert models["normal"]["skill_vs_raw"] == pytest.approx(models["emos"]["skill_vs_raw"], rel=1e-5)
    assert models["same"]["crps_fair_valid"]
    assert all(models[name]["members"] is None for name in ("same", "written", "normal", "quantiles"))
    assert (scores["n_dates"], scores["ledger"]["used"]) == (20, 20)
    notes = "\n".join(scores["warnings"])
    for name in ("same", "written", "normal", "quantiles"):
        assert f"{name} comes from files, which do not say on which dates it was fitted: a leak cannot" in notes
    assert "the 5 members of same are scored as independent draws" in notes
    assert "members of written" not in notes

    capsys.readouterr()
    assert set(scores["inputs"]["forecasts"]) == {"same", "written", "normal", "quantiles"}
    again = scores_of("run", options[0], f"forecasts={{{', '.join(entries[:2])}, normal: {files['quantiles']}}}")
    assert "nothing was done" not in capsys.readouterr().out
    assert list(again["models"]) == ["raw", "climatology", "emos", "same", "written", "normal"]


def test_forecasts_that_one_file_lacks_are_left_out_for_all_models(files, emos, scores_of, tmp_path, capsys):
    """The scores of all models equal those of an archive without these dates."""
    members = {"t2m": (("number",), ARCHIVE.raw[SCORED[3:], 1:], KELVIN)}
    few = write_forecasts(tmp_path / "few.nc", STARTS[3:], [48], GRID, members)
    scores = scores_of("run", f"correctors={{emos: {emos}}}", f"forecasts={{a: {files['raw']}, few: {few}}}")
    assert (scores["n_dates"], scores["n_forecasts"]) == (17, 17)
    assert scores["ledger"]["no_forecast"] == {"count": 3, "first": "2016-01-05T00:00 + 48 h (few)"}
    text = "3 left out with no forecast in the files of another model that is compared, first 2016-01-05T00:00 + 48 h"
    assert text in capsys.readouterr().out
    dates = f"data.split.test=[{STARTS[3] + np.timedelta64(48, 'h')},2016-12-31]".replace("T00:00:00", "")
    alone = scores_of("alone", f"correctors={{emos: {emos}}}", dates)
    assert alone["n_dates"] == 17
    for name in ("raw", "emos"):
        close(scores["models"][name], alone["models"][name])
    close(scores["models"]["few"], alone["models"]["raw"])


def test_values_that_cannot_be_scored_are_refused(files, emos, refusal, tmp_path):
    mean, std = ARCHIVE.raw[SCORED, 1:, 0], ARCHIVE.raw[SCORED, 1:].std(2)
    holes = mean.copy()
    holes[2, 0, 3, 4] = np.nan
    for values, spread, fault in (
        (holes, std, "ngr: the forecast is not finite"),
        (mean, std - std.mean(), f"forecasts.ngr: {tmp_path}/ngr.nc has "),
    ):
        moments = {"t2m_mean": ((), values, KELVIN), "t2m_std": ((), spread, KELVIN)}
        path = write_forecasts(tmp_path / "ngr.nc", STARTS, [48], GRID, moments)
        assert refusal(f"correctors={{emos: {emos}}}", f"forecasts={{ngr: {path}}}").startswith(fault)
        path.unlink()
    both = f"correctors={{emos: {emos}}}", f"forecasts={{a: {files['raw']}}}"
    assert "member_counts needs members of all models" in refusal(*both, "member_counts=[3,5]")
    taken = refusal(both[0], f"forecasts={{emos: {files['raw']}}}")
    assert taken.startswith("forecasts.emos: the name emos is a corrector, too")


def test_scores_of_quantiles_do_not_extrapolate():
    """Three quantiles say nothing about the level of 10 %."""
    known = Quantiles(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0.25, 0.5, 0.9]))
    found = forecast_quantiles(known, torch.tensor([0.1, 0.25, 0.7, 0.9]))[:, 0]
    torch.testing.assert_close(found, torch.tensor([torch.nan, 1.0, 3.0, 4.0]), equal_nan=True)


def test_written_forecasts_have_the_layout_and_the_scores_of_other_programs(emos, scores_of, tmp_path):
    """The package scores and WeatherBench-X's formula give the CRPS of `members` in scores.json."""
    folder = tmp_path / "forecasts"
    options = f"correctors={{emos: {emos}}}", "references=[raw]"
    result = scores_of("run", *options, f"write_forecasts={folder}")
    with xr.open_dataset(folder / "emos.nc") as file:
        members = file["2t"].load()
    assert members.dims == ("init_time", "lead_time", "number", "latitude", "longitude")
    assert members.dtype == np.float32
    assert members.lead_time.dtype.kind == "m"
    assert members.number.values.tolist() == [1, 2, 3, 4, 5]  # those of the archive
    np.testing.assert_array_equal(members.init_time, STARTS.astype("datetime64[ns]"))
    # As WeatherBench-X selects a chunk of predictions.
    chunk = members.sel(init_time=members.init_time[:1], lead_time=np.array([48], "timedelta64[h]"))
    assert chunk.shape == (1, 1, 5, *GRID.shape)
    assert members.notnull().all()
    truth = members.isel(number=0, drop=True).copy(data=ARCHIVE.truth[SCORED, 1:].astype(np.float32))
    weights = xr.DataArray(np.asarray(GRID.weights), {"latitude": members.latitude})
    dims = ["init_time", "lead_time", "latitude", "longitude"]
    per_case = scores_package.probability.crps_for_ensemble(members, truth, "number", method="ecdf", preserve_dims=dims)
    exact, other = members.astype(float), members.astype(float).rename(number="other")
    weatherbench = abs(exact - truth).mean("number") - abs(exact - other).sum(("number", "other")) / 25 / 2
    expected = result["models"]["emos"]["members"]["crps"]
    for found in (per_case, weatherbench):
        assert float(found.weighted(weights).mean()) == pytest.approx(expected, rel=1e-6)
    again = scores_of("again", *options, f"forecasts={{again: {{path: {folder}/emos.nc, drawn: false}}}}")
    written = result["models"]["emos"]["members"]
    assert {key: again["models"]["again"][key] for key in OF_MEMBERS} == {key: written[key] for key in OF_MEMBERS}
    assert again["inputs"]["options"] == result["inputs"]["options"]
    with pytest.raises(InputError, match="write_forecasts must be the path of a folder, got 3"):
        check_writing(3, SimpleNamespace(ranks=1))
    with pytest.raises(InputError, match="write_forecasts needs one process, mesh has 2"):
        check_writing(str(folder), SimpleNamespace(ranks=2))
