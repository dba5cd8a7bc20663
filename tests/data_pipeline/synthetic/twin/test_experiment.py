"""The experiment for its users: options, progress, interruption, and equal files from equal options."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from multiprocessing import util
from pathlib import Path

import eccodes
import pytest
from waiting import eventually

from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.files import lock_folder
from data_pipeline.grid import Grid
from data_pipeline.synthetic.twin import Twin
from data_pipeline.synthetic.twin.grib_writer import TwinWriter
from data_pipeline.synthetic.twin.processes import run_in_processes

PREPARE = """
import sys
from data_pipeline.common.errors import InterruptedRunError
from data_pipeline.synthetic.twin import Twin
try:
    Twin(sys.argv[1], dates=4, workers=2).prepare()
except InterruptedRunError as error:
    sys.exit(f"error: {error}")
"""


def prepare_in_another_process(folder):
    """Prepare in another process, which leads a new process group."""
    command = [sys.executable, "-c", PREPARE, folder]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def group_is_gone(process):
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != ".lock"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rows": 2}, "rows must be a whole number from 3"),
        ({"columns": 64.0}, "columns must be a whole number"),
        ({"rows": 5000, "columns": 5000}, "do not fit into a GRIB1 message"),
        ({"first_year": 2018}, "last_year must be a whole number from 2018"),
        ({"dates": 3}, "dates must be even"),
        ({"dates": 106}, "dates must be a whole number from 2 to 104"),
        ({"members": 1}, "members must be a whole number from 2"),
        ({"last_year": 2010}, "oracle_years must be a list of years from 1998 to 2010"),
        ({"difficulty": "hard"}, "difficulty must be a number from 0 to 2"),
        ({"workers": 0}, "workers must be a whole number"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, sentence):
    with pytest.raises(InputError, match=sentence):
        Twin(tmp_path, **options)


def test_the_plan_describes_the_files(tiny):
    files = content(Path(tiny.path))
    count = 0
    for name in files.keys() - {"twin.json"}:
        with (Path(tiny.path) / name).open("rb") as stream:
            count += eccodes.codes_count_in_file(stream)
    size = sum(map(len, files.values()))
    plan = tiny.plan()
    assert f"{len(files)} files, {count:,} GRIB messages" in plan
    promised = float(re.search(r"([\d.]+) MB in", plan)[1])
    assert promised == pytest.approx(size / 1e6, rel=0.05)
    assert "2 of 2 start pairs exist" in plan
    assert json.loads(files["twin.json"])["members"] == 5


def test_other_options_in_the_same_folder_and_a_foreign_twin_json_are_refused(tiny, tmp_path):
    with pytest.raises(InputError, match=r"were made with members=5, not 6; choose another data.path"):
        replace(tiny, members=6).prepare()
    (tmp_path / "twin.json").write_text("[1, 2")
    with pytest.raises(InputError, match="does not hold the options of a twin experiment"):
        Twin(tmp_path).prepare()
    assert (tmp_path / "twin.json").read_text() == "[1, 2"


def test_missing_starts_are_written_and_do_not_depend_on_the_number_of_workers(tiny, tmp_path, capsys):
    shutil.copytree(tiny.path, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.glob("*.20180712"):
        path.unlink()
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.2018*")}
    (tmp_path / ".output.pl.20180712.1.partial").write_bytes(b"GRIB")
    replace(tiny, path=tmp_path, workers=1).prepare()
    assert "1 of 2 start pairs to write, 1 at a time" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in written} == written, "a start was integrated again"
    assert content(tmp_path) == content(Path(tiny.path))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_no_worker_outlives_an_interrupted_run(tmp_path, number):
    process = prepare_in_another_process(tmp_path)
    assert "2 of 2 start pairs to write" in process.stdout.readline()
    # Workers are starting, which is the most fragile moment.
    assert eventually(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text)
    # A terminal signals all processes of the group.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    _, errors = process.communicate(timeout=900)
    if number != signal.SIGKILL:
        assert process.returncode == 1
        assert errors == "error: interrupted after 0 of 2 start pairs; run the same command again to resume\n"
    assert eventually(lambda: group_is_gone(process))
    assert sorted(file.name for file in tmp_path.iterdir() if file.name != "static") == [".lock", "twin.json"]


def test_an_interruption_while_a_worker_starts_is_silent(monkeypatch, capfd):
    """The signal arrives when the worker's process exists and its data have not been sent."""
    spawn, started = util.spawnv_passfds, []

    def spawn_and_interrupt(*arguments):
        started.append(int(spawn(*arguments)))
        os.kill(os.getpid(), signal.SIGTERM)
        return started[0]

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        assert list(run_in_processes(print, [1], 1)) == [1]  # starts the resource tracker, too
        monkeypatch.setattr(util, "spawnv_passfds", spawn_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(run_in_processes(print, [1], 1))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert multiprocessing.active_children() == []
    with pytest.raises(ChildProcessError):  # the worker has ended already
        os.waitpid(started[0], 0)
    assert "Traceback" not in capfd.readouterr().err


class Failing(Twin):
    """A twin whose workers write static fields only."""

    def _write(self, pair):
        TwinWriter(self.folder, Grid.regular(self.rows, self.columns)).write_static()


def test_failures_of_workers_are_reported(small_disk):
    with pytest.raises(InputError, match="worker process was killed"):
        list(run_in_processes(os._exit, [1], 1))
    with pytest.raises(ValueError, match="invalid literal"):
        list(run_in_processes(int, ["our fault"], 1))
    (small_disk / "ballast").write_bytes(bytes(1024 * 1024 - 9_000))
    with pytest.raises(InterruptedRunError, match=r"no space left .*static.*; 0 of 1 start pairs are done; .* again"):
        Failing(small_disk, dates=2).prepare()
    assert not list(small_disk.glob(".*.partial"))


def test_a_second_run_at_the_same_time_is_refused(tiny, tmp_path):
    with lock_folder(tmp_path), pytest.raises(InputError, match="another run is writing to"):
        replace(tiny, path=tmp_path).prepare()
