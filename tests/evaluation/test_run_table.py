"""The table of training runs: options that differ, order, states, results, and what is said or refused."""

import csv
import json

import pytest
import yaml

from data_pipeline.common.pruning_record import PruningRecord, Rung
from evaluation.run_table import RunTable, TrainedRun

UNET = {"_target_": "models.networks.unet.UNet", "width": 8, "depth": 3}
MLP = {"_target_": "models.networks.mlp.MLP", "hidden": [16, 16]}


@pytest.fixture
def write(tmp_path):
    def write_run(name, losses=(0.5, 0.4), crps=None, done=True, pruned=None, model=UNET, summary=None, **options):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        trainer = {"seed": 0, "optimizer": None} | options.pop("trainer", {})
        written = {"data": {"path": "a", "cache": {"memory_bytes": 1}}, "task": {"name": "t2m"}, "model": model}
        written |= {"loss": {"_target_": "CRPS"}, "trainer": trainer, "fingerprint": "f", "format": 3, "run": name}
        (folder / "config.yaml").write_text(yaml.safe_dump(written | options))
        rows = [f"{epoch},{epoch * 5},0.5,{loss},0.01\n" for epoch, loss in enumerate(losses, 1)]
        if rows:
            (folder / "metrics.csv").write_text("epoch,step,train_loss,val_loss,learning_rate\n" + "".join(rows))
        if crps is not None:
            found = {"seconds": 75.2, "samples_per_second": 12.345, "peak_memory_bytes": 2_000_000_000}
            found |= {"peak_gpu_memory_bytes": None, "energy": {"kwh": None, "source": "", "why": "no meter"}}
            found |= {"validation": {"crps": crps, "crps_raw": 0.8, "loss": min(losses, default=None), "epoch": 2}}
            (folder / "summary.json").write_text(json.dumps(found | (summary or {})))
        if done:
            (folder / "corrector.safetensors").touch()
        if pruned is not None:
            PruningRecord({pruned: Rung(0.4, 3, 3, True)}).write(folder)
        return folder

    return write_run


def table(*folders):
    return RunTable.of([TrainedRun.load(folder.name, folder) for folder in folders])


def test_finished_runs_come_first_by_their_score_then_the_others_by_their_loss(write):
    runs = [
        write("pruned", losses=[0.3], done=False, pruned=1), write("second", crps=0.45), write("open", done=False),
        write("first", crps=0.40), write("none", losses=[], done=False), write("continued", crps=0.5, pruned=1),
    ]  # fmt: skip
    found = table(*runs)
    assert [run.name for run in found.runs] == ["first", "second", "continued", "pruned", "open", "none"]
    states = ["done", "done", "done", "pruned after epoch 1", "unfinished", "unfinished"]
    assert [run.state for run in found.runs] == states


def test_options_that_differ_are_columns(write):
    trainers = [{"seed": 0}, {"seed": 1}, {"seed": 1, "optimizer": {"_target_": "torch.optim.SGD", "momentum": 0.9}}]
    found = table(*(write(f"run{seed}", trainer=trainer) for seed, trainer in enumerate(trainers)))
    assert found.options == {"trainer.seed": ["0", "1", "1"], "trainer.optimizer": ["null", "null", "SGD"]}


def test_options_of_a_class_count_within_it(write):
    """The MLP has no width, and both have other options anyway: only what differs among the U-Nets is told."""
    models = [UNET, UNET | {"width": 16}, MLP, MLP]
    found = table(*(write(f"run{number}", model=model) for number, model in enumerate(models)))
    assert found.options == {
        "model": ["UNet", "UNet", "MLP", "MLP"], "model.width": ["8", "16", "–", "–"]
    }  # fmt: skip


def test_results_and_their_units(write):
    found = table(write("a", crps=0.6), write("b", losses=[0.7, float("nan"), 0.65], done=False))
    rows = [dict(zip(found.titles, found.cells(run), strict=True)) for run in found.runs]
    assert rows[0] == {
        "run": "a", "state": "done", "epochs": "2", "val_loss": "0.4", "CRPS": "0.6", "vs raw": "+25.0 %",
        "time": "1:15", "samples/s": "12.35", "memory": "2 GB",
    }  # fmt: skip
    assert rows[1]["val_loss"] == "0.65"
    assert rows[1]["CRPS"] == rows[1]["time"] == "–"


def test_what_forbids_a_ranking_is_said(write):
    def notes(*folders):
        return " ".join(table(*folders).notes())

    assert notes(write("a", crps=0.5), write("b", crps=0.5, data={"path": "a", "cache": {"memory_bytes": 2}})) == ""
    assert "differ in data" in notes(write("c", crps=0.5), write("d", crps=0.5, data={"path": "b"}))
    assert "differ in the files of data" in notes(write("e", crps=0.5), write("f", crps=0.5, fingerprint="g"))
    assert "different losses" in notes(write("g", crps=0.5), write("h", crps=0.5, loss={"_target_": "Energy"}))
    assert "no summary.json, so no scores, time and memory: i" in notes(write("i"), write("j", done=False))


def test_the_verb_prints_and_writes_the_table_of_a_sweep(write, tmp_path, command):
    write("sweep/one", crps=0.5, trainer={"seed": "<1>"})
    write("sweep/two", done=False, trainer={"seed": 2})
    (tmp_path / "sweep/failed").mkdir()
    ended = command(tmp_path, "compare", "sweep", "run_dir=out")
    assert ended.code == 0, ended.stderr
    header, first, second, *notes = ended.stdout.splitlines()
    assert header.split()[:3] == ["run", "trainer.seed", "state"]
    assert first.split()[:3] == ["one", "<1>", "done"]
    assert second.split()[:3] == ["two", "2", "unfinished"]
    assert "not begun: failed" in notes[0]
    rows = list(csv.DictReader((tmp_path / "out/compare.csv").open()))
    assert [row["folder"] for row in rows] == ["sweep/one", "sweep/two"]
    assert rows[0] | {"crps": "0.5", "gain": "0.375", "seconds": "75.2", "kwh": ""} == rows[0]
    page = (tmp_path / "out/compare.html").read_text()
    for text in ("&lt;1&gt;", "unfinished", "+37.5 %", "1:15"):
        assert f">{text}</t" in page
    assert command(tmp_path, "compare", "sweep/one", "sweep/two", "sweep/failed").stdout.count("failed") == 2


def test_what_is_no_run_is_refused(write, tmp_path, command):
    write("sweep/one")
    write("sweep/two")
    (tmp_path / "other").mkdir()
    (tmp_path / "scores.json").write_text("{}")
    (tmp_path / "list").mkdir()
    (tmp_path / "list/config.yaml").write_text("[1]")
    (write("torn") / "summary.json").write_text("{")
    faults = {
        ("sweep/one",): "two runs or more, got only sweep/one",
        ("sweep", "other"): "other is no run folder of train, as sweep/two is; compare runs of one verb",
        ("sweep", "scores.json"): "scores.json is no run folder of train",
        ("sweep", "list"): "list/config.yaml was not written by deepweather train",
        ("sweep", "torn"): "torn/summary.json is not JSON; leave out this run, or repeat it",
        ("sweep/one", "nothing"): "nothing is no run folder of train",
    }
    for words, sentence in faults.items():
        ended = command(tmp_path, "compare", *words)
        assert (ended.code, ended.stdout) == (2, "")
        assert sentence in ended.stderr
