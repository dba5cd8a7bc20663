"""Training without validation, and cross-validation, through the commands."""

import json
import shutil

import numpy as np
import pytest
from grib_parts import OPTIONS, write_archive

from models.corrector import Corrector
from models.provenance.training_dates import stated_fits

pytestmark = pytest.mark.usefixtures("without_figures")

TASK = [*(word for word in OPTIONS if not word.startswith("data.split")), "path=data"]
EMOS = ["model=emos", "model.seasonal=false", "model.shared=true"]
FOLDS = ["data.split.train=[2000,2002]", "data.split.folds=3", "data.split.gap_days=0"]
NETWORK = ["model=mlp", "model.width=4", "trainer.epochs=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, run_verb):
    """An archive, and an EMOS for each of its first three years that has not seen this year."""
    made = tmp_path_factory.mktemp("folds")
    (made / "data").mkdir()
    write_archive(made / "data")
    for fold in range(1, 4):
        options = [*FOLDS, *EMOS, f"data.split.fold={fold}", f"run_dir=runs/fold{fold}"]
        said = run_verb(made, "train", *TASK, *options)
        assert "24 forecasts to train on, none to validate" in said
        assert "validation:" not in said
    return made


def files(*names):
    return f"correctors={{emos: [{','.join(f'{name}/corrector.safetensors' for name in names)}]}}"


def test_joined_folds_score_every_year_out_of_sample(folder, run_verb):
    """The joined scores are the means of the scores of each year by its own corrector, evaluated alone."""

    def scores(run, *options):
        said = run_verb(folder, "evaluate", *TASK, *FOLDS, "split=held_out", *options, f"run_dir={run}")
        return said, json.loads((folder / run / "scores.json").read_text())

    said, joined = scores("joined", files(*(f"runs/fold{fold}" for fold in range(1, 4))), "batch_size=5")
    assert "held_out 2000–2002, 36 starts" in said
    assert joined["dates"] == [["2000-01-01", "2002-12-31"]]
    assert joined["best"] == {"model": "emos", "by": "scored years"}
    found = []
    for fold in range(1, 4):
        _, alone = scores(f"alone{fold}", f"data.split.fold={fold}", files(f"runs/fold{fold}"))
        assert alone["dates"] == [[f"{1999 + fold}-01-01", f"{1999 + fold}-12-31"]]
        assert alone["n_forecasts"] == 12
        found.append([alone["models"][name]["crps"] for name in ("emos", "climatology", "raw")])
    assert len({*np.ravel(found)}) == 9
    expected = [joined["models"][name]["crps"] for name in ("emos", "climatology", "raw")]
    assert np.mean(found, axis=0) == pytest.approx(expected, rel=1e-6)


def test_each_date_has_one_corrector_that_has_not_seen_it(folder, run_failing_verb):
    """tests/evaluation/test_leak_audit.py has the refusal of dates that all correctors have seen."""
    shutil.copytree(folder / "runs/fold1", folder / "copy")
    correctors = files("copy", *(f"runs/fold{fold}" for fold in range(1, 4)))
    line = run_failing_verb(folder, "evaluate", *TASK, *FOLDS, "split=held_out", correctors, "run_dir=leak")
    assert "several of its 4 correctors have not seen 2000-01-01" in line


def test_folds_need_a_fold_and_networks_need_validation(folder, run_failing_verb):
    words = ["train", *TASK, "run_dir=refused"]
    assert "data.split.folds=3 needs data.split.fold" in run_failing_verb(folder, *words, *FOLDS, *EMOS)
    line = run_failing_verb(folder, *words, "data.split.train=[2000,2001]", *NETWORK)
    assert "keeps the weights of the epoch with the lowest validation loss" in line
    assert "data.split.val=[first, last], or data.split.val=next_fold" in line


def test_the_next_fold_validates(folder, run_verb):
    run_verb(folder, "train", *TASK, *FOLDS, "data.split.fold=3", "data.split.val=next_fold", *NETWORK, "run_dir=net")
    provenance = Corrector.load(folder / "net/corrector.safetensors").provenance
    assert provenance["train_dates"] == [["2001-01-01", "2001-12-31"]]
    assert provenance["val_dates"] == [["2000-01-01", "2000-12-31"]]
    # Forecasts are valid on the 9th of each month.
    days = {year: [[f"{year}-{month:02}-09"] * 2 for month in range(1, 13)] for year in (2000, 2001)}
    fits = {part: dates.to_json() for part, dates in stated_fits(provenance).items()}
    assert fits.pop("checkpoint") == days[2000]
    assert fits.keys() >= {"normalizer", "model", "weights"}
    assert all(dates == days[2001] for dates in fits.values())
