"""Several correctors and several files in one run of `correct`."""

from itertools import product

import numpy as np
import pytest
from correction_runs import correct, correct_with, random_corrector, write_members
from grib_parts import GRID

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib import grib_reader as reader
from data_pipeline.task import Task
from data_pipeline.writing import repack
from models.engines.torch_engine import TorchEngine

MEMBERS = 4


def write(path, name):
    """Write forecasts of one variable for two starts and two lead times."""
    random = np.random.default_rng(len(name))
    keys = product([name], (20200101, 20200102), (24, 48), range(1, MEMBERS + 1))
    return write_members(path, {key: 280 + 8 * random.standard_normal(GRID.shape) for key in keys})


def make_corrector(target, leads=(24, 48), inputs=()):
    """Return EMOS of one target with other coefficients in every cell; it reads `inputs`, or the target alone."""
    task = Task(target, list(inputs) or [target], [target], list(leads))
    return random_corrector(task, seed=len(target))


def test_two_correctors_in_one_run_equal_two_runs(tmp_path):
    files = [write(tmp_path / name, name) for name in ("2t", "msl")]
    both = {name: make_corrector(name) for name in ("2t", "msl")}
    assert correct(both, files, tmp_path / "both").messages == 2 * 2 * 2 * MEMBERS
    for name, path in zip(both, files, strict=True):
        correct(both[name], path, tmp_path / f"{name}.out")
    one_by_one = b"".join((tmp_path / f"{name}.out").read_bytes() for name in both)
    assert (tmp_path / "both").read_bytes() == one_by_one != b"".join(path.read_bytes() for path in files)


def test_several_files_equal_the_joined_file(tmp_path):
    files = [write(tmp_path / name, name) for name in ("2t", "msl")]
    (tmp_path / "joined").write_bytes(b"".join(path.read_bytes() for path in files))
    correct(make_corrector("msl"), files, tmp_path / "one")
    correct(make_corrector("msl"), tmp_path / "joined", tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_correctors_of_the_same_target_need_other_lead_times(tmp_path):
    path = write(tmp_path / "2t", "2t")
    early, late = (make_corrector("2t", [lead]) for lead in (24, 48))
    assert correct({"early": early, "late": late}, path, tmp_path / "both").messages == 2 * 2 * MEMBERS
    with pytest.raises(InputError, match=r"early and all both correct 2t at .24 h; name one of them"):
        correct({"early": early, "all": make_corrector("2t")}, path, tmp_path / "never")


@pytest.mark.parametrize("inputs", [["2t"], ["2t", "msl"]])
def test_each_message_is_decoded_once_for_all_correctors(tmp_path, monkeypatch, inputs):
    """Counted where messages are decoded; the decoded messages are all that any corrector reads."""
    (tmp_path / "in").write_bytes(b"".join(write(tmp_path / name, name).read_bytes() for name in ("2t", "msl")))
    both = {name: make_corrector(name, inputs=dict.fromkeys([*inputs, name])) for name in ("2t", "msl")}
    for name in both:
        (tmp_path / "in2").write_bytes((tmp_path / "in").read_bytes())
        correct({name: both[name]}, tmp_path / "in2", tmp_path / f"{name}.out")
    decoded = []
    read = reader.read_values

    def counted(target, descriptor, path, location, cutout):
        decoded.append(location.offset)
        read(target, descriptor, path, location, cutout)

    monkeypatch.setattr(reader, "read_values", counted)
    monkeypatch.setattr(repack, "decode", lambda *_: pytest.fail("decoded again for its missing values"))
    correct(both, tmp_path / "in", tmp_path / "both")
    assert len(decoded) == len(set(decoded)) == 2 * 2 * 2 * MEMBERS
    halves = [(tmp_path / name).read_bytes() for name in ("both", "2t.out", "msl.out")]
    half = len(halves[0]) // 2
    assert halves[0] == halves[1][:half] + halves[2][half:]


def test_messages_that_occur_twice_are_corrected_twice(tmp_path):
    """Each forecast is asked for again when its fields were taken; those of the other corrector wait in the spool."""
    messages = [
        content[at : at + length]
        for content in (write(tmp_path / name, name).read_bytes() for name in ("2t", "msl"))
        for length in [len(content) // (2 * 2 * MEMBERS)]
        for at in range(0, len(content), length)
    ]
    both = {name: make_corrector(name) for name in ("2t", "msl")}
    (tmp_path / "once").write_bytes(b"".join(messages))
    (tmp_path / "twice").write_bytes(b"".join(messages[:16] * 2 + messages[16:] * 2))
    correct(both, tmp_path / "once", tmp_path / "one")
    correct(both, tmp_path / "twice", tmp_path / "two", on_problem="raw")
    one, half = (tmp_path / "one").read_bytes(), sum(map(len, messages[:16]))
    assert (tmp_path / "two").read_bytes() == one[:half] * 2 + one[half:] * 2


def test_an_explanation_that_cannot_be_written_needs_attention(tmp_path):
    """The output is whole by then, so the run does not end as if there were none."""

    def finish(_):
        raise InputError("no space left for the page")

    path = write(tmp_path / "2t", "2t")
    summary = correct_with([TorchEngine(make_corrector("2t"))], [path], tmp_path / "out", finish)
    assert summary.problems
    assert summary.notes[-1].endswith("its explanation could not be written: no space left for the page")
    correct(make_corrector("2t"), path, tmp_path / "plain")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "plain").read_bytes()
