"""write_forecasts at stations: the layout and the scores that the program verif computes from the files."""

import netCDF4
import numpy as np
import pytest
import scoringrules
import torch

from data_pipeline.grids.points import Points
from data_pipeline.task import Task
from data_pipeline.variables.meaning import Meaning
from evaluation.regions import region_weights
from evaluation.run.forecast_writer import write_forecasts
from evaluation.scoring.scoring import ScoringOptions, score_models
from models.distribution import Normal
from models.members.options import CorrectionOptions
from models.statistical.raw import Raw

TASK = Task("t2m", ["2t"], ["2t"], [24, 48])
ALTITUDES = (581.0, 55.0, 3.0)


def warmer(batch):
    mean = batch.ensemble.mean(1) + 1
    return Normal(mean, torch.ones_like(mean))


def written(toy, folder, ids):
    """The station of the middle has no observation in the fourth forecast."""
    stations = Points((47.3, 52.5, -17.7), (11.4, 9.7, 178.0), ALTITUDES, ids)
    data = toy(TASK, stations, 12)
    data[3].target[0, 1] = torch.nan
    data.times = lambda: (
        torch.stack([one.init_time for one in data.samples]),
        torch.stack([one.lead_time for one in data.samples]),
    )
    data.meanings = [Meaning.stated(TASK.targets[0], TASK.lead_times)]
    models = {"raw": Raw(TASK, stations), "net": warmer}
    paths = write_forecasts(folder, models, data, CorrectionOptions(), None, None, "cpu", ["net"], {})
    assert [path.name for path in paths] == ["raw.nc", "net.nc"]
    return data, models, stations, dict(zip(models, paths, strict=True))


def test_files_of_stations_have_observations_members_and_scores(toy, tmp_path):
    """Scores by a published library from the arrays of the file, and those of the table for the same members."""
    data, models, stations, paths = written(toy, tmp_path, ("11120", "10338", "91680"))
    board = score_models(models, data, region_weights(stations), options=ScoringOptions(written={"net"}))
    expected = {"raw": board.tallies["raw"], "net": board.written["net"]}
    for name, path in paths.items():
        with netCDF4.Dataset(path) as file:
            assert {*file.dimensions} == {"time", "leadtime", "location", "ensemble_member"}
            assert (file.long_name, file.units) == ("2 m temperature", "K")
            assert (file.x0, hasattr(file, "x1")) == (0, False)  # the bounds of temperature
            assert file["location"][:].tolist() == [11120, 10338, 91680]
            assert file["location"].dtype == np.int32
            assert file["altitude"][:].tolist() == list(ALTITUDES)
            assert file["leadtime"][:].tolist() == [24, 48]
            found = {
                field: file[field][:].filled(np.nan) for field in ("time", "obs", "fcst", "pit", "crps", "ensemble")
            }
        assert found["obs"].shape == (*found["crps"].shape[:2], 3)
        seen = 0
        for sample in data.samples:
            place = found["time"].tolist().index(int(sample.init_time)), [24, 48].index(int(sample.lead_time))
            np.testing.assert_array_equal(found["obs"][place], sample.target[0, :, 0].numpy())
            members = sample.ensemble[:, 0, :, 0].numpy()
            if name == "raw":
                np.testing.assert_array_equal(found["ensemble"][place].T, members)
            order = members.argsort(0).argsort(0)
            np.testing.assert_array_equal(found["ensemble"][place].T.argsort(0).argsort(0), order)
            seen += np.isfinite(found["crps"][place]).sum()
        assert seen == np.isfinite(found["crps"]).sum() == 35
        np.testing.assert_allclose(
            found["crps"], scoringrules.crps_ensemble(found["obs"], found["ensemble"], estimator="nrg"), rtol=1e-5
        )
        np.testing.assert_allclose(found["fcst"], np.where(np.isnan(found["obs"]), np.nan, found["ensemble"].mean(-1)),
                                   rtol=1e-6)  # fmt: skip
        mean = expected[name].per_forecast["crps"][:, 0, list(board.regions).index("global")].sum(0).value
        assert np.nanmean(found["crps"]) == pytest.approx(mean, rel=1e-6)
        below = (found["ensemble"] <= found["obs"][..., None]).mean(-1)
        known = np.isfinite(found["obs"])
        assert abs(found["pit"] - below)[known].max() < {"raw": 1e-6, "net": 0.5}[name]


@pytest.mark.parametrize("ids", [("a", "b", "c"), (), ("011", "11", "12"), ("1", "2", "99999999999")])
def test_stations_without_numbers_of_their_own_are_numbered(toy, tmp_path, ids):
    _, _, _, paths = written(toy, tmp_path, ids)
    with netCDF4.Dataset(paths["net"]) as file:
        assert file["location"][:].tolist() == [0, 1, 2]
        assert file["station"][:].tolist() == list(ids or "012")
