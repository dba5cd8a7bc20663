"""Results of the verbs on the tiny twin: run folders, scores, corrected files of several targets."""

import json
import re

import eccodes
import numpy as np
import pytest
import torch
from conftest import ROOT
from grib_parts import GRID, write_reduced_archive
from twin_project import FORECAST, QUICK, SPLIT, TWIN, keys, messages

from models.corrector import Corrector
from models.provenance.training_dates import stated_fits

pytestmark = pytest.mark.usefixtures("without_figures")


def test_a_run_folder_has_all_files_and_is_left_alone_by_the_same_command(project, run_verb):
    run = project / "runs/unet"
    assert {path.name for path in run.iterdir()} == {
        "corrector.safetensors", "config.yaml", "metrics.csv", "summary.json", "memory_plan.json", "checkpoints",
        "tensorboard", ".lock",
    }  # fmt: skip
    assert len((run / "metrics.csv").read_text().splitlines()) == 3
    before = (run / "corrector.safetensors").stat().st_mtime_ns
    assert "already trained" in run_verb(project, "train", *SPLIT, "model=unet", "run_dir=runs/unet", *QUICK)
    assert (run / "corrector.safetensors").stat().st_mtime_ns == before
    assert "all" in run_verb(project, "prepare", *TWIN)


def test_the_corrected_members_keep_their_ranks_and_score_better(project, run_verb):
    run_verb(project, "correct", "corrector=runs/emos/corrector.safetensors", f"input={FORECAST}", "output=out.grib")

    def fields(path):
        found = {}
        for handle in messages(path):
            if [eccodes.codes_get(handle, key) for key in ("shortName", "step")] == ["2t", 48]:
                year = eccodes.codes_get(handle, "dataDate") // 10000
                found.setdefault(year, {})[eccodes.codes_get(handle, "number")] = eccodes.codes_get_values(handle)
        return {year: np.stack([members[n] for n in sorted(members)]) for year, members in found.items()}

    truth = {
        eccodes.codes_get(handle, "validityDate"): eccodes.codes_get_values(handle)
        for handle in messages(project / "data/twin/analysis.sfc.20180108")
        if eccodes.codes_get(handle, "shortName") == "2t"
    }
    better, crps = fields(project / "out.grib"), []
    for year, members in fields(project / FORECAST).items():
        # Packing may make two members equal, but never swaps them.
        smaller = members[:, None] < members
        assert (better[year][:, None] <= better[year])[smaller].all()
        y = truth[year * 10000 + 110]
        crps.append([abs(x - y).mean() - abs(x[:, None] - x).mean() / 2 for x in (members, better[year])])
    raw, corrected = np.mean(crps, axis=0)
    assert corrected < 0.95 * raw


def test_one_model_corrects_several_targets_and_lead_times(project, run_verb):
    """One network improves three targets, and `correct` changes all three at both lead times."""
    joint = [*SPLIT, "task=joint", "task.lead_times=[24,48]"]
    options = ["model=mlp", "model.width=16", "trainer.epochs=4", "trainer.ema_decay=0.9", "trainer.learning_rate=1e-2"]
    run_verb(project, "train", *joint, *options, "trainer.emos_minutes=0", "run_dir=runs/joint")
    scoring = ["correctors={mlp: runs/joint/corrector.safetensors}", "references=[raw]", "run_dir=runs/joint"]
    run_verb(project, "evaluate", *joint, *scoring)
    for target in ("z500", "t850", "2t"):
        models = json.loads((project / f"runs/joint/{target}/scores.json").read_text())["models"]
        assert models["mlp"]["crps"] < models["raw"]["crps"]
    together = project / "all.20180108"
    together.write_bytes(
        b"".join((project / f"data/twin/output.{kind}.20180108").read_bytes() for kind in ("sfc", "pl"))
    )
    run_verb(project, "correct", "corrector=runs/joint/corrector.safetensors", f"input={together}", "output=joint.grib")
    changed = {
        (keys(before)["shortName"], keys(before)["level"], keys(before)["stepRange"])
        for before, after in zip(messages(together), messages(project / "joint.grib"), strict=True)
        if eccodes.codes_get_message(before) != eccodes.codes_get_message(after)
    }
    assert changed == {(*field, lead) for field in (("z", "500"), ("t", "850"), ("2t", "0")) for lead in ("24", "48")}


def test_formulas_are_inputs_in_training_and_in_correction(project, run_verb, run_failing_verb):
    """A corrector computes its formulas from the forecast, and names the field that a forecast lacks."""
    words = [*SPLIT, "task=t850", "model=mlp", "trainer.epochs=1", "trainer.emos_minutes=0"]
    assert "quotation marks" in run_failing_verb(project, "train", *words, "task.formulas=[advection(t@850)]")
    formulas = ("advection(t@850)", "change(z@850, 24)")
    run_verb(project, "train", *words, f"task.formulas={json.dumps(formulas)}", "run_dir=runs/formulas")
    corrector = project / "runs/formulas/corrector.safetensors"
    assert tuple(str(one) for one in Corrector.load(corrector).task.formulas) == formulas
    forecast, windless = project / "data/twin/output.pl.20180108", project / "windless.20180108"
    windless.write_bytes(
        b"".join(
            eccodes.codes_get_message(message) for message in messages(forecast) if keys(message)["shortName"] != "u"
        )
    )
    run_verb(project, "correct", f"corrector={corrector}", f"input={forecast}", "output=formulas.grib")
    assert "u@850" in run_failing_verb(
        project, "correct", f"corrector={corrector}", f"input={windless}", "output=windless.grib"
    )
    assert not (project / "windless.grib").exists()


def test_the_training_script_in_the_docs_runs(project, monkeypatch):
    """Only the years are replaced; the script has at most ten lines."""
    document = (ROOT / "docs/training.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", document, re.S)
    years = "train=(1998, 2013), val=(2014, 2015), test=(2016, 2017)"
    assert years in script
    script = script.replace(years, "train=(2010, 2014), val=(2015, 2015), test=(2016, 2017)")
    assert len([line for line in script.splitlines() if line and "import" not in line]) <= 10
    monkeypatch.chdir(project)
    exec(compile(script, "docs/training.md", "exec"), {})
    assert Corrector.load(project / "corrector.safetensors").provenance["train_dates"] == [["2010-01-01", "2014-12-31"]]


def test_a_committee_is_weighted_on_the_validation_years(project, run_verb, run_failing_verb):
    """A spoilt network gets little weight beside the trained one; dates of the fit count as seen."""
    spoilt = Corrector.load(project / "runs/mlp/corrector.safetensors")
    torch.manual_seed(0)
    for parameter in spoilt.parameters():
        parameter.data += torch.randn_like(parameter)
    spoilt.save(project / "runs/spoilt.safetensors")
    both = "correctors=[runs/mlp/corrector.safetensors,runs/spoilt.safetensors]"
    fit = ("combine", both, "output=runs/weighted.safetensors", "weights=validation")
    output = run_verb(project, *fit, "data=twin")
    printed = re.search(
        r"h: weights (\S+), \S+; CRPS on the other half of the dates (\S+) K, with equal weights (\S+),", output
    )
    assert float(printed[1]) > 0.7
    assert float(printed[2]) < float(printed[3])
    weighted = Corrector.load(project / "runs/weighted.safetensors")
    ((own,), *_), ((other,), *_) = weighted.spec["weights"]
    assert own + other == pytest.approx(1)
    assert f"{own:.2f}" == printed[1]
    years = stated_fits(weighted.provenance)["model.weights"].spans
    assert {day.year for span in years for day in span} == {2015}
    assert "warning" not in output
    for words, sentence in (
        (fit, "add data=NAME"),
        ((*fit[:3], "data=twin"), "data is read with weights=validation only"),
        ((*fit, "data=twin", "data.archive.grid=10"), "the correctors were trained on 33 x 64 points"),
    ):
        assert sentence in run_failing_verb(project, *words)


def test_a_committee_of_other_files_is_weighted_with_a_warning(project, run_verb):
    corrector = Corrector.load(project / "runs/mlp/corrector.safetensors")
    corrector.provenance["data"] = "other files"
    for name in ("one", "two"):
        corrector.save(project / f"{name}.safetensors")
    words = ["correctors=[one.safetensors,two.safetensors]", "output=others.safetensors", "weights=validation"]
    output = run_verb(project, "combine", *words, "data=twin")
    assert "warning: these are not the files of the training, or they have changed" in output


def test_an_ensemble_on_a_reduced_grid_is_trained_scored_and_corrected(tmp_path, run_verb):
    """The ensemble is 1 K too warm; the corrected file has regular messages on the grid of the analysis."""
    write_reduced_archive(tmp_path)
    options = [
        "data=grib", f"path={tmp_path}", "data.archive.grid=analysis", "data.archive.regridding=bilinear",
        "data.split.train=[2000,2001]", "data.split.val=[2002,2002]", "data.split.test=[2003,2003]",
        "task.name=toy", "task.inputs=[2t]", "task.targets=[2t]", "task.lead_times=[24]",
    ]  # fmt: skip
    said = run_verb(tmp_path, "train", *options, "model=emos", "model.shared=false", "run_dir=run")
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
