"""EMOS on real forecasts: coefficients and scores that others have published or that their files contain."""

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from models.distribution import Ensemble
from models.emos import fit_emos, predict_emos
from models.regression import Regression

pyreadr = pytest.importorskip("pyreadr")
ZERO = torch.zeros(1, dtype=torch.float64)


class Rain:
    """Root of the daily precipitation at Innsbruck and its ensemble; days without any spread are left out.

    The protocol of Jordan et al. 2019 (doi:10.18637/jss.v090.i12, section 5): training up to November 2004,
    test from January 2005.
    """

    def __init__(self, folder: Path) -> None:
        frame = pyreadr.read_r(folder / "fo_rainibk" / "RainIbk.rda")["RainIbk"]
        root = torch.from_numpy(np.sqrt(frame.to_numpy()))
        dates = frame.index.to_numpy().astype("datetime64[D]")
        self.members, self.truth = root[:, 1:].T[:, :, None], root[:, :1]
        self.mean, self.std = self.members.mean(0), self.members.std(0)
        self.all = self.std[:, 0].numpy() > 0
        self.train = self.all & (dates <= np.datetime64("2004-11-30"))
        self.test = self.all & (dates >= np.datetime64("2005-01-01"))

    def fit(self, form: Regression, days: np.ndarray) -> torch.Tensor:
        return fit_emos(form, self.mean[days], self.std[days], self.truth[days], lower=ZERO)

    def predict(self, form: Regression, coefficients: torch.Tensor, days: np.ndarray):
        return predict_emos(form, coefficients[:, None], self.mean[days], self.std[days], lower=ZERO)


@pytest.fixture(scope="module")
def rain(samples):
    return Rain(samples)


@pytest.mark.parametrize(
    ("family", "score", "published"),
    [
        ("censored_normal", "likelihood", 0.8760),
        ("censored_logistic", "likelihood", 0.8751),
        ("censored_normal", "crps", 0.8757),
        ("censored_logistic", "crps", 0.8754),
    ],
)
def test_innsbruck_precipitation_scores(rain, family, score, published):
    form = Regression(family, "log", score)
    forecast = rain.predict(form, rain.fit(form, rain.train), rain.test)
    assert (rain.train.sum(), rain.test.sum()) == (1775, 3153)
    assert float(forecast.crps(rain.truth[rain.test]).mean()) == pytest.approx(published, abs=1e-4)
    raw = Ensemble(rain.members[:, rain.test]).crps(rain.truth[rain.test])
    assert float(raw.mean()) == pytest.approx(1.3210, abs=5e-5)


def test_innsbruck_precipitation_likelihood(rain):
    """Messner, Mayr and Zeileis 2016 (doi:10.32614/RJ-2016-012) print these numbers for crch."""
    form = Regression("censored_logistic", "log", "likelihood")
    coefficients = rain.fit(form, rain.all)
    np.testing.assert_allclose(coefficients[:4, 0], [-0.8527, 0.7869, 0.1174, 0.2705], atol=5e-5)
    likelihood = rain.predict(form, coefficients, rain.all).log_prob(rain.truth[rain.all]).sum()
    assert float(likelihood) == pytest.approx(-8921.1, abs=0.06)
    gauss = Regression("censored_normal", "log", "likelihood")
    likelihood = rain.predict(gauss, rain.fit(gauss, rain.all), rain.all).log_prob(rain.truth[rain.all]).sum()
    assert 2 * 4 - 2 * float(likelihood) == pytest.approx(17897, abs=0.6)  # Akaike's criterion


class Britain:
    """Screen temperature, 12 members on 200 x 200 points, with what the Met Office's IMPROVER makes of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "nc_improver_emos_temperature"
        days = (2, 3, 4)
        members = [self.read(f"history/2017060{d}T0300Z-PT0012H-temperature_at_screen_level.nc") for d in days]
        truth = [self.read(f"truth/2017060{d}T1500Z-PT0000H-temperature_at_screen_level.nc") for d in days]
        self.members = torch.stack(members, dim=1).flatten(2)
        self.truth = torch.stack(truth).flatten(1)
        self.land = self.read("landmask.nc", "land_binary_mask").flatten() > 0

    def read(self, name: str, variable: str = "air_temperature") -> torch.Tensor:
        with xr.open_dataset(self._folder / name) as dataset:
            return torch.from_numpy(dataset[variable].values.astype(np.float64))

    def coefficients(self, name: str) -> torch.Tensor:
        return torch.stack([self.read(name, f"emos_coefficient_{c}") for c in ("alpha", "beta", "gamma", "delta")])


@pytest.fixture(scope="module")
def britain(samples):
    return Britain(samples)


@pytest.mark.parametrize(
    ("where", "crps", "theirs"),
    [("all", 0.232292, "kgo_coefficients.nc"), ("land", 0.460369, "kgo_coefficients_land_only.nc")],
)
def test_british_temperature(britain, where, crps, theirs):
    cells = britain.land if where == "land" else slice(None)
    members, truth = britain.members[:, :, cells], britain.truth[:, cells]
    form, mean, std = Regression(), members.mean(0), members.std(0)
    coefficients = fit_emos(form, mean, std, truth, shared=True)
    score = predict_emos(form, coefficients[:, None], mean, std).crps(truth).mean()
    published = britain.coefficients(theirs)
    theirs_score = predict_emos(form, published[:, None, None], mean, std).crps(truth).mean()
    assert float(score) == pytest.approx(crps, abs=1e-6)
    assert score <= theirs_score  # theirs come from a simplex search that stops a little early
    # Over all points the valley of the score is so flat that their search stops 0.007 off.
    tolerance = {"land": [1e-3, 1e-5, 1e-5, 1e-5], "all": [1e-2, 3e-5, 2e-4, 2e-4]}[where]
    difference = (coefficients[:, 0] - torch.cat([published[:2], published[2:].abs()])).abs()
    assert (difference < torch.tensor(tolerance)).all(), difference


def test_british_temperature_of_another_day(britain):
    """Quantiles k/13 in the raw members' rank order are the file that IMPROVER writes."""
    members, expected = britain.read("apply_input.nc"), britain.read("apply_kgo.nc")
    M = len(members)
    coefficients = britain.coefficients("apply_coefficients.nc")
    forecast = predict_emos(Regression(), coefficients[:, None, None], members.mean(0), members.std(0))
    quantiles = forecast.quantile(torch.arange(1, M + 1, dtype=torch.float64) / (M + 1))
    rank = members.argsort(dim=0, stable=True).argsort(dim=0)
    difference = (quantiles.gather(0, rank) - expected).abs()
    assert float((quantiles - expected.sort(0).values).abs().max()) < 1e-4
    assert float(difference.mean()) < 2e-4
    # Raw members that are equal may change places.
    assert float((difference > 1e-3).double().mean()) < 0.002


class Dillingen:
    """Temperature at noon, daily from 2016 to 2020; 2020 is the test."""

    def __init__(self, folder: Path) -> None:
        file = folder / "fo_dillingen" / "dillingen_station.RData"
        frame = pyreadr.read_r(file)["station"].dropna(subset=["obs"])
        names = ("temp_mean", "temp_sd", "obs", "cos1", "sin1")
        values = torch.from_numpy(frame[list(names)].to_numpy(np.float64)).T[:, :, None]
        test = frame["date"].astype(str).str[:4].to_numpy() == "2020"
        self.train, self.test = values[:, ~test], values[:, test]


@pytest.mark.parametrize("scale", ["quadratic", "log"])
@pytest.mark.parametrize(("seasonal", "bar"), [(False, 0.893), (True, 0.885)])
def test_dillingen_temperature(samples, scale, seasonal, bar):
    data, form = Dillingen(samples), Regression(scale=scale)
    (mean, std, truth, *season), (m, s, y, *terms) = data.train, data.test
    assert (len(truth), len(y)) == (1455, 366)
    coefficients = fit_emos(form, mean, std, truth, season if seasonal else [])
    forecast = predict_emos(form, coefficients[:, None], m, s, terms if seasonal else [])
    assert round(float(forecast.crps(y).mean()), 3) <= bar
