"""The verb `submit`: the job file, the options of a site, and what the job file does after each end of a run."""

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import ROOT
from correction_runs import write_members
from grib_parts import GRID
from required import STRICT, skip
from test_conf import compose_config

from conf import build
from conf.command_line import default_options
from conf.jobs.job_file import JobFile
from conf.jobs.job_options import JobOptions, read_job_options
from data_pipeline.cluster import Slurm
from data_pipeline.common.errors import InputError

VERBS = ("prepare", "train", "correct")
JOB = """#!/bin/bash -l
# Made by `deepweather submit`: deepweather train, the same command in each start.
#SBATCH --job-name=train-unet
#SBATCH --account=meteo
#SBATCH --chdir={folder}
#SBATCH --output={folder}/slurm/train-unet-%j.out
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=4
#SBATCH --mem=61036M
#SBATCH --time=12:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --qos=high

module load python/3.11 cuda
ulimit -c 0
"""


def dry_run(command, folder, *words):
    """The job file that `submit --dry-run` prints."""
    ended = command(folder, "submit", "--dry-run", *words)
    assert ended.code == 0, ended.stderr
    return ended.stdout


def directives(text):
    """The options of sbatch in a job file."""
    words = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    return dict(word.removeprefix("--").partition("=")[::2] for word in words)


def started(text):
    """The words of the command that a job file starts."""
    (line,) = (line for line in text.splitlines() if line.startswith("    srun "))
    return shlex.split(line.removeprefix('    srun "${start[@]}" '))


def test_the_job_file_has_the_options_of_the_site_and_of_the_command_line(command, tmp_path):
    (tmp_path / "site.yaml").write_text(
        "account: meteo\nmemory: 64GB\ncpus: 8\nmodules: [python/3.11, cuda]\nsetup: [ulimit -c 0]\n"
        'train: {gpus: 4, time: "12:00:00", directives: [--qos=high]}\ncorrect: {time: "01:00:00"}\n'
    )
    words = ["train", "model=mlp", "trainer.mesh=[2,4]", "run_dir=runs/unet", "max_members=null"]
    text = dry_run(command, tmp_path, "site=site.yaml", "command=deepweather", *words)
    assert text.startswith(JOB.format(folder=tmp_path))
    assert started(text) == ["deepweather", *words]
    assert not (tmp_path / "slurm").exists()
    given = dry_run(command, tmp_path, "site=site.yaml", "account=other", "gpus=0", *words)
    assert directives(given)["account"] == "other"
    assert directives(given)["nodes"] == "1"
    assert "gpus-per-node" not in directives(given)


def test_the_site_file_may_be_named_by_the_environment(command, tmp_path, monkeypatch):
    (tmp_path / "site.yaml").write_text("container: apptainer exec --nv image.sif\n")
    monkeypatch.setenv("DEEPWEATHER_SITE", str(tmp_path / "site.yaml"))
    words = ["export", "corrector=a b.safetensors", "output='x/b c\"d.onnx'"]
    text = dry_run(command, tmp_path, *words)
    assert directives(text)["job-name"] == "export-b_c_d.onnx"
    assert started(text) == ["apptainer", "exec", "--nv", "image.sif", "deepweather", *words]


@pytest.mark.parametrize("tasks", [[], [["input=a b"], ["input=c"]]], ids=["job", "array"])
def test_shellcheck_finds_nothing(tasks, tmp_path):
    if shutil.which("shellcheck") is None:
        skip("no shellcheck (Debian: shellcheck)")
    options = JobOptions(modules=["cuda"], setup=["ulimit -c 0"], container="apptainer exec it", time="01:00:00")
    (tmp_path / "job.sh").write_text(
        JobFile("correct", ["corrector=it's a b"], options, tmp_path, "n", tasks=tasks).text()
    )
    done = subprocess.run(["shellcheck", tmp_path / "job.sh"], capture_output=True, text=True)
    assert done.stdout == ""


def layout(ranks, nodes=None, gpus=0):
    found = JobFile("train", [], JobOptions(nodes=nodes, gpus=gpus), Path("/"), "n", ranks, "trainer.mesh", True)
    values = dict(line.removeprefix("--").partition("=")[::2] for line in found.directives())
    return int(values["nodes"]), int(values["ntasks-per-node"]), int(values.get("gpus-per-node", 0))


def test_ranks_share_nodes_and_gpus():
    assert [layout(1), layout(8), layout(8, 4)] == [(1, 1, 0), (1, 8, 0), (4, 2, 0)]
    assert [layout(ranks, None, 4) for ranks in (1, 8, 6)] == [(1, 1, 1), (2, 4, 4), (2, 3, 3)]
    assert layout(5, None, 4) == (5, 1, 1), "5 ranks share no number of nodes evenly but 1 and 5"
    assert layout(8, 4, 4) == (4, 2, 2)
    for nodes in (3, 16):
        with pytest.raises(InputError, match=f"nodes={nodes} cannot share the 8 ranks of trainer.mesh evenly"):
            layout(8, nodes)
    with pytest.raises(InputError, match="nodes=1 would have 8 ranks each, and 4 GPUs each"):
        layout(8, 1, 4)


def test_the_options_of_the_class_the_file_and_the_page_have_the_same_defaults():
    defaults = default_options("submit")
    assert defaults.keys() == {"site"} | asdict(JobOptions()).keys()
    assert JobOptions(**{name: value for name, value in defaults.items() if name != "site"}) == JobOptions()
    table = (ROOT / "docs/slurm.md").read_text()
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `([^`]*)` \| ", table, re.MULTILINE)
    found = {name: yaml.safe_load(default) for names, default in rows for name in re.findall(r"\w+", names)}
    assert found == default_options("submit")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("acount: a", ": a job has no option 'acount'; it has account, "),
        ("train: {gpu: 1}", ", train: a job has no option 'gpu'; it has account, "),
        ("correct: 3", ", correct must hold options of its own, such as {gpus: 4}, got 3"),
        ("time: 12:00:00", ": time must be [days-]hours:minutes:seconds, got 43200; write it in quotes"),
        ('time: "00:05:00"', ": time=00:05:00 leaves no time for the run: "),
        ("cpus: 0", ": cpus must be a whole number from 1 to 100000, got 0"),
        ("signal_lead: 70000", ": signal_lead must be a whole number from 1 to 65535, got 70000"),
        ("memory: much", ": memory must be a size such as 4GB or 16GiB, got 'much'"),
        ("account: a b", ": account must be a name without spaces and quotes, got 'a b'"),
        ("modules: cuda", ": modules must be a list, such as [cuda], got 'cuda'"),
        ('command: "it\'s"', ': command must be a command of one line, got "it\'s"'),
        ("directives: [-q high]", ": directives must be long options of sbatch, such as --qos=high"),
        ("directives: [--time=3]", ": directives names --time, which the job file sets itself; leave it"),
        ("logs: 3", ": logs must be the path of a folder, got 3"),
        ("job_name: a/b", ": job_name must be a name, not a path, got 'a/b'; set the folder with logs"),
        ("- a", " must hold options of deepweather submit, one NAME: VALUE in each line"),
        ("a: [", " is no YAML: "),
    ],
)
def test_a_wrong_site_file_is_one_sentence(text, sentence, tmp_path):
    (tmp_path / "site.yaml").write_text(text)
    with pytest.raises(InputError, match=re.escape(f"site file {tmp_path}/site.yaml{sentence}")):
        read_job_options({}, {"site": str(tmp_path / "site.yaml")}, (), "prepare")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "error: submit needs the verb that is to run: deepweather submit {prepare,train,"),
        (["trian"], "error: the verb of submit must be one of prepare, train, evaluate, correct, combine, "),
        (["train", "-m", "trainer.seed=1,2"], "error: deepweather submit train cannot pass on -m; "),
        (["train", "trainer.epoch=3"], "error: there is no option trainer.epoch; did you mean trainer.epochs?"),
        (["train", "trainer.mesh=2"], "error: trainer.mesh must be [data, spatial], [data, bands, sectors] or "),
        (["accout=3", "train"], "error: there is no option accout; did you mean account?"),
        (["site=none.yaml", "train"], "error: cannot read the site file none.yaml (No such file or directory)"),
        (["correct", "corrector=a", "output=b/"], "error: option input has no value; give it as input="),
        (["container=x", "prepare", "cluster=slurm"], "error: cluster=slurm submits the workers of Dask from inside"),
        (["logs=logs", "prepare"], "error: submit needs the command sbatch, which was not found; "),
    ],
    ids=" ".join,
)
def test_a_wrong_command_is_one_sentence(words, sentence, command, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    ended = command(tmp_path, "submit", *words)
    assert ended.code == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(sentence)
    assert list(tmp_path.iterdir()) == []


def test_workers_of_dask_get_the_options_of_the_site(command, tmp_path):
    (tmp_path / "site.yaml").write_text(
        "account: 17\npartition: cpu\ncpus: 6\nmemory: 7GB\ntime: 1-00:00:00\ndirectives: [--qos=high]\n"
    )
    words = ["prepare", "cluster=slurm", "cluster.partition=own", "cluster.jobs=2"]
    text = dry_run(command, tmp_path, "site=site.yaml", *words)
    verb, *made = started(text)[1:]
    assert build(compose_config(verb, *made, "run_dir=.").cluster) == Slurm(
        partition="own", account="17", cores=6, memory="7GB", walltime="1-00:00:00", jobs=2,
        directives=["--qos=high"], logs="./slurm",
    )  # fmt: skip
    assert started(dry_run(command, tmp_path, "site=site.yaml", "prepare"))[1:] == ["prepare"]


def write_cycles(folder, names):
    """Write a file of one field for each name, each with a start of its own."""
    folder.mkdir()
    for day, name in enumerate(names, 1):
        write_members(folder / name, {("2t", 20200100 + day, 24, 1): np.full(GRID.shape, 280.0)})


def run_job(folder, text, restarts=0, task=1, **programs):
    """Run a job file with programs in place of those of Slurm and of the system."""
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "8", "SLURM_CPUS_PER_TASK": "4",
        "SLURM_RESTART_COUNT": str(restarts), "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(task),
    }  # fmt: skip
    return subprocess.run(["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True)


def inputs_of_task(text, number, folder):
    """The input that a task of a job array gets."""
    srun = 'printf "%s\\n" "$@" | grep ^input='
    return run_job(folder, text, task=number, scontrol="", srun=srun).stdout.splitlines()


def test_correct_becomes_an_array_in_which_cycles_share_the_tasks(command, tmp_path):
    """All files of one start go to one task."""
    write_cycles(tmp_path / "in", ["a.grib", "b, c.grib", "2018"])
    shutil.copy(tmp_path / "in/a.grib", tmp_path / "in/d.grib")
    words = ["correct", "corrector=c.safetensors", "input=in", "output=out/", "mesh=[1,2]"]
    text = dry_run(command, tmp_path, "array_at_once=2", *words)
    assert directives(text)["array"] == "0-2%2"
    assert directives(text)["ntasks-per-node"] == "2"
    assert directives(text)["output"] == f"{tmp_path}/slurm/correct-out-%A_%a.out"
    assert started(text)[1:] == ["correct", "corrector=c.safetensors", "output=out/", "mesh=[1,2]", "${words[@]}"]
    found = [inputs_of_task(text, number, tmp_path) for number in range(3)]
    assert found == [["input=[in/2018]"], ["input=[in/a.grib,in/d.grib]"], ["input=['in/b, c.grib']"]]
    shared = dry_run(command, tmp_path, "array_tasks=2", *words)
    assert directives(shared)["array"] == "0-1"
    found = re.findall(r"in/(\w+)", " ".join(inputs_of_task(shared, task, tmp_path)[0] for task in range(2)))
    assert sorted(found) == ["2018", "a", "b", "d"]
    single = dry_run(command, tmp_path, *words[:3], "output=out.grib")
    assert "array" not in directives(single)
    assert started(single)[1:] == [*words[:3], "output=out.grib"]


STATES = {"running": "JobState=RUNNING Reason=None", "cancelled": "JobState=COMPLETING Reason=None",
          "time limit": "JobState=COMPLETING Reason=TimeLimit"}  # fmt: skip


@pytest.mark.parametrize(
    ("codes", "state", "restarts", "starts", "requeued", "code", "array"),
    [
        ([0], "running", 0, 1, False, 0, False),
        ([4], "running", 0, 1, False, 4, False),
        ([3], "running", 0, 1, True, 3, True),
        ([3], "cancelled", 0, 1, False, 3, False),
        ([3], "time limit", 0, 1, True, 3, False),
        ([3], "running", 20, 1, False, 3, False),
        ([3], "running", 19, 1, True, 3, False),
        ([137, 143, 3], "running", 0, 3, True, 3, False),
        ([137, 137, 137, 137], "running", 0, 3, False, 137, False),
        ([143], "cancelled", 0, 1, False, 143, False),
        ([137], "time limit", 0, 1, True, 137, False),
    ],
)
def test_the_job_starts_again_after_an_interruption(codes, state, restarts, starts, requeued, code, array, tmp_path):
    """The programs in place of Slurm's write down how they are called."""
    tasks = [["input=a"], ["input=[b, c]"]] if array else []
    text = JobFile("correct", ["seed=1"], JobOptions(command="deepweather"), tmp_path, "n", tasks=tasks).text()
    (tmp_path / "codes").write_text("\n".join(map(str, codes)) + "\n")
    done = run_job(
        tmp_path, text, restarts,
        srun='echo "$@" >>started; code=$(head -n1 codes); sed -i 1d codes; exit $code',
        scontrol=f'if [ "$1" = show ]; then echo "{STATES[state]}"; else echo "$@" >>requeued; fi',
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, "")
    own = " input=[b, c]" if array else ""
    begin = "env --block-signal=USR1,TERM deepweather correct seed=1"
    assert (tmp_path / "started").read_text().splitlines() == [begin + own] * starts
    calls = (tmp_path / "requeued").read_text() if (tmp_path / "requeued").exists() else ""
    assert calls == ("requeue 7_1\n" if array else "requeue 8\n") * requeued


def test_an_old_env_starts_the_program_too(tmp_path):
    """`env` before coreutils 8.31 refuses --block-signal: signals are then ignored until the program handles them."""
    text = JobFile("export", [], JobOptions(command="grep SigIgn /proc/self/status"), tmp_path, "n").text()
    done = run_job(
        tmp_path, text, scontrol="", srun='[ "${!#}" = export ] && exec "${@:1:$#-1}"',
        env='case $1 in --block*) exit 125;; esac\nexec /usr/bin/env "$@"',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ignored = int(done.stdout.split()[1], 16)
    assert ignored & 1 << (10 - 1)
    assert ignored & 1 << (15 - 1)


def test_where_nothing_may_be_skipped_a_missing_program_fails(monkeypatch):
    for value, kind in (("", pytest.skip.Exception), ("1", pytest.fail.Exception)):
        monkeypatch.setenv(STRICT, value)
        with pytest.raises(kind, match="no such program"):
            skip("no such program")
