"""The options of a job, from the command line and from the file of a site.

    options = read_job_options(defaults, {"site": "site.yaml", "gpus": 4}, ["gpus"], "train")

A site file is YAML with options of `deepweather submit`. An entry with the name of a verb holds options for this verb
only:

    account: meteo
    modules: [python/3.11]
    train: {partition: gpu, gpus: 4, time: "12:00:00"}
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data_pipeline.common.checks import check_integer, check_walltime, construct, seconds_of_walltime, size_in_bytes
from data_pipeline.common.errors import InputError

MESHES = {"train": "trainer.mesh", "evaluate": "mesh", "correct": "mesh"}
"""Verbs that run on several processes and GPUs, each with its option for the number of processes."""
VERBS = ("prepare", *MESHES, "combine", "export", "monitor")
"""Verbs that run as jobs."""
SITE_VARIABLE = "DEEPWEATHER_SITE"
OWN_DIRECTIVES = (
    "account", "array", "chdir", "cpus-per-task", "gpus-per-node", "job-name", "mem", "nodes", "ntasks",
    "ntasks-per-node", "open-mode", "output", "partition", "requeue", "signal", "time",
)  # fmt: skip
"""Options of sbatch that the job file sets itself."""
SIGNAL_DELAY = 60
"""Seconds by which Slurm may send the signal of `--signal` too early (man sbatch)."""


@dataclass(frozen=True)
class JobOptions:
    """What a job asks of the cluster, and how it starts the program; conf/submit.yaml explains each option."""

    account: str | None = None
    partition: str | None = None
    nodes: int | None = None
    cpus: int = 4
    gpus: int = 0
    memory: str | int | None = None
    time: str | None = None
    signal_lead: int = 300
    restarts: int = 20
    array_tasks: int = 1000
    array_at_once: int | None = None
    directives: Sequence[str] = ()
    modules: Sequence[str] = ()
    setup: Sequence[str] = ()
    container: str | None = None
    command: str | None = None
    job_name: str | None = None
    logs: str = "slurm"

    def __post_init__(self) -> None:
        for name in ("account", "partition", "job_name"):
            object.__setattr__(self, name, _word(name, getattr(self, name)))
        for name in ("container", "command"):
            _check_command(name, getattr(self, name))
        for name in ("directives", "modules", "setup"):
            object.__setattr__(self, name, _lines(name, getattr(self, name)))
        for name, minimum in (("cpus", 1), ("gpus", 0), ("restarts", 0), ("array_tasks", 1)):
            check_integer(name, getattr(self, name), minimum, 100_000)
        for name in ("nodes", "array_at_once"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, 100_000)
        if "/" in (self.job_name or ""):
            raise InputError(f"job_name must be a name, not a path, got {self.job_name!r}; set the folder with logs")
        check_integer("signal_lead", self.signal_lead, 1, 65_535)
        if self.memory is not None:
            size_in_bytes("memory", self.memory)
        if not _is_line(self.logs):
            raise InputError(f"logs must be the path of a folder, got {self.logs!r}")
        self._check_time()
        for directive in self.directives:
            found = re.match(r"--([a-z-]+)(=\S.*)?$", directive)
            if found is None:
                raise InputError(f"directives must be long options of sbatch, such as --qos=high, got {directive!r}")
            if found[1] in OWN_DIRECTIVES:
                raise InputError(f"directives names --{found[1]}, which the job file sets itself; leave it out")

    def _check_time(self) -> None:
        if isinstance(self.time, int):
            raise InputError(
                f"time must be [days-]hours:minutes:seconds, got {self.time}; write it in quotes, because YAML reads "
                "12:00:00 without quotes as a number"
            )
        if self.time is None:
            return
        check_walltime("time", self.time)
        if seconds_of_walltime(self.time) < self.signal_lead + SIGNAL_DELAY:
            raise InputError(
                f"time={self.time} leaves no time for the run: the signal that ends it comes signal_lead="
                f"{self.signal_lead} seconds before the limit, or up to {SIGNAL_DELAY} earlier; set a longer time or a "
                "smaller signal_lead"
            )

    @property
    def mebibytes(self) -> int | None:
        """Memory of each node in MiB, the unit of Slurm, rounded up; None for the cluster's default."""
        return None if self.memory is None else math.ceil(size_in_bytes("memory", self.memory) / 2**20)


def read_job_options(
    defaults: Mapping[str, Any], options: Mapping[str, Any], given: Collection[str], verb: str
) -> JobOptions:
    """Return the options of a job of `verb`. The command line counts most, then the site file, then the defaults.

    `defaults` and `options` have the value of each option of `deepweather submit`, `given` the names on the command
    line. In the site file, the options under the name of the verb count more than the others. The whole file is
    checked.
    """
    site = options["site"] if options["site"] is not None else os.environ.get(SITE_VARIABLE) or None
    if site is not None and not isinstance(site, str):
        raise InputError(f"site must be the path of a YAML file, got {site!r}; write a number as ./{site}")
    found = read_site(site) if site else {}
    own = {name: options[name] for name in defaults if name in given}
    values = {**defaults, **found.get("", {}), **found.get(verb, {}), **own}
    return JobOptions(**{name: value for name, value in values.items() if name != "site"})


def read_site(path: str) -> dict[str, dict[str, Any]]:
    """Return the options of a site file by verb; the options for all verbs are under "".

    Raises `InputError` for a file that cannot be read, and for a wrong option or value in any part of it.
    """
    try:
        contents = yaml.safe_load(Path(path).expanduser().read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"cannot read the site file {path} ({reason}); check site") from None
    except yaml.YAMLError as error:
        raise InputError(f"the site file {path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(contents, Mapping):
        raise InputError(f"the site file {path} must hold options of deepweather submit, one NAME: VALUE in each line")
    shared = {str(name): value for name, value in contents.items() if name not in VERBS}
    found: dict[str, dict[str, Any]] = {"": shared}
    _check(f"site file {path}", shared)
    for verb in [name for name in contents if name in VERBS]:
        place = f"site file {path}, {verb}"
        if not isinstance(contents[verb], Mapping):
            raise InputError(f"{place} must hold options of its own, such as {{gpus: 4}}, got {contents[verb]!r}")
        found[verb] = {str(name): value for name, value in contents[verb].items()}
        _check(place, shared | found[verb])
    return found


def _check(place: str, options: Mapping[str, Any]) -> None:
    """Raise an `InputError` that names the place of wrong options."""
    try:
        construct("a job", JobOptions, options)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def _word(name: str, value: object) -> str | None:
    """Return a name without white space; a number is a name, too: accounts often are numbers."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return None if value is None else str(value)
    if not isinstance(value, str) or not re.fullmatch(r"[^\s'\"\\\\]+", value):
        raise InputError(f"{name} must be a name without spaces and quotes, got {value!r}")
    return value


def _is_line(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\n" not in value


def _check_command(name: str, value: object) -> None:
    """Raise an `InputError` unless `value` is None or a command with matching quotes."""
    with suppress(ValueError):
        if value is None or (isinstance(value, str) and _is_line(value) and shlex.split(value)):
            return
    raise InputError(f"{name} must be a command of one line, got {value!r}")


def _lines(name: str, value: object) -> tuple[str, ...]:
    """Return the texts of a list."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InputError(f"{name} must be a list, such as [{value}], got {value!r}")
    for each in value:
        if not _is_line(each):
            raise InputError(f"{name} must be a list of texts, got {each!r} in it")
    return tuple(value)
