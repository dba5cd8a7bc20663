"""Truth on a finer grid gives the scores of the plain truth; an ensemble on a reduced grid is trained and corrected."""

import json

import eccodes
import numpy as np
import pytest
from grib_parts import GRID, write_reduced_archive
from twin_project import SPLIT, messages

FACTOR = 2
BITS = 24


def write_finer(source, target):
    """Write the 2 m temperatures of a file on a twice finer grid; points between those of the source are unlikely."""
    with target.open("wb") as file:
        for handle in messages(source):
            if eccodes.codes_get(handle, "shortName") != "2t":
                continue
            rows, columns = eccodes.codes_get(handle, "Nj"), eccodes.codes_get(handle, "Ni")
            finer = np.full((FACTOR * (rows - 1) + 1, FACTOR * columns), 250.0)
            finer[::FACTOR, ::FACTOR] = eccodes.codes_get_values(handle).reshape(rows, columns)
            step = 360 / (FACTOR * columns)
            for key, value in {
                "Ni": FACTOR * columns, "Nj": len(finer), "longitudeOfLastGridPointInDegrees": 360 - step,
                "iDirectionIncrementInDegrees": step, "jDirectionIncrementInDegrees": 180 / (len(finer) - 1),
                "bitsPerValue": BITS, "decimalScaleFactor": 0,
            }.items():  # fmt: skip
                eccodes.codes_set(handle, key, value)
            eccodes.codes_set_values(handle, finer.ravel())
            file.write(eccodes.codes_get_message(handle))


def test_truth_on_a_finer_grid_gives_the_scores_of_the_plain_truth(project, run_verb):
    data = project / "data/twin"
    for path in data.glob("analysis.sfc.*"):
        write_finer(path, data / f"finer.{path.name}")
    scoring = ["evaluate", *SPLIT, "references=[raw,climatology]"]
    run_verb(project, *scoring, "run_dir=runs/plain")
    said = run_verb(project, *scoring, f"data.archive.analysis=[{data}/finer.*]", "run_dir=runs/finer")
    assert "the grid of 65 x 128 points" in said
    assert "is read at the points of the ensemble's grid, 33 x 64 points" in said
    plain, finer = (json.loads((project / f"runs/{name}/scores.json").read_text()) for name in ("plain", "finer"))
    crps, wanted = (found["models"]["raw"]["crps"] for found in (finer, plain))
    assert crps == pytest.approx(wanted, abs=1e-5)


def test_an_ensemble_on_a_reduced_grid_is_trained_scored_and_corrected(tmp_path, run_verb):
    """The ensemble is 1 K too warm; the corrected file has regular messages on the grid of the analysis."""
    write_reduced_archive(tmp_path)
    options = [
        "data=grib", f"path={tmp_path}", "data.archive.grid=analysis", "data.archive.regridding=bilinear",
        "data.split.train=[2000,2001]", "data.split.val=[2002,2002]", "data.split.test=[2003,2003]",
        "task.name=toy", "task.inputs=[2t]", "task.targets=[2t]", "task.lead_times=[24]",
    ]  # fmt: skip
    said = run_verb(tmp_path, "train", *options, "model=emos", "run_dir=run")
    assert f"N32 (6114 points) to {GRID} by bilinear weights" in said
    corrector = "run/corrector.safetensors"
    scoring = ["references=[raw]", f"correctors={{emos: {corrector}}}", "run_dir=scores"]
    run_verb(tmp_path, "evaluate", *options, *scoring)
    crps = json.loads((tmp_path / "scores/scores.json").read_text())["models"]
    assert crps["emos"]["crps"] < 0.8 * crps["raw"]["crps"]
    said = run_verb(tmp_path, "correct", f"corrector={corrector}", "input=ensemble.grib", "output=out.grib")
    count = len(list(messages(tmp_path / "ensemble.grib")))
    assert f"{count} corrected messages were on the reduced Gaussian grid N32 (6114 points)" in said
    for handle in messages(tmp_path / "out.grib"):
        assert eccodes.codes_get(handle, "gridType") == "regular_ll"
        assert (eccodes.codes_get(handle, "Nj"), eccodes.codes_get(handle, "Ni")) == GRID.shape
