"""The sidecar and the audit of a corrected file; late members; runs that are killed."""

import hashlib
import os
import signal
import time
from itertools import product

import numpy as np
import pytest
from correction_runs import correct, random_corrector, read_sidecar, read_values, write_members
from grib_parts import GRID

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import remove_abandoned_files
from data_pipeline.task import Task, Variable
from data_pipeline.writing import Edit, rewrite
from data_pipeline.writing.readback import read_back, same_order
from models.corrected_files.sidecar import sidecar_path

TASK = Task("toy", ["2t"], ["2t"], [24])


def forecast(path, members=4):
    fields = {}
    for name, number in product(("2t", "msl"), range(1, members + 1)):
        field = np.random.default_rng(number).normal(280, 8, GRID.shape)
        field.flat[number] = 9999  # an honest value
        fields[name, 20200101, 24, number] = field
    return write_members(path, fields)


def corrector():
    return random_corrector(TASK, size=0)


def test_the_sidecar_describes_the_output_and_a_failed_run_leaves_both(tmp_path):
    source, output = forecast(tmp_path / "in"), tmp_path / "out.grib"
    correct(corrector(), source, output)
    found = read_sidecar(output)
    assert (found["format"], found["kind"]) == (1, "corrected forecast")
    assert sidecar_path(output).read_text().count("\n") == 1
    assert found["output"]["sha256"] == found["audit"]["sha256"] == hashlib.sha256(output.read_bytes()).hexdigest()
    assert found["inputs"][0]["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    counts = {"messages": 8, "corrected": 4, "added": 0, "copied": 4, "forecasts": {"corrector": 1}}
    assert found["counts"] == counts
    assert found["options"]["mark"] is True
    audit = found["audit"]["fields"]["2t"]
    assert (found["audit"]["headers"], audit["messages"], audit["ranks"]) == (True, 4, 1)
    values = read_values(output)[:4]
    assert [audit["lowest"], audit["highest"]] == pytest.approx([np.min(values), np.max(values)], rel=1e-6)
    assert np.isfinite(values).all()
    before = output.read_bytes(), read_sidecar(output)
    with pytest.raises(InputError):
        correct(corrector(), [tmp_path / "in", tmp_path / "in2"], output)
    assert (output.read_bytes(), read_sidecar(output)) == before


def test_the_audit_finds_lost_messages_and_members_that_changed_places(tmp_path):
    source = forecast(tmp_path / "in")
    whole = source.read_bytes()
    (tmp_path / "out").write_bytes(whole[len(whole) // 8 :])
    found = read_back(tmp_path / "out", [source], [Variable("2t")])
    assert (found["headers"], found["messages"], found["messages_of_input"]) == (False, 7, 8)
    raw = np.random.default_rng(0).integers(0, 4, (5, 300)).astype(float)
    new = raw + np.random.default_rng(1).normal(0, 0.3, raw.shape)
    by_pairs = np.mean(
        [all(not (a < b and c > d) for a, c in zip(x, y, strict=True) for b, d in zip(x, y, strict=True))
         for x, y in zip(raw.T, new.T, strict=True)]
    )  # fmt: skip
    assert same_order(raw, new) == by_pairs
    assert 0 < by_pairs < 1


def test_a_killed_run_leaves_the_older_output_or_a_whole_new_one(tmp_path):
    """Twenty runs are killed at random moments; the next run removes what they left."""
    source, output = forecast(tmp_path / "in", 30), tmp_path / "out" / "grib"
    output.parent.mkdir()
    rewrite(source, output, lambda _: Edit(np.full(GRID.shape, 300.0)))
    new = output.read_bytes()
    old = b"an older file"
    ends = set()
    for delay in np.random.default_rng(0).uniform(0, 0.05, 20):
        output.write_bytes(old)
        if not (child := os.fork()):
            try:
                rewrite(source, output, lambda _: Edit(np.full(GRID.shape, 300.0)))
            finally:
                os._exit(0)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert output.read_bytes() in (old, new)
        ends.add(output.read_bytes())
    assert old in ends
    remove_abandoned_files(output.parent)
    assert [path.name for path in output.parent.iterdir()] == ["grib"]
