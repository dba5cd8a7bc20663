"""The Slurm cluster of the tests: a signal reaches a job, and a machine without Slurm skips its tests or fails."""

from pathlib import Path

import pytest
import slurm_cluster
from required import STRICT

JOB = """#!/bin/bash
#SBATCH --output=job.log
srun bash -c 'trap "echo got it; exit 3" USR1; echo ready; while :; do sleep 0.1; done'
exit $?
"""


def test_a_signal_reaches_the_step(slurm, tmp_path: Path):
    (tmp_path / "job.sh").write_text(JOB)
    job = slurm.submit(tmp_path / "job.sh", "--ntasks=1", cwd=tmp_path)
    slurm.wait(job, "RUNNING")
    log = tmp_path / "job.log"
    slurm.wait_for_text(log, "ready")
    slurm.run("scancel", "--signal=USR1", job)
    assert slurm.wait(job)["ExitCode"] == "3:0"
    assert "got it" in log.read_text()


def test_where_nothing_may_be_skipped_a_missing_program_fails(monkeypatch):
    monkeypatch.setattr(slurm_cluster, "PROGRAMS", ("no-such-program",))
    monkeypatch.delenv(STRICT, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no no-such-program: install Slurm"):
        slurm_cluster.skip_without_slurm()
    monkeypatch.setenv(STRICT, "1")
    with pytest.raises(pytest.fail.Exception, match="no no-such-program: install Slurm"):
        slurm_cluster.skip_without_slurm()
