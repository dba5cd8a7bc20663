"""The summary of a run: its account over several starts, and the time until the validation passes a reference."""

import json

import numpy as np
import pytest
from ranks import run_on_ranks

from data_pipeline.common.cost_meter import Usage
from data_pipeline.common.errors import DiskFullError
from models.parallel.mesh import Mesh, arrange_mesh
from training.run.run_summary import (
    GAIN,
    PASSED,
    RunSummary,
    describe_summary,
    mark_finished,
    read_summary,
    time_to_crps,
)


class Meter:
    """A meter whose clock and usage the test sets."""

    def __init__(self, joules=None, busy=None, memory=100, why=()):
        self.began = self.now = 1000.0
        self.power, self.busy, self.memory, self.why, self.report = joules, busy, memory, why, None

    def clock(self):
        return self.now

    def usage(self):
        seconds = self.now - self.began
        joules = {} if self.power is None else {"RAPL node 0": self.power * seconds}
        return Usage(seconds, self.memory, None, self.busy, joules, self.why)


def train(folder, meter, epochs, crps, step=-1):
    """Run a start of a training with epochs of 10 s, 4 s of validation and 1 s of saving."""
    with RunSummary(folder, meter, Mesh.single()) as summary:
        meter.now += 2
        summary.enter("fit")
        meter.now += 3
        summary.enter("start")
        summary.continue_from(step)
        summary.enter("train")
        for epoch in epochs:
            meter.now += 10
            summary.samples += 40
            summary.waiting += 1
            with summary.during("validate"):
                meter.now += 4
                summary.validated(epoch, 5 * epoch, crps[epoch] / 2, crps[epoch])
            with summary.during("save"):
                meter.now += 1
    return summary


CRPS = {1: 1.2, 2: 0.9, 3: 0.7, 4: 0.61, 5: 0.6, 6: 0.65}


def test_phases_add_up_and_nothing_is_counted_twice(tmp_path):
    meter = Meter(joules=3600.0, busy=0.5)
    summary = train(tmp_path, meter, range(1, 7), CRPS)
    found = read_summary(tmp_path / "summary.json")
    assert found["phases"] == {"start": 2, "fit": 3, "train": 60, "validate": 24, "save": 6}
    assert found["seconds"] == 95
    assert found["samples_per_second"] == 4
    assert found["waiting_share"] == pytest.approx(0.1)
    assert found["energy"] == {"kwh": pytest.approx(0.095), "source": "RAPL", "why": ""}
    assert found["gpu_utilisation"] == 0.5
    assert found["validation"] == {"crps": 0.6, "crps_raw": None, "loss": 0.3, "epoch": 5}
    assert (found["epochs"], found["starts"], found["finished"]) == (6, 1, False)
    summary.references.update(raw=1.0, emos=0.7)
    assert summary.describe()["time_to_crps"] == {
        # Each epoch ends with its validation, 14 s after the last one was saved.
        "raw": {"seconds": 5 + 14 + 15, "kwh": pytest.approx(0.034)},
        "emos": {"seconds": 5 + 14 + 45, "kwh": pytest.approx(0.064)},
        "gain90": {"seconds": 5 + 14 + 45, "kwh": pytest.approx(0.064)},
    }


@pytest.mark.parametrize("step", [10, 15])
def test_a_resumed_run_adds_to_the_account_and_repeats_validations_later(tmp_path, step):
    """The second start resumes after epoch 2, or before the validation of epoch 3: its time is the later one."""
    train(tmp_path, Meter(joules=3600.0, memory=300), range(1, 4), CRPS)
    first = read_summary(tmp_path / "summary.json")
    assert first["seconds"] == 50
    train(tmp_path, Meter(joules=1800.0, busy=0.25), range(3, 7), CRPS, step=step)
    found = read_summary(tmp_path / "summary.json")
    assert found["starts"] == 2
    assert found["seconds"] == 50 + 65
    assert found["phases"]["train"] == 70
    assert found["samples"] == 7 * 40
    assert found["energy"]["kwh"] == pytest.approx((50 * 3600 + 65 * 1800) / 3.6e6)
    assert found["peak_memory_bytes"] == 300
    # Utilisation was measured in the second start only.
    assert found["gpu_utilisation"] == 0.25
    assert [each["epoch"] for each in found["validations"]] == [1, 2, 3, 4, 5, 6]
    assert [each["seconds"] for each in found["validations"]] == [19, 34, 69, 84, 99, 114]
    assert found["time_to_crps"]["raw"] is None


@pytest.mark.parametrize("seed", range(4))
def test_time_to_crps_is_the_first_crossing(seed):
    """By brute force on random curves, some with validations that are not finite."""
    random = np.random.default_rng(seed)
    crps = [None if random.random() < 0.1 else float(value) for value in random.uniform(0.4, 1.2, 12)]
    curve = [{"loss": value, "crps": value, "seconds": 10.0 * k, "kwh": k / 4} for k, value in enumerate(crps)]
    references = {"raw": float(random.uniform(0.4, 1.2)), "emos": float(random.uniform(0.4, 1.2))}
    best = min(value for value in crps if value is not None)
    limits = {name: PASSED * value for name, value in references.items()}
    limits["gain90"] = references["raw"] - GAIN * (references["raw"] - best) if best < limits["raw"] else -1.0
    found = time_to_crps(curve, references)
    for name, limit in limits.items():
        passed = [each for each in curve if each["crps"] is not None and each["crps"] <= limit]
        expected = {"seconds": passed[0]["seconds"], "kwh": passed[0]["kwh"]} if passed else None
        assert found[name] == expected


def test_weights_that_forecast_the_raw_ensemble_have_not_passed_it():
    """A network begins at the raw ensemble, except for rounding."""
    curve = [{"loss": 0.999_99, "crps": 0.999_99, "seconds": 1.0, "kwh": None}]
    assert set(time_to_crps(curve, {"raw": 1.0}).values()) == {None}


def test_the_lines_for_the_user(tmp_path):
    train(tmp_path, Meter(joules=3600.0, busy=0.5), range(1, 7), CRPS)
    summary = RunSummary(tmp_path, Meter(joules=0.0, why=("no driver",)), Mesh.single())
    summary.references.update(raw=1.0)
    lines = summary.finish(0.59).splitlines()
    assert lines == describe_summary(read_summary(tmp_path / "summary.json"))
    for part in ("done in 1:35 in 2 starts (", "training 1:00", "10 % ", "0.095 kWh (RAPL), not counted: no driver"):
        assert part in lines[0]
    assert "raw ensemble after 0:34 and 0.034 kWh, 90 % of the final gain after 1:04" in lines[1]
    found = read_summary(tmp_path / "summary.json")
    assert found["finished"]
    assert found["validation"]["crps"] == 0.59
    # Nothing is written after the last summary.
    summary.write()
    assert read_summary(tmp_path / "summary.json")["finished"]


def test_a_damaged_or_foreign_summary_is_not_an_account(tmp_path):
    file = tmp_path / "summary.json"
    for text in ("", "{", "[1]", '{"format": 99, "starts": 7}'):
        file.write_text(text)
        assert RunSummary(tmp_path, Meter(), Mesh.single()).describe()["starts"] == 1
    mark_finished(tmp_path)
    assert json.loads(file.read_text())["format"] == 99
    file.unlink()
    train(tmp_path, Meter(), [1], CRPS)
    mark_finished(tmp_path)
    assert read_summary(file)["finished"], "a run that was killed after it had saved its corrector"
    train(tmp_path, Meter(), [1, 2], {1: float("nan"), 2: float("inf")})
    text = (tmp_path / "summary.json").read_text()
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in summary.json"))
    assert found["validations"][0]["crps"] is None


def summary_of_two_ranks(rank, folder):
    """Both ranks read the same counter of their node, and wait 3 s and 5 s; only the first has a file."""
    mesh, meter = arrange_mesh(2, 1), Meter(joules=3600.0, memory=100 + rank)
    with RunSummary(folder, meter, mesh) as summary:
        summary.enter("train")
        meter.now += 10
        summary.samples, summary.waiting = 40, 3 + 2 * rank
        summary.validated(1, 5, 0.5, 0.5)
        text = summary.finish(0.5)
    return text, bool(summary._before)


def test_the_first_rank_writes_for_all(tmp_path):
    (text, _), (nothing, _) = run_on_ranks(2, summary_of_two_ranks, tmp_path)
    assert "at most 101 B of memory of a rank" in text
    assert nothing == ""
    found = read_summary(tmp_path / "summary.json")
    assert found["ranks"] == 2
    assert found["waiting_share"] == 0.5
    assert found["samples_per_second"] == 4
    assert found["energy"]["kwh"] == pytest.approx(0.01)


def test_an_error_of_the_disk_at_the_end_does_not_hide_the_error_of_the_run(tmp_path, monkeypatch):
    def fail(*arguments):
        raise DiskFullError("full")

    def run():
        with RunSummary(tmp_path, Meter(), Mesh.single()):
            monkeypatch.setattr("training.run.run_summary.write_summary", fail)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()


def test_a_run_that_waits_for_data_says_so_once(tmp_path):
    with RunSummary(tmp_path, meter := Meter(), Mesh.single()) as summary:
        summary.enter("train")
        meter.now += 1000
        summary.waiting = 150.0
        assert summary.waiting_message() == ""  # nothing is known that would help
        summary.advice = "write a store"
        for short in (59.0, 99.0):
            summary.waiting = short
            assert summary.waiting_message() == ""
        summary.waiting = 250.0
        assert summary.waiting_message() == "training has waited 4:10 for data, 25 % of its time; write a store"
        assert summary.waiting_message() == ""
