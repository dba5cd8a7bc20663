"""Training without validation, splits by dates, and cross-validation, through the commands."""

import json
import shutil

import numpy as np
import pytest
from grib_parts import OPTIONS, write_archive

from models.corrector import Corrector
from models.training_dates import stated_fits

TASK = [word for word in OPTIONS if not word.startswith("data.split")]
EMOS = ["model=emos", "model.seasonal=false", "model.shared=true"]
FOLDS = ["data.split.train=[2000,2003]", "data.split.folds=4"]
FILES = "correctors={emos: 'runs/fold*/corrector.safetensors'}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, command):
    """An archive of four years, and an EMOS for each year that has not seen this year."""
    made = tmp_path_factory.mktemp("folds")
    (made / "data").mkdir()
    write_archive(made / "data")
    for fold in range(1, 5):
        options = [*TASK, "path=data", *FOLDS, *EMOS, f"data.split.fold={fold}", f"run_dir=runs/fold{fold}"]
        ended = command(made, "train", *options)
        assert ended.code == 0, ended.stderr
        assert "36 forecasts to train on, none to validate" in ended.stdout
        assert "validation:" not in ended.stdout
    return made


def evaluate(folder, command, *options):
    ended = command(folder, "evaluate", *TASK, "path=data", *options)
    return ended, (lambda run: json.loads((folder / run / "scores.json").read_text()))


def test_joined_folds_score_every_year_out_of_sample(folder, command):
    """The joined scores are the means of the scores of each year by its own corrector, evaluated alone."""
    ended, read = evaluate(folder, command, *FOLDS, "split=held_out", FILES, "run_dir=joined", "batch_size=5")
    assert ended.code == 0, ended.stderr
    joined = read("joined")
    assert joined["n_forecasts"] == 48
    assert joined["dates"] == [["2000-01-01", "2003-12-31"]]
    assert "held_out 2000–2003, 48 starts" in ended.stdout
    alone = {"emos": [], "climatology": [], "raw": []}
    for fold in range(1, 5):
        one = [f"data.split.fold={fold}", f"run_dir=alone{fold}"]
        file = f"correctors={{emos: runs/fold{fold}/corrector.safetensors}}"
        ended, read = evaluate(folder, command, *FOLDS, "split=held_out", file, *one)
        assert ended.code == 0, ended.stderr
        scores = read(f"alone{fold}")
        assert scores["dates"] == [[f"{1999 + fold}-01-01", f"{1999 + fold}-12-31"]]
        for name, found in alone.items():
            found.append((scores["models"][name]["crps"], scores["n_forecasts"]))
    for name, found in alone.items():
        crps, count = np.array(found).T
        assert len(set(crps)) == 4
        assert joined["models"][name]["crps"] == pytest.approx((crps * count).sum() / count.sum(), rel=1e-6)
    assert joined["best"] == {"model": "emos", "by": "scored years"}


def test_a_corrector_never_corrects_what_it_has_seen(folder, command):
    file = "correctors={emos: runs/fold2/corrector.safetensors}"
    ended, _ = evaluate(folder, command, *FOLDS, "split=held_out", "data.split.fold=1", file, "run_dir=leak")
    assert ended.code == 2
    assert "fold2/corrector.safetensors was trained on 2000-01-01, a date of the scored split (2000)" in ended.stderr
    files = [f"runs/fold{fold}/corrector.safetensors" for fold in (1, 2, 4)]
    ended, _ = evaluate(
        folder, command, *FOLDS, "split=held_out", f"correctors={{emos: [{','.join(files)}]}}", "run_dir=leak"
    )
    assert ended.code == 2
    assert "each of its 3 correctors has a part that was fitted on 2002-01-01; add the corrector" in ended.stderr
    shutil.copytree(folder / "runs/fold1", folder / "copy", dirs_exist_ok=True)
    files = ["copy/corrector.safetensors", *(f"runs/fold{fold}/corrector.safetensors" for fold in range(1, 5))]
    ended, _ = evaluate(
        folder, command, *FOLDS, "split=held_out", f"correctors={{emos: [{','.join(files)}]}}", "run_dir=leak"
    )
    assert ended.code == 2
    assert "several of its 5 correctors have not seen 2000-01-01" in ended.stderr


def test_folds_need_a_fold_and_networks_need_validation(folder, command):
    ended = command(folder, "train", *TASK, "path=data", *FOLDS, *EMOS, "run_dir=refused")
    assert ended.code == 2
    assert "data.split.folds=4 needs data.split.fold" in ended.stderr
    network = ["model=mlp", "model.width=4", "trainer.epochs=1", "run_dir=refused"]
    ended = command(folder, "train", *TASK, "path=data", "data.split.train=[2000,2001]", *network)
    assert ended.code == 2
    assert "models.networks.mlp.MLP keeps the weights of the epoch with the lowest validation loss" in ended.stderr
    assert (
        "give them as data.split.val=[first, last], or data.split.val=next_fold with data.split.folds" in ended.stderr
    )
    options = [*FOLDS, "data.split.fold=4", "data.split.val=next_fold", *network[:3], "run_dir=network"]
    ended = command(folder, "train", *TASK, "path=data", *options)
    assert ended.code == 0, ended.stderr
    provenance = Corrector.load(folder / "network/corrector.safetensors").provenance
    assert provenance["train_dates"] == [["2001-01-01", "2002-12-31"]]
    assert provenance["val_dates"] == [["2000-01-01", "2000-12-31"]]
    # Forecasts are valid on the 9th of each month.
    days = {year: [[f"{year}-{month:02}-09"] * 2 for month in range(1, 13)] for year in (2000, 2001, 2002)}
    fits = {part: dates.to_json() for part, dates in stated_fits(provenance).items()}
    assert fits.pop("checkpoint") == days[2000]
    assert fits.keys() >= {"normalizer", "model", "weights"}
    assert all(dates == days[2001] + days[2002] for dates in fits.values())


def test_splits_by_dates_keep_their_distance_and_are_in_the_ledger(folder, command):
    """Forecasts are valid on the 9th of each month; the border between training and validation is a 10th."""
    dates = ["data.split.train=[2000-01-01,2001-09-09]", "data.split.val=[2001-09-10,2002-12-31]"]
    scored = "data.split.test=[2003-01-01,2003-06-30]"
    ended = command(folder, "train", *TASK, "path=data", *dates, scored, *EMOS, "run_dir=dates")
    assert ended.code == 0, ended.stderr
    assert "20 forecasts to train on, 15 to validate" in ended.stdout
    assert "training: 1 left out with a valid time too close to another split, first 2001-09-08T12:00 + 24 h" in (
        ended.stdout
    )
    provenance = Corrector.load(folder / "dates/corrector.safetensors").provenance
    assert provenance["train_dates"] == [["2000-01-01", "2001-09-09"]]
    assert provenance["ledger"]["train"]["near_split"]["count"] == 1
    file = "correctors={emos: dates/corrector.safetensors}"
    ended, read = evaluate(folder, command, *dates, scored, file, "run_dir=dated", "references=[raw]")
    assert ended.code == 0, ended.stderr
    assert read("dated")["dates"] == [["2003-01-01", "2003-06-30"]]
    assert "test 2003-01-01 to 2003-06-30, 6 starts" in ended.stdout
    near = "data.split.test=[2001-09-01,2001-09-30]"
    ended, _ = evaluate(
        folder, command, "data.split.train=[2000,2000]", near, file, "run_dir=near", "references=[raw]"
    )  # fmt: skip
    assert "was trained on 2001-09-01, a date of the scored split (2001-09-01 to 2001-09-30)" in ended.stderr
