"""The whole path through the command line on a tiny twin: four verbs, and each way to go wrong."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import eccodes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from data_pipeline.archive import Archive
from data_pipeline.dataset import ForecastDataset
from models.corrector import Corrector

ROOT = Path(__file__).parents[1]
TWIN = ["data.generator.first_year=2010", "data.generator.dates=8", "data.generator.members=5"]
SPLIT = ["data.split.train=[2010,2014]", "data.split.val=[2015,2015]"]
QUICK = ["trainer.epochs=2", "model.width=4"]
FORECAST = "data/twin/output.sfc.20180108"


@pytest.fixture(scope="module")
def succeed(command):
    """Run a verb that must end well; return what it printed."""

    def run(folder, *arguments):
        ended = command(folder, *arguments)
        assert ended.code == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run


@pytest.fixture(scope="module")
def refuse(command):
    """Run a verb that must end with one line on stderr and the exit code of a fault that is the user's."""

    def run(folder, *arguments, code=2):
        ended = command(folder, *arguments)
        assert ended.code == code, ended.stdout + ended.stderr
        (line,) = ended.stderr.splitlines()
        assert line.startswith("error: ")
        return line

    return run


@pytest.fixture(scope="module")
def project(tmp_path_factory, succeed):
    """A folder in which the four verbs have been run."""
    folder = tmp_path_factory.mktemp("project")
    succeed(folder, "prepare", *TWIN)
    succeed(folder, "train", *SPLIT, "model=emos", "run_dir=runs/emos")
    succeed(folder, "train", *SPLIT, "model=unet", "run_dir=runs/unet", *QUICK)
    return folder


@pytest.fixture(scope="module")
def corrected(project, succeed):
    succeed(project, "correct", "corrector=runs/emos/corrector.safetensors", f"input={FORECAST}", "output=out.grib")
    return project / "out.grib"


def test_a_sweep_trains_each_model_in_its_folder(project, succeed):
    """With the default `run_dir`, whose name depends on the model."""
    succeed(project, "train", "-m", *SPLIT, "model=raw,climatology")
    for model in ("raw", "climatology"):
        assert (project / f"runs/twin-t2m-{model}/corrector.safetensors").exists()


def messages(path):
    with path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            yield handle
            eccodes.codes_release(handle)


def keys(handle):
    iterator = eccodes.codes_keys_iterator_new(handle, "ls")
    found = {}
    while eccodes.codes_keys_iterator_next(iterator):
        name = eccodes.codes_keys_iterator_get_name(iterator)
        found[name] = eccodes.codes_get_string(handle, name)
    eccodes.codes_keys_iterator_delete(iterator)
    return found


def test_a_run_leaves_what_it_promised(project):
    run = project / "runs/unet"
    assert {path.name for path in run.iterdir()} == {
        "corrector.safetensors", "config.yaml", "metrics.csv", "checkpoints", "tensorboard",
    }  # fmt: skip
    assert len((run / "metrics.csv").read_text().splitlines()) == 3


def test_a_second_run_finds_its_work_done(project, succeed):
    before = (project / "runs/unet/corrector.safetensors").stat().st_mtime_ns
    output = succeed(project, "train", *SPLIT, "model=unet", "run_dir=runs/unet", *QUICK)
    assert "already trained" in output
    assert (project / "runs/unet/corrector.safetensors").stat().st_mtime_ns == before
    assert "all" in succeed(project, "prepare", *TWIN)


def test_evaluation_scores_everybody(project, succeed):
    options = (*SPLIT, "correctors={emos: runs/emos/corrector.safetensors, unet: runs/unet/corrector.safetensors}")
    output = succeed(project, "evaluate", *options, "run_dir=runs/scores")
    scores = json.loads((project / "runs/scores/scores.json").read_text())
    assert set(scores["models"]) == {"raw", "climatology", "emos", "unet"}
    crps = {name: model["crps"] for name, model in scores["models"].items()}
    assert scores["oracle"]["crps"] < crps["emos"] < crps["raw"] < crps["climatology"]
    assert scores["models"]["raw"]["captured"] == pytest.approx(0)
    assert "<html" in (project / "runs/scores/report.html").read_text()
    assert "emos" in output


def test_the_corrected_file_is_the_input_but_for_values(project, corrected):
    """Every key of `grib_ls`, the order of the messages, and the messages that were not asked for, byte for byte."""
    changed = 0
    for before, after in zip(messages(project / FORECAST), messages(corrected), strict=True):
        assert keys(before) == keys(after)
        same = eccodes.codes_get_message(before) == eccodes.codes_get_message(after)
        target = keys(before)["shortName"] == "2t" and keys(before)["stepRange"] == "48"
        assert same != target
        changed += target
    assert changed == 5 * 8


def test_the_corrected_members_keep_their_ranks_and_score_better(project, corrected):
    def fields(path):
        found = {}
        for handle in messages(path):
            if eccodes.codes_get(handle, "shortName") == "2t" and eccodes.codes_get(handle, "step") == 48:
                year = eccodes.codes_get(handle, "dataDate") // 10000
                found.setdefault(year, {})[eccodes.codes_get(handle, "number")] = eccodes.codes_get_values(handle)
        return {year: np.stack([members[n] for n in sorted(members)]) for year, members in found.items()}

    truth = {}
    for handle in messages(project / "data/twin/analysis.sfc.20180108"):
        if eccodes.codes_get(handle, "shortName") == "2t":
            truth[eccodes.codes_get(handle, "validityDate")] = eccodes.codes_get_values(handle)
    raw, better = fields(project / FORECAST), fields(corrected)
    crps = {"raw": [], "corrected": []}
    for year, members in raw.items():
        after = better[year]
        for i in range(5):
            for j in range(5):
                # Packing may make two members equal, never swap them.
                assert (after[i] <= after[j])[members[i] < members[j]].all()
        for name, x in (("raw", members), ("corrected", after)):
            y = truth[year * 10000 + 110]
            crps[name].append(abs(x - y).mean() - abs(x[:, None] - x[None]).mean() / 2)
    assert np.mean(crps["corrected"]) < 0.95 * np.mean(crps["raw"])


def test_the_corrected_file_opens_in_cfgrib_with_the_same_coordinates(project, corrected):
    cfgrib = pytest.importorskip("cfgrib")
    before, after = (
        cfgrib.open_dataset(path, indexpath="", filter_by_keys={"shortName": "2t"})
        for path in (project / FORECAST, corrected)
    )
    assert before.coords.equals(after.coords)
    assert before.t2m.attrs == after.t2m.attrs


def test_one_model_corrects_several_targets_and_lead_times(project, succeed):
    """Joint, by one network: all three gain, and a file that holds all fields is corrected at both lead times."""
    joint = [*SPLIT, "task=joint", "task.lead_times=[24,48]"]
    options = ["model=mlp", "model.width=16", "trainer.epochs=4", "trainer.ema_decay=0.9", "trainer.learning_rate=1e-2"]
    succeed(project, "train", *joint, *options, "run_dir=runs/joint")
    succeed(project, "evaluate", *joint, "correctors={mlp: runs/joint/corrector.safetensors}", "run_dir=runs/joint")
    for target in ("z500", "t850", "2t"):
        models = json.loads((project / f"runs/joint/{target}/scores.json").read_text())["models"]
        assert models["mlp"]["crps"] < models["raw"]["crps"]
    together = project / "all.20180108"
    together.write_bytes(
        b"".join((project / f"data/twin/output.{kind}.20180108").read_bytes() for kind in ("sfc", "pl"))
    )
    succeed(project, "correct", "corrector=runs/joint/corrector.safetensors", f"input={together}", "output=joint.grib")
    changed = {
        (keys(before)["shortName"], keys(before)["level"], keys(before)["stepRange"])
        for before, after in zip(messages(together), messages(project / "joint.grib"), strict=True)
        if eccodes.codes_get_message(before) != eccodes.codes_get_message(after)
    }
    assert changed == {(*field, lead) for field in (("z", "500"), ("t", "850"), ("2t", "0")) for lead in ("24", "48")}


def test_a_model_may_learn_from_the_first_members(project, succeed, refuse):
    """EMOS is what it would be if the archive had no more of them."""
    succeed(project, "train", *SPLIT, "model=emos", "max_members=3", "run_dir=runs/few")
    found = Corrector.load(project / "runs/few/corrector.safetensors")
    assert found.provenance["members"] == 3
    data = [str(project / f"data/twin/{name}.*") for name in ("output", "analysis")]
    every = ForecastDataset(Archive(*data), found.task, range(2010, 2015))
    few = [sample._replace(ensemble=sample.ensemble[:3]) for sample in every]
    expected = Corrector(found.task, found.grid, found.spec, found.static)
    expected.fit(few)
    torch.testing.assert_close(found.model.coefficients, expected.model.coefficients, rtol=0, atol=5e-3)
    expected.fit(every)
    assert (found.model.coefficients - expected.model.coefficients).std() > 0.02
    line = refuse(project, "train", *SPLIT, "model=emos", "max_members=9", "run_dir=runs/many")
    assert line == "error: members must be a number from 1 to 5 or different positions from 0 to 4, got 9"


def test_extremes_can_be_what_counts(project, succeed, refuse):
    """The climate of the training years goes into the loss; that of other years does not."""
    climate = "loss.climate=prepared/twin-t2m/efi.nc"
    succeed(project, "prepare", *TWIN, *SPLIT, "statistics=[efi]")
    options = ["model=mlp", "loss=eecrps", climate, "trainer.epochs=2"]
    output = succeed(project, "train", *SPLIT, *options, "run_dir=runs/extremes")
    losses = np.loadtxt(project / "runs/extremes/metrics.csv", delimiter=",", skiprows=1)[:, 2]
    crps = float(output.split("validation: crps ")[1].split()[0])
    assert (losses < crps).all()
    leaky = ["data.split.train=[2010,2013]", "data.split.val=[2014,2014]"]
    line = refuse(project, "train", *leaky, *options, "run_dir=runs/leaky")
    assert "is the climate of 2010-2014, the training years are 2010-2013" in line
    line = refuse(project, "train", *SPLIT, "model=emos", "loss=squared_error", "run_dir=runs/at-once")
    assert "is fitted at once, by a score of its own; leave out loss" in line


def started(folder, *arguments):
    """A verb that runs by itself."""
    return subprocess.Popen(
        [sys.executable, ROOT / "scripts/deepweather.py", *arguments],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_ranks_train_together(project):
    """Four ranks leave what one leaves: the same files, the same weights, the same table but for the last digits."""
    process = started(project, "train", *SPLIT, "model=unet", "run_dir=runs/mesh", *QUICK, "trainer.mesh=[2,2]")
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    assert "in 2 x 1 tiles, batches shared by 2" in output
    assert output.count("epoch") == 2
    one, four = project / "runs/unet", project / "runs/mesh"
    assert {path.name for path in one.iterdir()} == {path.name for path in four.iterdir()}
    expected, found = (load_file(folder / "corrector.safetensors") for folder in (one, four))
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4 * float(tensor.abs().max()))
    tables = [np.loadtxt(folder / "metrics.csv", delimiter=",", skiprows=1) for folder in (one, four)]
    np.testing.assert_allclose(*tables, rtol=1e-5)


def test_a_mesh_goes_on_as_one_process_when_a_rank_was_killed(project, succeed):
    options = [*SPLIT, "model=unet", "run_dir=runs/killed", "trainer.epochs=10", "trainer.patience=10", "model.width=4"]
    process = started(project, "train", *options, "trainer.mesh=[1,2]")
    for line in process.stdout:
        if line.startswith("epoch   2"):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(children[-1]), signal.SIGKILL)
            break
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert "was killed by signal 9" in errors
    assert "going on from" in succeed(project, "train", *options)
    rows = (project / "runs/killed/metrics.csv").read_text().splitlines()
    assert [int(row.split(",")[0]) for row in rows[1:]] == list(range(1, 11))


def test_interrupted_training_goes_on(project, succeed):
    """Kill -TERM in the middle, then the same command again."""
    options = [*SPLIT, "model=unet", "run_dir=runs/long", "trainer.epochs=10", "trainer.patience=10", "model.width=4"]
    process = started(project, "train", *options)
    for line in process.stdout:
        if line.startswith("epoch   2"):
            process.terminate()
            break
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert "run the same command again" in errors
    assert not (project / "runs/long/corrector.safetensors").exists()
    assert "going on from" in succeed(project, "train", *options)
    rows = (project / "runs/long/metrics.csv").read_text().splitlines()
    assert [int(row.split(",")[0]) for row in rows[1:]] == list(range(1, 11))


CORRECT = ("correct", "corrector=runs/emos/corrector.safetensors")


def test_a_truncated_forecast_is_named(project, refuse):
    (project / "cut.grib").write_bytes((project / FORECAST).read_bytes()[:100_000])
    line = refuse(project, *CORRECT, "input=cut.grib", "output=never.grib")
    assert "cut.grib" in line
    assert not (project / "never.grib").exists()


def test_a_missing_member_is_named(project, refuse):
    with (project / "holes.grib").open("wb") as file:
        for handle in messages(project / FORECAST):
            found = {name: eccodes.codes_get(handle, name) for name in ("shortName", "number", "step", "dataDate")}
            if found != {"shortName": "2t", "number": 3, "step": 48, "dataDate": 20120108}:
                file.write(eccodes.codes_get_message(handle))
    line = refuse(project, *CORRECT, "input=holes.grib", "output=never.grib")
    assert all(word in line for word in ("holes.grib", "2t", "2012-01-08", "48", "3"))


def test_a_missing_variable_is_named(project, refuse):
    line = refuse(project, *CORRECT, "input=data/twin/output.pl.20180108", "output=never.grib")
    assert "2t" in line
    assert "output.pl.20180108" in line


def test_an_unknown_variable_of_a_task_is_named(project, refuse):
    line = refuse(project, "train", *SPLIT, "task.inputs=[2t,xyz]", "run_dir=runs/unknown")
    assert "xyz" in line


@pytest.mark.parametrize("output", [FORECAST, f"./{FORECAST}"])
def test_the_input_is_not_overwritten(project, output, refuse):
    before = (project / FORECAST).read_bytes()
    line = refuse(project, *CORRECT, f"input={FORECAST}", f"output={output}")
    assert "output.sfc.20180108" in line
    assert (project / FORECAST).read_bytes() == before


def test_a_run_folder_belongs_to_one_run(project, refuse):
    line = refuse(project, "train", *SPLIT, "model=unet", "run_dir=runs/unet", "trainer.epochs=3", "model.width=4")
    assert "runs/unet holds a run with other trainer" in line


def test_another_twin_is_not_mixed_with_this_one(project, refuse):
    line = refuse(project, "prepare", *TWIN[:2], "data.generator.members=6")
    assert "members" in line


def test_testing_on_training_years_is_refused(project, refuse):
    line = refuse(
        project, "evaluate",
        "data.split.train=[2010,2011]", "data.split.val=[2012,2012]", "data.split.test=[2014,2014]",
        "correctors={emos: runs/emos/corrector.safetensors}", "run_dir=runs/leak",
    )  # fmt: skip
    assert "2014" in line
    assert not (project / "runs/leak/scores.json").exists()


def test_a_full_disk_while_correcting(project, small_disk, refuse):
    line = refuse(project, *CORRECT, f"input={FORECAST}", f"output={small_disk}/out.grib")
    assert "no space left" in line
    assert f"{small_disk}/out.grib" in line
    assert not list(small_disk.iterdir())


def test_a_full_disk_while_preparing_can_be_resumed(small_disk, tmp_path, refuse):
    line = refuse(tmp_path, "prepare", *TWIN, f"data.path={small_disk}/twin", code=3)
    assert "no space left" in line
    assert not list(small_disk.rglob("*.partial"))


def test_a_full_disk_while_training(project, small_disk, refuse):
    (small_disk / "ballast").write_bytes(bytes(1024 * 1024 - 8192))
    line = refuse(project, "train", *SPLIT, "model=unet", f"run_dir={small_disk}/run", *QUICK, code=3)
    assert "no space left" in line
    assert str(small_disk) in line


def test_the_script_of_the_documents_runs_as_it_stands(project, monkeypatch, succeed):
    """docs/training.md: ten lines with a stock Trainer; `evaluate` takes what they save. Only the years are others."""
    document = (ROOT / "docs/training.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", document, re.S)
    years = "train=(1998, 2013), val=(2014, 2015), test=(2016, 2017)"
    assert years in script
    script = script.replace(years, "train=(2010, 2014), val=(2015, 2015), test=(2016, 2017)")
    assert len([line for line in script.splitlines() if line and "import" not in line]) <= 10
    monkeypatch.chdir(project)
    exec(compile(script, "docs/training.md", "exec"), {})
    assert Corrector.load(project / "corrector.safetensors").provenance["train_years"] == [2010, 2014]
    succeed(project, "evaluate", *SPLIT, "correctors={script: corrector.safetensors}", "run_dir=runs/script")
