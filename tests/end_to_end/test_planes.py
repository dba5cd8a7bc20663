"""An ensemble on the rotated grid of HRDPS through all verbs; the truth has its rows in the other order."""

import json
from datetime import date, timedelta

import eccodes
import netCDF4
import numpy as np
import pytest
from plane_parts import COLUMNS, PLANES, ROWS, plane_message

STARTS = [date(year, month, 8) for year in range(2000, 2004) for month in range(1, 13)]
MEMBERS = 4
OPTIONS = [
    "data=grib", "path=.", "data.split.train=[2000,2001]", "data.split.val=[2002,2002]", "data.split.test=[2003,2003]",
    "task.name=plane", "task.inputs=[2t,10u]", "task.targets=[2t]", "task.lead_times=[24]",
]  # fmt: skip
PLACES = {"2t": {"level": 2}, "10u": {"level": 10}}
KEYS = (
    "centre", "dataDate", "dataTime", "stepRange", "typeOfLevel", "level", "shortName", "number", "md5GridSection",
    "scanningMode",
)  # fmt: skip
TOP = {"latitude": PLANES["HRDPS"][2]["latitude"] + 5.0 * (ROWS - 1), "longitude": PLANES["HRDPS"][2]["longitude"]}


def message(name, values, start, **keys):
    """A message of `values` (H, W), from low to high j, in the scanning mode of the keys."""
    product = {"productDefinitionTemplateNumber": 1, "typeOfLevel": "heightAboveGround", **PLACES[name]}
    product |= {"shortName": name, "dataDate": int(f"{start:%Y%m%d}"), "dataTime": 0, "bitsPerValue": 16}
    north_first = keys.get("scanningMode") == 0
    first = TOP.values() if north_first else None
    return plane_message("HRDPS", values[::-1] if north_first else values, first, **product, **keys)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("planes"), np.random.default_rng(0)
    with (folder / "ensemble.grib").open("wb") as forecasts, (folder / "analysis.grib").open("wb") as truths:
        for start in STARTS:
            for name in PLACES:
                likely = 280 + 8 * random.standard_normal((ROWS, COLUMNS))
                truth = likely + random.standard_normal((ROWS, COLUMNS))
                truths.write(message(name, truth, start + timedelta(days=1), scanningMode=0, step=0))
                for number in range(1, MEMBERS + 1):
                    field = likely + 2 + 0.5 * random.standard_normal((ROWS, COLUMNS))
                    forecasts.write(message(name, field, start, step=24, perturbationNumber=number))
    return folder


def read(path):
    """The keys that identify each message, and its values from low to high j, by ecCodes."""
    found = []
    with path.open("rb") as file:
        while handle := eccodes.codes_grib_new_from_file(file):
            values = eccodes.codes_get_array(handle, "values").reshape(ROWS, COLUMNS)
            keys = {key: eccodes.codes_get(handle, key) for key in KEYS}
            found.append((keys, values if keys["scanningMode"] else values[::-1]))
            eccodes.codes_release(handle)
    return found


def fields(path, name="2t"):
    """Values (start, member, H, W) of the messages of a variable."""
    own = [values for keys, values in read(path) if keys["shortName"] == name]
    return np.reshape(own, (len(STARTS), -1, ROWS, COLUMNS))


def test_all_verbs(archive, run_verb):
    prepared = run_verb(archive, "prepare", *OPTIONS)
    assert "grid         20 points, latitudes" in prepared
    assert prepared.count("192 fields of 10u are along the axes of the grid (uvRelativeToGrid=1)") == 1
    run_verb(archive, "train", *OPTIONS, "model=emos", "model.shared=true", "run_dir=emos")
    corrector = "emos/corrector.safetensors"
    run_verb(archive, "evaluate", *OPTIONS, f"correctors={{emos: {corrector}}}", "run_dir=scores")
    raw, truth = (fields(archive / f"{part}.grib") for part in ("ensemble", "analysis"))
    crps = abs(raw - truth).mean(1) - abs(raw[:, :, None] - raw[:, None]).mean((1, 2)) / 2
    scores = json.loads((archive / "scores/scores.json").read_text())["models"]
    year = [(start + timedelta(days=1)).year == 2003 for start in STARTS]
    assert scores["raw"]["crps"] == pytest.approx(crps[year].mean(), rel=1e-5)
    assert scores["emos"]["crps"] < 0.7 * scores["raw"]["crps"]
    given = [f"corrector={corrector}", "input=ensemble.grib"]
    for output in ("out.grib", "out.nc"):
        run_verb(archive, "correct", *given, f"output={output}")
    corrected = fields(archive / "out.grib")
    assert abs(corrected.mean() - truth.mean()) < 0.3 < 1.5 < raw.mean() - truth.mean()
    for (old, before), (new, after) in zip(read(archive / "ensemble.grib"), read(archive / "out.grib"), strict=True):
        assert old == new
        assert old["shortName"] == "2t" or np.array_equal(before, after)
    with netCDF4.Dataset(archive / "out.nc") as file:
        written = np.moveaxis(file["t2m"][...], 1, 0).reshape(-1, *corrected.shape[1:])
        np.testing.assert_allclose(written, corrected, atol=2e-3)
    monitored = run_verb(archive, "monitor", f"corrector={corrector}", "forecasts=out.grib", "analyses=analysis.grib")
    assert "wrote runs/monitor" in monitored
