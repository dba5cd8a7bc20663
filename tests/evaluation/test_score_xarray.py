"""`score` on arrays: against the package scores, WeatherBench-X's formulas, closed forms and the verb."""

import doctest

import numpy as np
import pytest
import scores.probability
import scoringrules
import xarray as xr
from conftest import ROOT

from data_pipeline.common.errors import InputError
from evaluation.score_xarray import score

RNG = np.random.default_rng(0)
LATITUDE, LONGITUDE = [60.0, 20.0, -20.0, -60.0], [0.0, 90.0, 180.0, 270.0]
STARTS = np.datetime64("2020-01-01", "ns") + np.arange(24) * np.timedelta64(4, "D")
SPACE = {"latitude": LATITUDE, "longitude": LONGITUDE}
TIMES = {"init_time": STARTS, "lead_time": [24, 48]}
SIGNAL = RNG.normal(280, 5, (24, 2, 4, 4))
TRUTH = xr.DataArray((SIGNAL + RNG.normal(size=SIGNAL.shape)).astype(np.float32), {**TIMES, **SPACE}, name="t2m")
MEMBERS = xr.DataArray(
    (SIGNAL[:, :, None] + RNG.normal(size=(24, 2, 7, 4, 4))).astype(np.float32), {**TIMES, "number": range(7), **SPACE}
)
HIGH = MEMBERS.rename("t")
GLOBAL = {"region": "global"}


def cell_weights():
    """Areas of the rows, which meet half-way between the latitudes."""
    edges = np.sin(np.radians([80.0, 40.0, 0.0, -40.0, -80.0]))
    return xr.DataArray(-np.diff(edges), {"latitude": LATITUDE})


def average(values, lead):
    return float(values.sel(lead_time=lead).weighted(cell_weights()).mean())


@pytest.mark.parametrize(("name", "method", "fair"), [("crps", "ecdf", False), ("crps_fair", "fair", True)])
def test_members_score_as_in_scores_and_weatherbench_x(name, method, fair):
    """The area weights are ours; both packages take them from the caller.

    WeatherBench-X: E|X - y| - 1/2 E|X - X'|, where the second sum has the divisor M(M - 1) for the fair score.
    """
    found = score(MEMBERS, TRUTH)[name]
    per_case = scores.probability.crps_for_ensemble(
        MEMBERS, TRUTH, "number", method=method, preserve_dims=["init_time", "lead_time", "latitude", "longitude"]
    )
    M, other = 7, MEMBERS.rename(number="other")
    spread = abs(MEMBERS.astype(float) - other).sum(("number", "other")) / (M * (M - fair))
    weatherbench = abs(MEMBERS.astype(float) - TRUTH).mean("number") - spread / 2
    for lead in (24, 48):
        ours = float(found.sel(lead_time=lead, region="global"))
        assert ours == pytest.approx(average(per_case, lead), rel=1e-6)
        assert ours == pytest.approx(average(weatherbench, lead), rel=1e-6)
        plain = float(weatherbench.sel(lead_time=lead).mean())
        assert float(found.sel(lead_time=lead, region="unweighted")) == pytest.approx(plain, rel=1e-6)


def test_stations_score_in_any_order_and_all_alike():
    """The truth has the stations in another order, lacks one, and has a further one; scoringrules scores the others."""
    ids, other = ["a", "b", "c", "d"], ["d", "x", "b", "a"]

    def at(array, names):
        places = {"latitude": ("point", [*range(50, 50 + len(names))]), "longitude": ("point", [9.0] * len(names))}
        return array.assign_coords(places | {"station": ("point", names)})

    members = at(MEMBERS.isel(longitude=0, drop=True).rename(latitude="point").drop_vars("point"), ids)
    own = TRUTH.isel(longitude=0, drop=True).rename(latitude="point").drop_vars("point")
    truth = at(own.isel(point=[3, 2, 1, 0]), other).assign_coords(latitude=("point", [53, 10, 51, 50]))
    found = score(members, truth).crps_fair.sel(lead_time=48, region="global").item()
    values = members.sel(lead_time=48).isel(point=[0, 1, 3]).transpose("init_time", "point", "number").values
    known = own.sel(lead_time=48).isel(point=[0, 1, 3]).transpose("init_time", "point").values
    assert found == pytest.approx(scoringrules.crps_ensemble(known, values, estimator="fair").mean(), rel=1e-6)
    with pytest.raises(InputError, match="only one of forecast and truth has the dimension point"):
        score(members, TRUTH)
    with pytest.raises(InputError, match="points without the coordinate latitude"):
        score(members.drop_vars("latitude"), truth)
    with pytest.raises(InputError, match="the truth none of them; check the ids in station"):
        score(members, truth.assign_coords(station=("point", ["p", "q", "r", "s"])))


def test_a_score_over_lead_times_is_one_number():
    """The energy score of the starts that have a truth at both lead times is that of scoringrules."""
    name = "energy_score_lead_times"
    own = score(MEMBERS, TRUTH.where(TRUTH.init_time != STARTS[3]), scores=[name])[name]
    x, y = (one.drop_sel(init_time=STARTS[3]).values.astype(float) for one in (MEMBERS, TRUTH))
    energy = scoringrules.es_ensemble(np.moveaxis(y, 1, -1), np.moveaxis(np.moveaxis(x, 1, -1), 1, -2)).mean()
    assert own.dims == ("region",)
    assert float(own.sel(region="unweighted")) == pytest.approx(energy, rel=1e-5)


def test_data_sets_give_a_tree_with_the_scores_of_each_target_and_level():
    """Each node has the numbers of its own call, and a threshold belongs to the target whose units it has."""
    upper = xr.concat([MEMBERS - 30, MEMBERS - 60], xr.DataArray([850, 500], dims="level", name="level"))
    truths = xr.concat([TRUTH - 31, TRUTH - 60], upper.level)
    members, truth = MEMBERS.assign_attrs(units="K"), TRUTH.assign_attrs(units="K")
    forecast = xr.Dataset({"2t": members, "t": upper.assign_attrs(units="K"), "tp": MEMBERS, "lsm": TRUTH[0, 0]})
    with pytest.warns(UserWarning, match="^score: 2 variables are not in both data sets and not scored: t2m, tp$"):
        tree = score(
            forecast,
            xr.Dataset({"2t": truth, "t": truths.assign_attrs(units="K"), "t2m": TRUTH}),
            thresholds=["2t > 280 K", "t@500 > 220 K"],
        )
    assert list(tree.children) == ["2t", "t@850", "t@500"]
    xr.testing.assert_identical(tree["2t"].to_dataset(), score(members, truth.rename("2t"), thresholds=["> 280 K"]))
    assert "brier" not in tree["t@850"]
    shift = (tree["t@850"].bias - tree["t@500"].bias).sel(region="global").values
    np.testing.assert_allclose(shift, 1, rtol=1e-3)


def test_mean_and_standard_deviation_have_the_closed_form():
    mean, std = MEMBERS.astype(float).mean("number"), MEMBERS.astype(float).std("number", ddof=1)
    found = score(xr.Dataset({"mean": mean, "std": std}), TRUTH.astype(float))
    exact = xr.zeros_like(mean) + scoringrules.crps_normal(TRUTH.values.astype(float), mean.values, std.values)
    for name in ("crps", "crps_fair"):
        assert float(found[name].sel(lead_time=48, **GLOBAL)) == pytest.approx(average(exact, 48), rel=1e-9)
    bias = average(mean - TRUTH, 24)
    assert float(found.bias.sel(lead_time=24, **GLOBAL)) == pytest.approx(bias, rel=1e-6)


@pytest.mark.parametrize(("dimension", "levels"), [("quantile", [0.5, 0.1, 0.9]), ("percentile", [50, 10, 90])])
def test_quantiles_are_a_discrete_distribution(dimension, levels):
    """Three quantiles at 10, 50 and 90 % have the probabilities 0.3, 0.4 and 0.3."""
    some = MEMBERS.isel(number=slice(3)).astype(float)
    ordered = np.sort(some.values, axis=2)
    own = some.copy(data=ordered[:, :, [1, 0, 2]]).rename(number=dimension).assign_coords({dimension: levels})
    found = score(own, TRUTH.astype(float)).crps.sel(lead_time=24, **GLOBAL)
    p, truth = np.array([0.3, 0.4, 0.3]), TRUTH.values.astype(float)
    first = np.einsum("k,ijkab->ijab", p, abs(ordered - truth[:, :, None]))
    pairs = abs(ordered[:, :, :, None] - ordered[:, :, None])
    exact = TRUTH.copy(data=first - np.einsum("k,l,ijklab->ijab", p, p, pairs) / 2)
    assert float(found) == pytest.approx(average(exact, 24), rel=1e-9)


def test_names_order_units_and_time_axes_do_not_matter():
    expected = score(MEMBERS, TRUTH)
    changed = MEMBERS.isel(latitude=slice(None, None, -1), longitude=[2, 0, 3, 1]).transpose(
        "longitude", "lead_time", "number", "latitude", "init_time"
    )
    changed = changed.rename(number="realization", latitude="lat", longitude="lon", init_time="time", lead_time="step")
    changed = changed.assign_coords(step=np.array([24, 48], "timedelta64[h]").astype("timedelta64[ns]")) - 273.15
    changed.attrs["units"] = "degC"
    truth = TRUTH.assign_attrs(units="K")
    found = score(changed, truth)
    assert found.crps.attrs["units"] == "K"
    for name in ("crps", "rmse", "bias", "spread"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)
    single = MEMBERS.sel(lead_time=48)
    by_valid = TRUTH.sel(lead_time=48).drop_vars("lead_time").rename(init_time="valid_time")
    by_valid = by_valid.assign_coords(valid_time=STARTS + np.timedelta64(48, "h"))
    again = score(single, by_valid)
    np.testing.assert_allclose(again.crps.sel(lead_time=48), expected.crps.sel(lead_time=48), rtol=1e-7)
    few = score(single, by_valid.isel(valid_time=slice(5, None)))
    assert few.attrs["left_out"] == 5
    assert int(few.n_forecasts.sel(lead_time=48, **GLOBAL)) == 19


def test_results_have_intervals_sizes_and_definitions():
    found = score(MEMBERS, TRUTH, thresholds=["> 280", "< 275"], scores=["crps", "brier"])
    assert found.crps.dims == ("lead_time", "region")
    assert found.brier.dims == ("lead_time", "region", "brier_label")
    assert found.brier_label.values.tolist() == ["> 280", "< 275"]
    outcome, probability = TRUTH > 280, (MEMBERS > 280).mean("number")
    exact = average((probability - outcome.astype(float)) ** 2, 24)
    one = found.sel(lead_time=24, brier_label="> 280", **GLOBAL)
    assert float(one.brier) == pytest.approx(exact, rel=1e-6)
    assert float(one.brier_low) < exact < float(one.brier_high)
    assert (found.n_dates == 24).all()
    assert "doi" in found.crps.attrs["references"]
    together = score(MEMBERS, TRUTH, by_lead_time=False)
    assert together.crps.dims == ("region",)
    assert int(together.n_forecasts.sel(**GLOBAL)) == 48
    mean = float(score(MEMBERS, TRUTH).crps.sel(**GLOBAL).mean())
    assert float(together.crps.sel(**GLOBAL)) == pytest.approx(mean, rel=1e-9)


def test_missing_truth_has_no_weight_and_dependent_members_no_factor():
    truth = TRUTH.where(TRUTH.latitude > 0)
    found = score(MEMBERS, truth).sel(lead_time=24)
    expected = score(MEMBERS.sel(latitude=[60, 20]), TRUTH.sel(latitude=[60, 20])).sel(lead_time=24)
    assert float(found.rmse.sel(region="unweighted")) == pytest.approx(float(expected.rmse.sel(region="unweighted")))
    drawn, quantiles = (score(MEMBERS, TRUTH, drawn=flag).spread.sel(lead_time=24, **GLOBAL) for flag in (True, False))
    assert float(drawn / quantiles) == pytest.approx((8 / 7) ** 0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("forecast", "truth", "options", "sentence"),
    [
        (MEMBERS.isel(number=0), TRUTH, {}, "it needs number (one member or more), quantile, or a data set"),
        (MEMBERS.to_dataset(name="a").assign(b=TRUTH), TRUTH, {}, "has the variables a, b; give one array, or a"),
        (MEMBERS, MEMBERS, {}, "the truth has the dimension number; select one value"),
        (MEMBERS, TRUTH.to_dataset(), {}, "truth is a data set of several variables; select the forecast's"),
        (MEMBERS.to_dataset(name="a"), TRUTH.to_dataset(), {}, "no variable in common, but a, t2m; rename one"),
        (MEMBERS, None, {}, "truth must be a DataArray, got NoneType; select one variable"),
        (MEMBERS.isel(latitude=0), TRUTH, {}, "the forecast lacks the dimension latitude; it has init_time, lead_time"),
        (MEMBERS.expand_dims(level=[850]), TRUTH, {}, "the forecast has the dimension level; select one value of it"),
        (MEMBERS, TRUTH.isel(latitude=[0, 1]), {}, "the forecast has 4 x 4 points"),
        (MEMBERS, TRUTH.assign_coords(init_time=STARTS + np.timedelta64(1, "D")), {}, "no forecast has a truth at its"),
        (MEMBERS, TRUTH.isel(lead_time=[0]), {}, "the truth has the lead times [24] h, the forecast [24, 48] h"),
        (MEMBERS.assign_attrs(units="m"), TRUTH.assign_attrs(units="K"), {}, "the forecast is in m, the truth in K"),
        (HIGH.assign_coords(hybrid=137), HIGH[:, :, 0].assign_coords(tropopause=0), {}, "hybrid 137, the truth on"),
        (MEMBERS.assign_coords(lead_time=[24.5, 48]), TRUTH, {}, "lead_time must be different whole hours"),
        (MEMBERS.where(MEMBERS.number < 6), TRUTH, {}, "the forecast is not finite"),
        (MEMBERS.rename(number="quantile").assign_coords(quantile=np.arange(7)), TRUTH, {}, "two or more different l"),
        (xr.Dataset({"mean": TRUTH, "std": TRUTH - 280}), TRUTH, {}, "std has negative values"),
        (MEMBERS, TRUTH, {"scores": ["brier"]}, "score cannot compute brier: "),
        (MEMBERS, TRUTH, {"scores": ["roc"], "thresholds": ["> 280"]}, "roc is a diagram; leave it out"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_sentence(forecast, truth, options, sentence):
    with pytest.raises(InputError) as error:
        score(forecast, truth, **options)
    assert sentence in str(error.value)


def test_the_page_shows_what_it_prints():
    results = doctest.testfile(str(ROOT / "docs/score_function.md"), module_relative=False)
    assert results.attempted > 10
    assert results.failed == 0


def test_implausible_truth_is_counted_and_masked_as_by_hand():
    """At valid times: 9999 K at one, and at another a value that no forecast and no other day comes near."""
    days = np.datetime64("2020-01-01", "ns") + np.arange(41) * np.timedelta64(1, "D")
    times = {"init_time": days[:40][::-1], "lead_time": [0, 24], **SPACE}
    analysis = xr.DataArray(RNG.normal(280, 2, (41, 4, 4)).astype("f4"), {"valid_time": days, **SPACE}, name="2t")
    analysis.attrs["units"] = "K"
    clean = np.stack([analysis.values[:40][::-1], analysis.values[1:][::-1]], 1)[:, :, None]
    forecast = xr.DataArray(
        clean + RNG.normal(size=(40, 2, 5, 4, 4)),
        {**times, "number": range(5)},
        name="2t",
        dims=("init_time", "lead_time", "number", "latitude", "longitude"),
    )
    wrong, removed = analysis.copy(deep=True), analysis.copy(deep=True)
    wrong[10, 1, 2], wrong[20, 3, 0] = 9999, 220
    removed[10, 1, 2] = removed[20, 3, 0] = np.nan
    with pytest.warns(UserWarning, match="score: 2t: 1 of 656 values of the truth are ") as told:
        score(forecast, wrong)
    assert [next(word for word in ("outside", "far") if word in str(one.message)) for one in told] == ["outside", "far"]
    assert "(220 K at latitude -60, longitude 0, 2020-01-21T00:00, between values of 2" in str(told[1].message)
    with pytest.warns(UserWarning, match="they are masked"):
        masked = score(forecast, wrong, truth_checks="mask")
    xr.testing.assert_identical(masked, score(forecast, removed))
    with pytest.raises(InputError, match=r"2t: 1 of 656 values .* outside the plausible range"):
        score(forecast, wrong, truth_checks="error")
