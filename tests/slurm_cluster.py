"""A Slurm cluster on this machine, for tests of jobs: `with SlurmCluster(folder) as slurm: slurm.submit(script)`.

All daemons, sockets, ports and files belong to this cluster alone, so that several clusters can run beside each other
and beside an installed one. Nodes are names for this machine. It needs root, and the programs of Debian's slurm-wlm.
"""

import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

from required import skip

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
PATIENCE = 900
"""Seconds after which a job that does not end counts as hanging."""
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY"}

CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
FirstJobId={controller}
SlurmdPort={daemon}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MessageTimeout=60
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=200000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=ci Nodes=ALL Default=YES OverSubscribe=FORCE:4 MaxTime=INFINITE State=UP PreemptMode=OFF
PartitionName=idle Nodes=ALL PriorityTier=1 GraceTime=120 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=9 MaxTime=INFINITE State=UP PreemptMode=OFF
"""


class SlurmCluster:
    """A running cluster with `nodes` nodes of `cpus` processors each; `folder` holds its state and logs.

    Jobs of the partition `idle` make way for jobs of the partition `urgent`. `environment` are the variables with which
    `sbatch`, `srun` and this project's commands reach the cluster.
    """

    def __init__(self, folder, nodes=1, cpus=8):
        self.folder, self._count, self._cpus = Path(folder), nodes, cpus
        self.names = [f"node{number}" for number in range(1, nodes + 1)]
        self._daemons = []
        # A job's own variables, such as SLURM_JOB_ID, would make a command think that it runs inside a job.
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        # Names of nodes have no address, so ranks of a job meet at this machine's.
        meeting = {"MASTER_ADDR": "127.0.0.1"}
        self.environment = outside | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": PATH} | meeting

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        # The port at which the ranks of a job meet follows from the number of the job. So each cluster has numbers of
        # its own (FirstJobId): jobs of two clusters may run at the same time.
        ports = _free_ports(1 + self._count)
        text = CONFIGURATION.format(folder=self.folder, host=socket.gethostname(), controller=ports[0], daemon=ports[1])
        for name, port in zip(self.names, ports[1:], strict=True):
            text += (
                f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} "
                f"CPUs={self._cpus} RealMemory=16000 State=UNKNOWN\n"
            )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "state").mkdir(exist_ok=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        try:
            names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            options = [f"--{option}={self.folder}/munge.{name}" for option, name in names.items()]
            # --force: the folders above a temporary folder are not as safe as munged wishes.
            self._start("munged", "--foreground", "--force", *options)
            self.wait_for((self.folder / "munge.socket").exists, "munged")
            self._start("slurmctld", "-D")
            for name in self.names:
                self._start("slurmd", "-D", "-N", name)
            self.wait_for(self._all_idle, "the nodes")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run(["scancel", "--full", "--user=root"], env=self.environment, check=False, capture_output=True)
        time.sleep(0.5)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def run(self, *command, check=True, **options):
        """Run a command of Slurm, or any other that reaches this cluster; return its standard output."""
        found = subprocess.run(
            list(map(str, command)), env=self.environment, check=False, capture_output=True, text=True, **options
        )
        assert not check or found.returncode == 0, f"{command}: {found.returncode}\n{found.stdout}\n{found.stderr}"
        return found.stdout

    def submit(self, script, *options, cwd=None):
        """Submit a job script; return the number of the job."""
        return int(self.run("sbatch", "--parsable", *options, script, cwd=cwd).strip().partition(";")[0])

    def job(self, number):
        """Return the fields of a job, as `scontrol show job` names them."""
        lines = self.run("scontrol", "--oneliner", "show", "job", number)
        return dict(word.split("=", 1) for word in lines.splitlines()[0].split() if "=" in word)

    def wait_for_text(self, path, text, times=1):
        """Wait until the output of a job, to which each start appends, matches a pattern so many times."""
        self.wait_for(
            lambda: path.exists() and len(re.findall(text, path.read_text(), re.MULTILINE)) >= times,
            f"{text!r} in {path}", PATIENCE,
        )  # fmt: skip

    def wait(self, number, states=ENDED, patience=PATIENCE):
        """Wait until a job has one of some states; return its fields.

        A requeued job starts again after 11 s, when its credential has expired. An earlier start sometimes fails.
        """
        states = {states} if isinstance(states, str) else set(states)
        until = time.monotonic() + patience
        while (found := self.job(number))["JobState"] not in states:
            assert time.monotonic() < until, f"job {number} is {found['JobState']}, not {' or '.join(sorted(states))}"
            time.sleep(0.2)
        return found

    def _all_idle(self):
        # A node has a line for each of its partitions.
        found = {*self.run("sinfo", "--noheader", "--Node", "--format=%N %t", check=False).splitlines()}
        return found == {f"{name} idle" for name in self.names}

    def _start(self, program, *arguments):
        log = (self.folder / f"{program}.out").open("ab")
        found = shutil.which(program, path=PATH)
        self._daemons.append(
            subprocess.Popen([found, *arguments], env=self.environment, stdout=log, stderr=log, start_new_session=True)
        )

    def wait_for(self, ready, what, patience=60):
        """Wait until `ready()` is true."""
        until = time.monotonic() + patience
        while not ready():
            dead = [daemon.args[0] for daemon in self._daemons if daemon.poll() is not None]
            logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
            assert not dead, f"{dead} ended\n{logs}"
            assert time.monotonic() < until, f"no {what} in {patience} s\n{logs}"
            time.sleep(0.1)


def skip_without_slurm():
    """Skip a test, or fail in CI, where Slurm is not installed or where this user must not start its daemons."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if missing:
        skip(f"no {' and no '.join(missing)}: install Slurm (Debian: slurm-wlm, munge)")
    if os.geteuid() != 0:
        skip("starting the daemons of Slurm needs root")


def _free_ports(count):
    """Return ports that nothing uses now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
