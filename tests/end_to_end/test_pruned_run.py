"""A pruned run: it stops, says so, writes no corrector, and continues to the weights of an undisturbed run."""

import json
import shutil

from twin_project import QUICK, SPLIT

PRUNING = "trainer.pruning={first_epoch: 1, factor: 2}"


def test_a_pruned_run_is_marked_and_can_be_continued(project, run_verb):
    words = (*SPLIT, "model=unet", *QUICK, "trainer.learning_rate=1e-6", "trainer.ema_decay=0.5")
    # A better run beside it.
    better = project / "runs/pruned/better"
    better.mkdir(parents=True)
    shutil.copy(project / "runs/unet/config.yaml", better)
    (better / "pruning.json").write_text(json.dumps({"rungs": {}, "ended": 0.0}))
    worse = project / "runs/pruned/worse"
    output = run_verb(project, "train", *words, "run_dir=runs/pruned/worse", PRUNING)
    message = "pruned after epoch 1: val_loss "
    assert message in output
    assert "has place 2 of the 2 runs" in output
    assert "epoch   2" not in output
    assert not (worse / "corrector.safetensors").exists()
    again = run_verb(project, "train", *words, "run_dir=runs/pruned/worse", PRUNING)
    assert message in again
    assert "epoch" not in again.replace(message, "")
    table = run_verb(project, "compare", "runs/pruned", "run_dir=runs/compared")
    assert "pruned after epoch 1" in table
    continued = run_verb(project, "train", *words, "run_dir=runs/pruned/worse")
    assert "resuming from" in continued
    assert "epoch   1" not in continued
    run_verb(project, "train", *words, "run_dir=runs/undisturbed")
    files = [project / run / "corrector.safetensors" for run in ("runs/pruned/worse", "runs/undisturbed")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert " done " in run_verb(project, "compare", "runs/pruned", "run_dir=runs/compared")
