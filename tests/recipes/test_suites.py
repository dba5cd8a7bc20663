"""docs/recipes/suites.md in real workflow managers: the training is killed once, and the forecast lacks members.

Nothing here runs systemd: its own program checks the units, and their command runs as often as the service starts it.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from nightly_archive import forecast, write_archive
from waiting import eventually

from data_pipeline.formats.open import open_ensemble

pytestmark = pytest.mark.long
NIGHT = "2016-05-01"
MANAGERS = {"cylc": "cylc-flow==8.5.4", "snakemake": "snakemake==9.27.1"}
DEEPWEATHER = """#!/bin/bash
run() { PYTHONPATH=%(root)s:%(root)s/scripts "$1" %(python)s %(root)s/scripts/deepweather.py "${@:2}"; }
echo "$1" >> %(folder)s/calls
[ "$1" != train ] || [ $(grep -c train %(folder)s/calls) != 1 ] && run exec "$@"
run env "$@" & pid=$!
until [ -d %(folder)s/runs ]; do sleep 0.05; kill -0 $pid || break; done
kill -KILL $(cat /proc/$pid/task/$pid/children) $pid
exit 137
"""
"""The command; the first training is killed when it has begun to write."""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder as of the page, with a forecast of 2 of 5 members and the command `deepweather`."""
    write_archive(tmp_path, [NIGHT], "recipes/rolling.md", "recipes/suites.md")
    (tmp_path / f"incoming/{NIGHT}.grib2").write_bytes(forecast(np.datetime64(NIGHT, "h"), members=2))
    command = tmp_path / "bin/deepweather"
    command.parent.mkdir()
    command.write_text(DEEPWEATHER % {"root": ROOT, "python": sys.executable, "folder": tmp_path})
    command.chmod(0o755)
    for name, value in {"WORK": tmp_path, "HOME": tmp_path, "PATH": f"{command.parent}:{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


@pytest.fixture
def manager(request, tmp_path_factory, monkeypatch):
    """A workflow manager in an environment of its own, on the path."""
    folder = tmp_path_factory.mktemp("manager")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    uv, package = Path(sys.executable).parent / "uv", MANAGERS[request.param]
    pip = [folder / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", package]
    quick = [uv, "pip", "install", "-q", "--python", folder / "bin/python", package]
    if not (uv.exists() and run(*quick).returncode == 0) and run(*pip).returncode:
        pytest.skip(f"{package} cannot be installed")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{folder / 'bin'}")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def replace(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def check_night(work):
    """Both trainings began, the output holds the raw members, and the charts count the night."""
    assert (work / "calls").read_text().split() == ["train", "train", "correct", "monitor"]
    record = json.loads((work / f"corrected/{NIGHT}.grib2.json").read_text())
    assert record["counts"]["forecasts"] == {"raw": 1}
    raw, written = (open_ensemble(work / name / f"{NIGHT}.grib2") for name in ("incoming", "corrected"))
    assert abs(raw - written)["2t"].max() < 0.01
    assert len(json.loads((work / "monitor/state.json").read_text())["verified"]) == 1


def free_port():
    """A free port; ecFlow takes none of the dynamic ports, which the system would choose."""
    for port in range(20_000 + os.getpid() % 10_000, 49_152):
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("localhost", port))
            return port
    raise AssertionError("no port is free")


def test_ecflow(work, monkeypatch):
    if not shutil.which("ecflow_server"):
        pytest.skip("there is no ecFlow; Debian: apt-get install ecflow-server ecflow-client")
    replace(work / "suite/night.def", "    time 05:30\n", "")
    replace(work / "suite/night.def", "20301231", NIGHT.replace("-", ""))
    for name, value in {"ECF_HOME": work, "ECF_HOST": "localhost", "ECF_PORT": free_port()}.items():
        monkeypatch.setenv(name, str(value))
    server = subprocess.Popen(["ecflow_server", "--ecfinterval", "1"], stdout=subprocess.DEVNULL)
    try:
        assert eventually(lambda: server.poll() is not None or run("ecflow_client", "--ping").returncode == 0)
        assert server.poll() is None, "\n".join(path.read_text() for path in work.glob("*.ecf.log"))
        assert run("bash", "suite/load.sh", cwd=work).returncode == 0
        ended = "suite night # begun:1 state:complete", "try:2 state:aborted"
        assert eventually(lambda: any(state in run("ecflow_client", "--get_state=/night").stdout for state in ended))
        state = run("ecflow_client", "--get_state=/night").stdout
    finally:
        server.kill()
        server.wait()
    assert "task train # try:2 state:complete" in state, state
    correct = state.partition("task correct")[2].partition("task monitor")[0]
    assert 'label attention "" # "corrected/2016-05-01.grib2: 1 of 1 forecast replaced by a fallback' in correct
    assert "event attention # set" in correct
    assert state.count("# set") == 1
    check_night(work)


@pytest.mark.parametrize("manager", ["cylc"], indirect=True)
def test_cylc(work, manager):
    # `cylc vip` needs rsync; jobs have a login shell.
    (work / ".bash_profile").write_text(f"export PATH={os.environ['PATH']}\n")
    flow = Path(shutil.copytree(work / "suite", work / "cylc-run/night")) / "flow.cylc"
    replace(flow, "WORK = /srv/night", f"WORK = {work}")
    replace(flow, "PT1M", "PT1S")
    ended = run("cylc", "play", "night", "--no-detach", f"--final-cycle-point={NIGHT.replace('-', '')}T0000Z")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "retrying in PT1S" in ended.stderr + ended.stdout
    assert "WARNING - [20160501T0000Z/correct/01:running] (received)corrected/2016-05-01.grib2: 1 of 1 forecast" in (
        ended.stdout + ended.stderr
    )
    check_night(work)


@pytest.mark.parametrize("manager", ["snakemake"], indirect=True)
def test_snakemake(work, manager):
    ended = run("snakemake", "--snakefile", "suite/Snakefile", "--cores", "1", "--config", f"days={NIGHT}", cwd=work)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (work / f"monitor/{NIGHT}.done").exists()
    check_night(work)


def test_systemd(work):
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd-analyze; Debian: apt-get install systemd")
    units = [work / f"suite/night.{kind}" for kind in ("service", "timer")]
    service = units[0].read_text()
    units[0].write_text(service.replace("/srv/night", str(work)))
    checked = run("systemd-analyze", "verify", *units)
    assert checked.returncode == 0, checked.stderr
    program = re.search(r"^ExecStart=(.*)$", units[0].read_text(), re.MULTILINE)[1]
    assert "Restart=on-failure" in service
    assert [run(program, NIGHT).returncode for _ in range(2)] == [137, 0]
    check_night(work)


def test_slurm(work, slurm):
    exported = ",".join(f"{name}={os.environ[name]}" for name in ("PATH", "HOME", "WORK"))
    options = ["--array=0-0%1", "--cpus-per-task=1", f"--export=ALL,{exported},FIRST={NIGHT}", "--output=night.out"]
    ended = slurm.wait(slurm.submit(work / "suite/night.sbatch", *options, cwd=work))
    assert ended["JobState"] == "COMPLETED", (work / "night.out").read_text()
    check_night(work)
