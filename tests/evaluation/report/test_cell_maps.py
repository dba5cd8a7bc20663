"""Maps in the page: numbers survive packing, large maps are made coarser, colours cover the values."""

import base64
import zlib
from dataclasses import replace

import numpy as np
import pytest
from report_parts import GRID, LEADS, MODELS, make_fields, make_scores

from data_pipeline.grid import Grid
from data_pipeline.points import Points
from evaluation.report.cell_maps import cell_scores, cell_values, joined_cells, map_payload, packed, spaced
from evaluation.report.coastlines import Coastlines


def unpacked(one, shape):
    """Read a packed map number by number, as the script does."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(one["data"])), np.uint8).reshape(4, -1).astype(int)
    steps, total = [], 0
    for low, second, third, high in planes.T:
        total = (total + int(low) + 256 * int(second) + 65536 * int(third) + 16777216 * int(high)) % 2**32
        steps.append(np.nan if total == 2**32 - 1 else (one["first"] + total) / one["per"])
    return np.reshape(steps, shape)


@pytest.mark.parametrize(("decimals", "scale"), [(2, 1.0), (0, 300.0), (3, 1e5)])
def test_packed_maps_hold_rounded_numbers(decimals, scale):
    values = scale * np.random.default_rng(0).normal(size=(7, 9))
    values[2, 3:5] = values[0, 0] = values[-1, -1] = np.nan
    expected = [[round(value, decimals) if np.isfinite(value) else np.nan for value in row] for row in values.tolist()]
    np.testing.assert_allclose(unpacked(packed(values, decimals), values.shape), expected, rtol=1e-12, atol=1e-12)
    nothing = np.full((2, 3), np.nan)
    np.testing.assert_array_equal(unpacked(packed(nothing, decimals), (2, 3)), nothing)


def test_cell_scores_follow_their_definitions():
    scores, fields = make_scores(), make_fields()
    averages = fields.cells[48]
    scores["models"]["emos"]["crps_fair_valid"] = False
    scores["models"]["raw"]["crps"] = 0.4
    variance, squared = averages["expected_squared_error"]["raw"], averages["squared_error"]["raw"]
    expected = {
        ("crps", "emos"): averages["crps"]["emos"],
        ("crps", "raw"): averages["crps_fair"]["raw"],
        ("skill", "emos"): 100 * (1 - averages["crps"]["emos"] / averages["crps"]["raw"]),
        ("skill", "net <1>"): 100 * (1 - averages["crps_fair"]["net <1>"] / averages["crps_fair"]["raw"]),
        ("bias", "climatology"): averages["error"]["climatology"],
        ("ratio", "raw"): np.sqrt(variance) / np.sqrt(squared),
    }
    for (key, model), values in expected.items():
        np.testing.assert_allclose(cell_values(scores, fields, key, model, 48), values)
    assert cell_values(scores, fields, "skill", "raw", 48) is None
    rain = scores | {"target": "tp:24h", "units": "m"}
    for key, factor in {"crps": 1000, "bias": 1000, "skill": 1, "ratio": 1}.items():
        np.testing.assert_allclose(
            cell_values(rain, fields, key, "emos", 24), factor * cell_values(scores, fields, key, "emos", 24)
        )
    assert cell_scores(rain)["crps"].units == "mm"
    averages["crps_fair"]["raw"][0, 0] = averages["squared_error"]["raw"][0, 1] = 0
    assert np.isnan(cell_values(scores, fields, "skill", "net <1>", 48)[0, 0])
    assert np.isnan(cell_values(scores, fields, "ratio", "raw", 48)[0, 1])


def test_joined_cells_are_means_without_missing_values():
    values = np.arange(35.0).reshape(5, 7)
    values[0, 0] = values[4, 6] = np.nan
    for side in (1, 2, 3):
        found = joined_cells(values, side)
        for row in range(-(-5 // side)):
            for column in range(-(-7 // side)):
                block = values[side * row : side * row + side, side * column : side * column + side]
                known = block[np.isfinite(block)]
                assert found[row, column] == pytest.approx(known.mean()) if known.size else np.isnan(found[row, column])


def length(payload):
    maps = [one for models in payload["maps"].values() for leads in models.values() for one in leads]
    return sum(len(one["data"]) for one in maps)


def test_maps_are_made_coarser_until_they_fit():
    scores, fields = make_scores(), make_fields(grid=Grid.regular(37, 72))
    whole = map_payload(scores, fields)
    assert whole["side"] == 1
    assert not any("mean of" in field["note"] for field in whole["fields"])
    for budget in (length(whole), length(whole) - 1, length(whole) // 5):
        some = map_payload(scores, fields, budget)
        assert length(some) <= budget
        assert (some["side"] > 1) == (budget < length(whole))
        shape = -(-37 // some["side"]), -(-72 // some["side"])
        assert (len(some["grid"]["latitudes"]), len(some["grid"]["longitudes"])) == shape
        found = unpacked(some["maps"]["bias"]["emos"][0], shape)
        expected = joined_cells(cell_values(scores, fields, "bias", "emos", LEADS[0]), some["side"])
        np.testing.assert_allclose(found, np.round(expected, cell_scores(scores)["bias"].decimals), atol=1e-9)
        assert some["grid"]["latitudes"][0] == pytest.approx(np.mean(fields.grid.latitudes[: some["side"]]))
        note = f"mean of {some['side']} × {some['side']} cells"
        assert all((note in field["note"]) == (some["side"] > 1) for field in some["fields"])


def test_maps_are_of_some_lead_times_and_absent_without_cells():
    scores, fields = make_scores(), make_fields()
    assert map_payload(scores, replace(fields, cells={})) is None
    stations = Points((48.0, 47.0, 46.5), (11.0, 12.0, 9.0))
    assert map_payload(scores, make_fields(grid=stations, holes=False), budget=10) is None
    assert map_payload(scores, replace(fields, land=None))["land"] is None
    assert spaced([6, 12, 18]) == [6, 12, 18]
    assert spaced(list(range(0, 366, 6))) == [0, 72, 144, 216, 288, 360]


def test_colour_scales_cover_all_models_but_climatology():
    scores, fields = make_scores(), make_fields()
    for averages in fields.cells.values():
        averages["error"]["climatology"] = 1000 + averages["error"]["climatology"]
    payload = map_payload(scores, fields)
    scales = {field["key"]: field["scale"] for field in payload["fields"]}
    shown = [name for name in MODELS if name != "climatology"]
    bias = np.abs([cell_values(scores, fields, "bias", name, lead) for name in shown for lead in LEADS])
    assert scales["bias"]["high"] == -scales["bias"]["low"] == pytest.approx(np.nanquantile(bias, 0.98))
    ratio = np.log([cell_values(scores, fields, "ratio", name, lead) for name in shown for lead in LEADS])
    assert scales["ratio"]["log"]
    assert scales["ratio"]["high"] == -scales["ratio"]["low"] == pytest.approx(np.quantile(abs(ratio), 0.98))
    crps = np.array([cell_values(scores, fields, "crps", name, lead) for name in shown for lead in LEADS])
    assert [scales["crps"]["low"], scales["crps"]["high"]] == pytest.approx(np.quantile(crps, [0.01, 0.99]).tolist())
    assert all(len(colours) == 6 * 256 for colours in payload["colours"].values())


@pytest.mark.parametrize(
    ("grid", "globe", "limits"),
    [
        (GRID, True, None),
        (Grid((50.0, 40.0), (350.0, 355.0)), False, [35, 55, -12.5, -2.5]),
        (Grid((50.0, 40.0), (175.0, 180.0, 185.0)), False, [35, 55, 172.5, 187.5]),
        (Points((50.0, 40.0), (359.03, 11.57)), False, [39.2, 50.8, -0.97 - 1.0032, 11.57 + 1.0032]),
    ],
)
def test_the_map_of_a_region_ends_at_its_cells(grid, globe, limits):
    found = map_payload(make_scores(), make_fields(grid=grid, holes=False))["grid"]
    assert found["globe"] == globe
    if limits:
        assert found["limits"] == pytest.approx(limits)


@pytest.mark.parametrize("grid", [GRID, Grid((50.0, 40.0), (355.0, 360.0, 365.0))], ids=["globe", "Europe"])
def test_maps_of_the_earth_have_its_coasts(grid):
    found = map_payload(make_scores(), replace(make_fields(grid=grid, holes=False), earth=True))
    assert found["land"] is None
    longitudes, latitudes = unpacked(found["coast"], (2, -1))
    lines = np.split(np.stack([longitudes, latitudes], 1), found["coast"]["ends"][:-1])
    south, north, west, east = found["grid"]["limits"]
    expected = Coastlines.load().lines if found["grid"]["globe"] else Coastlines.load().within(west, east, south, north)
    assert len(lines) == len(expected) > 5
    for line, other in zip(lines, expected, strict=True):
        np.testing.assert_allclose(line, other, atol=0.0051)
