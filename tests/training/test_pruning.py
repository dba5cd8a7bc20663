"""Pruning: the decision at a rung against brute force, and a run that is pruned, marked, and continued."""

import itertools
import math
import random

import pytest
import yaml

from data_pipeline.common.errors import InputError
from data_pipeline.common.pruning_record import PruningRecord, Rung
from training.run.pruning import PruningOptions, pruned_message, reach_rung

OPTIONS = {"data": {"path": "a", "cache": {}}, "task": {}, "loss": {}, "trainer": {"seed": 0}, "fingerprint": "x"}


def claimed(folder, **changed):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(OPTIONS | changed))
    return folder


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_a_run_goes_on_if_it_is_among_the_best_share_of_those_at_its_rung(tmp_path, factor):
    losses = random.Random(factor).choices([place / 20 for place in range(20)], k=30)
    for number, loss in enumerate(losses):
        rung = reach_rung(claimed(tmp_path / f"run{number}"), factor, 2, loss)
        reached = sorted(losses[: number + 1])
        best = reached[: math.ceil(len(reached) / factor)]
        assert rung.pruned == (len(reached) >= factor and loss not in best), number
        assert (rung.place, rung.runs) == (1 + reached.index(loss), len(reached))
        assert bool(pruned_message(tmp_path / f"run{number}")) == rung.pruned
    assert {PruningRecord.read(folder).pruned_after for folder in tmp_path.iterdir()} == {None, 2}


def test_rungs_are_powers_of_the_factor():
    for first, factor in itertools.product((1, 2, 5), (2, 3)):
        options = PruningOptions(first, factor)
        expected = {first * factor**power for power in range(12)}
        assert [epoch for epoch in range(1, 1000) if options.is_rung(epoch)] == sorted(expected & set(range(1000)))


def test_only_runs_with_comparable_losses_count(tmp_path):
    """Other learning rates and caches count; other losses, data and tasks do not, and neither do other folders."""
    others = {
        "seed": {"trainer": {"seed": 1}},
        "cache": {"data": {"path": "a", "cache": {"memory_bytes": 1}}},
        "loss": {"loss": {"fair": 1}},
        "data": {"data": {"path": "b", "cache": {}}},
        "files": {"fingerprint": "y"},
    }
    for name, changed in others.items():
        reach_rung(claimed(tmp_path / "sweep" / name, **changed), 2, 1, 0.1)
    reach_rung(claimed(tmp_path / "other" / "run"), 2, 1, 0.1)
    assert reach_rung(claimed(tmp_path / "sweep" / "own"), 2, 1, 0.2) == Rung(0.2, 3, 3, True)


def test_a_run_that_ended_before_a_rung_counts_with_its_lowest_loss(tmp_path):
    PruningRecord({1: Rung(0.5, 1, 1, False)}, ended=0.1).write(claimed(tmp_path / "early"))
    assert reach_rung(claimed(tmp_path / "own"), 2, 1, 0.2).place == 1
    assert reach_rung(tmp_path / "own", 2, 2, 0.2) == Rung(0.2, 2, 2, True)


def test_a_decision_is_made_once(tmp_path):
    """A run that was killed after its decision and comes again follows it, although a better run came in between."""
    assert not reach_rung(claimed(tmp_path / "own"), 2, 1, 0.5).pruned
    reach_rung(claimed(tmp_path / "better"), 2, 1, 0.1)
    assert not reach_rung(tmp_path / "own", 2, 1, 0.5).pruned


def test_wrong_options_are_refused():
    for value, sentence in (
        (3, "trainer.pruning must be {first_epoch: E, factor: F} or null, got 3"),
        ({"first": 1}, "trainer.pruning has no option 'first'; it has first_epoch, factor"),
        ({"first_epoch": 0}, "trainer.pruning.first_epoch must be a whole number of at least 1, got 0"),
        ({"factor": 1}, "trainer.pruning.factor must be a whole number of at least 2, got 1"),
    ):
        with pytest.raises(InputError) as refused:
            PruningOptions.of(value)
        assert str(refused.value) == sentence
