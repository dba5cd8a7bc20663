"""The experiment for its users: options, progress, interruption, and equal files from equal options."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from multiprocessing import util
from pathlib import Path

import eccodes
import pytest

from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.synthetic.twin import Twin
from data_pipeline.synthetic.twin.processes import run_in_processes
from data_pipeline.synthetic.twin.start_pairs import StartPair

PREPARE = """
import json, sys
from data_pipeline.common.errors import InterruptedRunError
from data_pipeline.synthetic.twin import Twin
try:
    Twin(**json.loads(sys.argv[1])).prepare()
except InterruptedRunError as error:
    sys.exit(f"error: {error}")
"""


def prepare_in_another_process(twin: Twin) -> subprocess.Popen:
    """Prepare in another process, which leads a new process group."""
    options = json.dumps(asdict(twin) | {"path": str(twin.path)})
    command = [sys.executable, "-c", PREPARE, options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.02)


def group_is_gone(process: subprocess.Popen) -> bool:
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def partials(folder: Path) -> list[Path]:
    return list(folder.glob(".*.partial"))


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != ".lock"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rows": 2}, "rows must be a whole number from 3"),
        ({"rows": "33"}, "rows must be a whole number"),
        ({"columns": 64.0}, "columns must be a whole number"),
        ({"rows": 5000, "columns": 5000}, "do not fit into a GRIB1 message"),
        ({"first_year": 2018}, "last_year must be a whole number from 2018"),
        ({"dates": 3}, "dates must be even"),
        ({"dates": 106}, "dates must be a whole number from 2 to 104"),
        ({"members": 1}, "members must be a whole number from 2"),
        ({"oracle_years": (2018,)}, "oracle_years must be a list of years from 1998 to 2017"),
        ({"oracle_years": 2016}, "oracle_years must be a list"),
        ({"last_year": 2010}, "oracle_years must be a list of years from 1998 to 2010"),
        ({"difficulty": -0.1}, "difficulty must be a number from 0 to 2"),
        ({"difficulty": "hard"}, "difficulty must be a number from 0 to 2"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"workers": 0}, "workers must be a whole number"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Twin(tmp_path, **options)


def test_the_plan_describes_the_files(tiny: Twin) -> None:
    files = content(Path(tiny.path))
    count = 0
    for name in files.keys() - {"twin.json"}:
        with (Path(tiny.path) / name).open("rb") as stream:
            count += eccodes.codes_count_in_file(stream)
    size = sum(map(len, files.values()))
    plan = tiny.plan()
    assert f"{len(files)} files, {count:,} GRIB messages" in plan
    promised = float(re.search(r"([\d.]+) MB in", plan)[1])  # type: ignore[index]
    assert promised == pytest.approx(size / 1e6, rel=0.05)
    assert "2 of 2 start pairs exist" in plan
    assert json.loads(files["twin.json"])["members"] == 4


def test_a_second_run_writes_nothing(tiny: Twin, capsys: pytest.CaptureFixture) -> None:
    folder = Path(tiny.path)
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    tiny.prepare()
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert "all 2 start pairs are in" in capsys.readouterr().out


def test_other_options_are_refused_in_the_same_folder(tiny: Twin) -> None:
    with pytest.raises(InputError, match=r"were made with members=4, not 5; choose another data.path"):
        replace(tiny, members=5).prepare()
    with pytest.raises(InputError, match=r"were made with difficulty=1.0, not 0.5"):
        replace(tiny, difficulty=0.5).prepare()


def test_a_foreign_twin_json_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "twin.json").write_text("[1, 2")
    with pytest.raises(InputError, match="does not hold the options of a twin experiment"):
        Twin(tmp_path).prepare()
    assert (tmp_path / "twin.json").read_text() == "[1, 2"


def test_files_do_not_depend_on_a_kill_or_the_number_of_workers(
    tiny: Twin, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    twin = replace(tiny, path=tmp_path, workers=1)
    process = prepare_in_another_process(twin)
    wait_for((tmp_path / "output.pl.20180108").exists)  # the last of its start
    process.kill()
    process.communicate()
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.20180108")}
    assert not (tmp_path / "output.pl.20180111").exists(), "the process was killed within a start pair"
    wait_for(lambda: group_is_gone(process))
    assert not (tmp_path / "output.pl.20180712").exists()
    (tmp_path / ".output.pl.20180712.1.partial").write_bytes(b"GRIB")
    twin.prepare()
    assert "start pairs to write, 1 at a time" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in written} == written, "a start was integrated again"
    assert content(tmp_path) == content(Path(tiny.path))


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_an_interrupted_run_names_the_command_to_continue(tiny: Twin, tmp_path: Path, how: str) -> None:
    process = prepare_in_another_process(replace(tiny, path=tmp_path))
    assert process.stdout is not None
    assert "2 of 2 start pairs to write" in process.stdout.readline()
    # Workers are starting, which is the most fragile moment.
    time.sleep(0.1)
    if how == "Ctrl-C":
        # A terminal signals all processes of the group.
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 1
    assert errors == "error: interrupted after 0 of 2 start pairs; run the same command again to resume\n"
    wait_for(lambda: group_is_gone(process))
    assert sorted(file.name for file in tmp_path.iterdir() if file.name != "static") == [".lock", "twin.json"]


def test_an_interruption_while_a_worker_starts_is_silent(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """The signal arrives when the worker's process exists and its data have not been sent."""
    spawn, started = util.spawnv_passfds, []

    def spawn_and_interrupt(*arguments: object) -> int:
        started.append(int(spawn(*arguments)))
        os.kill(os.getpid(), signal.SIGTERM)
        return started[0]

    def interrupt(*_: object) -> None:
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


class FullDisk(Twin):
    """A twin whose workers find a full disk."""

    def _write(self, pair: StartPair) -> None:
        raise InputError(f"no space left on the device while writing {self.path}/output.pl.20180108")


class Killed(Twin):
    """A twin whose workers are killed."""

    def _write(self, pair: StartPair) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Broken(Twin):
    """A twin with a bug."""

    def _write(self, pair: StartPair) -> None:
        raise ZeroDivisionError("our fault")


def test_a_full_disk_in_a_worker_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InterruptedRunError, match=r"no space left .*0108; 0 of 8 start pairs are done; .* again"):
        FullDisk(tmp_path).prepare()


def test_a_killed_worker_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(InterruptedRunError, match="worker process was killed"):
        Killed(tmp_path, workers=2).prepare()


def test_a_bug_in_a_worker_is_not_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="our fault"):
        Broken(tmp_path).prepare()


def test_a_real_full_disk_leaves_no_partial_file(tiny: Twin, tmp_path: Path) -> None:
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("may not mount a small file system here")
    try:
        with pytest.raises(InterruptedRunError, match="no space left on the device while writing"):
            replace(tiny, path=tmp_path).prepare()
        assert not partials(tmp_path)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_second_run_at_the_same_time_is_refused(tiny: Twin, tmp_path: Path) -> None:
    twin = replace(tiny, path=tmp_path)
    process = prepare_in_another_process(twin)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(InputError, match="another run is writing to"):
        twin.prepare()
    process.terminate()
    process.communicate(timeout=900)


def test_the_package_is_imported_without_torch() -> None:
    """A run without work does not load PyTorch."""
    code = "import sys, data_pipeline.synthetic.twin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
