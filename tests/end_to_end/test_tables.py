"""One table of forecasts and observations through the verbs: the same numbers as by datasets in Python."""

import json

import deepweather as dw
import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.usefixtures("without_figures")

LEADS = (24, 48)
SPLIT = {"train": [2018, 2019], "val": None, "test": [2020, 2020]}


def table():
    """Three stations, four members that are a degree too warm, and the observations of all valid times."""
    random = np.random.default_rng(3)
    days = pd.date_range("2017-12-30", "2020-12-31", freq="8D")
    made = pd.MultiIndex.from_product([days, LEADS, ["011", "7", "8"]], names=["init_time", "lead_time", "station"])
    found = made.to_frame(index=False)
    valid = found.init_time + pd.to_timedelta(found.lead_time, "h")
    day = valid.dt.day_of_year + found.station.astype(int)
    weather = 10 * np.sin(2 * np.pi * day / 365.25) + day.map(pd.Series(3 * random.standard_normal(400)))
    found["obs [degC]"] = weather.round(3)
    for k in range(4):
        found[f"t2m_{k} [degC]"] = (weather + 1 + 0.5 * random.standard_normal(len(found))).round(3)
    return found.assign(lat=found.station.astype(float), lon=10.0, altitude=100.0)


def test_a_table_through_the_verbs(tmp_path, run_verb, command):
    path, before = tmp_path / "mine.csv", table()
    before.to_csv(path, index=False)
    options = ["data=table", f"path={path}", "task.name=mine", "task.inputs=[2t]", f"task.lead_times={list(LEADS)}"]
    options += [f"data.split.{name}={json.dumps(years)}" for name, years in SPLIT.items()]
    emos = ["model=emos", "model.seasonal=false", "model.shared=false"]
    run_verb(tmp_path, "train", *options, *emos, "trainer.emos_minutes=0", "run_dir=runs/emos")
    corrector = "runs/emos/corrector.safetensors"
    scoring = ["references=[raw]", f"correctors={{emos: {corrector}}}", "run_dir=runs/scores"]
    run_verb(tmp_path, "evaluate", *options, *scoring)
    given = [f"corrector={corrector}", f"input={path}", "on_problem=raw"]
    command(tmp_path, "correct", *given, "output=corrected.csv")
    command(tmp_path, "correct", *given, "output=corrected.nc")

    ensemble, truth = dw.open_table(before)
    names = {"t2m": "2t"}
    task = dw.Task(name="mine", inputs=["2t"], targets=["2t"], lead_times=[*LEADS])
    fitted = dw.fit(
        {"model": "emos", "seasonal": False, "shared": False},
        ensemble,
        truth,
        task=task,
        names=names,
        train=SPLIT["train"],
        test=SPLIT["test"],
        emos_minutes=0,
    )
    expected = fitted.correct(ensemble.rename(names), on_problem="raw")["2t"]

    written = pd.read_csv(tmp_path / "corrected.csv", dtype={"station": str})
    kept = [name for name in before if not name.startswith("t2m")]
    pd.testing.assert_frame_equal(written[kept].assign(init_time=before.init_time), before[kept])
    for row in written.sample(50, random_state=1).to_dict("records"):
        at = {"point": list(ensemble.station.values).index(row["station"])}
        found = expected.sel(init_time=row["init_time"], lead_time=row["lead_time"]).isel(at)
        assert [row[f"t2m_{k} [degC]"] for k in range(4)] == pytest.approx(found.values, abs=2e-4)
    copied, _ = dw.open_table(tmp_path / "corrected.csv")
    again = dw.open_ensemble(tmp_path / "corrected.nc", ["2t"], list(LEADS))["2t"]
    np.testing.assert_allclose(copied.t2m + 273.15, again, atol=2e-4)

    for output, words in {"new.grib": "which GRIB cannot hold", "new.csv member_count=9": "a table of other"}.items():
        refused = command(tmp_path, "correct", *given, *f"output={output}".split())
        assert refused.code == 2
        assert words in refused.stderr

    tested = before[(before.init_time + pd.to_timedelta(before.lead_time, "h")).dt.year == 2020]
    members = tested[[f"t2m_{k} [degC]" for k in range(4)]].to_numpy()
    error = abs(members - tested[["obs [degC]"]].to_numpy()).mean(1)
    crps = error - abs(members[:, :, None] - members[:, None]).mean((1, 2)) / 2
    models = json.loads((tmp_path / "runs/scores/scores.json").read_text())["models"]
    assert models["raw"]["crps"] == pytest.approx(crps.mean(), rel=1e-4)
    assert models["emos"]["crps"] < crps.mean() / 2
