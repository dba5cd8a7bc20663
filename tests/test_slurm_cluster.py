"""The Slurm cluster of the tests: jobs run on its nodes, are requeued, and see signals."""

from pathlib import Path

import pytest
import slurm_cluster
from required import STRICT

JOB = """#!/bin/bash
#SBATCH --requeue --open-mode=append --output=job.log
echo "start ${SLURM_RESTART_COUNT:-0}"
srun --label sh -c 'echo $SLURMD_NODENAME $SLURM_PROCID'
if [ -z "${SLURM_RESTART_COUNT:-}" ]; then scontrol requeue "$SLURM_JOB_ID"; sleep 60; fi
"""


@pytest.mark.long
def test_a_job_of_two_nodes_is_requeued(slurm, tmp_path: Path):
    (tmp_path / "job.sh").write_text(JOB)
    job = slurm.submit(tmp_path / "job.sh", "--nodes=2", "--ntasks=2", cwd=tmp_path)
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1")
    lines = (tmp_path / "job.log").read_text().splitlines()
    assert [line for line in lines if line.startswith("start")] == ["start 0", "start 1"]
    assert sorted(line for line in lines if line[0] in "01") == ["0: node1 0", "0: node1 0", "1: node2 1", "1: node2 1"]


def test_a_signal_reaches_the_step(slurm, tmp_path: Path):
    (tmp_path / "job.sh").write_text(
        '#!/bin/bash\n#SBATCH --output=job.log\nsrun bash -c \'trap "echo got it; exit 3" USR1; echo ready; '
        "while :; do sleep 0.1; done'\nexit $?\n"
    )
    job = slurm.submit(tmp_path / "job.sh", "--ntasks=1", cwd=tmp_path)
    slurm.wait(job, "RUNNING")
    log = tmp_path / "job.log"
    for _ in range(600):
        if log.exists() and "ready" in log.read_text():
            break
        slurm.run("sleep", "0.1")
    slurm.run("scancel", "--signal=USR1", job)
    assert slurm.wait(job)["ExitCode"] == "3:0"
    assert "got it" in log.read_text()


def test_a_failed_command_of_slurm_fails_the_test(slurm):
    with pytest.raises(AssertionError, match="unrecognized option"):
        slurm.run("sbatch", "--no-such-option")


def test_where_nothing_may_be_skipped_a_missing_program_fails(monkeypatch):
    monkeypatch.setattr(slurm_cluster, "PROGRAMS", ("no-such-program",))
    monkeypatch.delenv(STRICT, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no no-such-program: install Slurm"):
        slurm_cluster.skip_without_slurm()
    monkeypatch.setenv(STRICT, "1")
    with pytest.raises(pytest.fail.Exception, match="no no-such-program: install Slurm"):
        slurm_cluster.skip_without_slurm()
