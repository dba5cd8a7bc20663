"""An ensemble on a reduced grid is trained, scored and corrected."""

import json

import eccodes
from grib_parts import GRID, write_reduced_archive
from twin_project import messages


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
