"""The checked options of an evaluation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import has_magic
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from data_pipeline.archive import Archive
from data_pipeline.cluster import Cluster
from data_pipeline.common.checks import check_between, check_choice, check_integer
from data_pipeline.common.errors import InputError
from data_pipeline.common.fetching import local_file
from data_pipeline.common.files import URL, expand_paths
from data_pipeline.common.identity import fingerprint_of, sha256_of
from data_pipeline.dates import Dates
from data_pipeline.protocols import DataSource, Fields
from data_pipeline.sources.forecast_file import ForecastFile
from data_pipeline.split import Split
from data_pipeline.store import choose_source
from data_pipeline.task import Task
from evaluation.forecasters.corrector_checks import check_name
from evaluation.forecasters.file_forecasts import parse_forecasts
from evaluation.forecasters.references import check_references
from evaluation.regions import Region, check_regions, mask_hashes
from evaluation.run.member_counts import check_member_counts
from evaluation.run.shown_corrector import check_shown
from evaluation.run.training_runs import Runs, group_runs, name_runs, with_first_runs
from evaluation.scoring.score_options import ScoreChoice, check_methods
from evaluation.scoring.scoring import check_workers
from models.device import choose_device
from models.members.methods import METHODS
from models.members.options import QUANTILE_LEVELS, check_correlates
from models.members.past import Past
from models.parallel.single_process import Processes


@dataclass(frozen=True)
class Plan:
    """The `options` of an evaluation, and what was made of them."""

    options: Mapping[str, Any]
    archive: Archive
    split: Split
    task: Task
    cluster: Cluster
    dates: Dates
    paths: Mapping[str, Sequence[Path]]
    member_counts: tuple[int, ...]
    references: Sequence[str]
    regions: Sequence[Region]
    files: Mapping[str, ForecastFile]
    choice: ScoreChoice
    device: torch.device
    methods: tuple[str, ...]

    @classmethod
    def of(
        cls, options: Mapping[str, Any], archive: Archive, split: Split, task: Task, cluster: Cluster, mesh: Processes
    ) -> Plan:
        """Return what the options ask for; refuse wrong options, and options that exclude others."""
        dates, paths = split.dates(options["split"], task.lead_times), corrector_paths(options["correctors"])
        member_counts = check_member_counts(options["member_counts"])
        references = check_references(options["references"])
        regions, files = check_regions(options["regions"]), parse_forecasts(options["forecasts"], paths)
        check_shown(options["shown_corrector"], {*with_first_runs(paths, group_runs(list(paths))), *files})
        if files and member_counts:
            raise InputError(
                "member_counts needs members of all models, but forecasts has files; leave out one of them"
            )
        if member_counts and (groups := [str(one) for one in task.formulas if one.members]):
            raise InputError(
                f"member_counts leaves out members, and {groups[0]} describes a group of all; leave out one"
            )
        check_choice("quantile_levels", options["quantile_levels"], QUANTILE_LEVELS)
        check_between("emos_minutes", options["emos_minutes"], 0, math.inf)
        check_integer("batch_size", options["batch_size"], 1)
        check_integer("memory_bytes", options["memory_bytes"], 1)
        check_integer("seed", options["seed"], 0)
        device, choice = choose_device(options["device"], mesh), ScoreChoice.parse(options, task)
        methods = check_methods(options["members"])
        for method in methods:
            check_correlates(method, task)
            if METHODS[method].correlates and options["split"] == "held_out":
                raise InputError(
                    f"members={method} learns from the errors of all past forecasts, so it cannot be scored with "
                    "split=held_out; leave it out, or choose another split"
                )
        if options["write_forecasts"] and METHODS[methods[0]].correlates:
            raise InputError(
                f"write_forecasts writes one forecast after the other, and members={methods[0]} needs all lead times "
                "of a start; name another method first"
            )
        check_workers(cluster, mesh, device)
        return cls(
            options, archive, split, task, cluster, dates, paths, member_counts, references, regions, files, choice,
            device, methods,
        )  # fmt: skip

    def open_past(self) -> tuple[Past | None, Fields | None]:
        """Return past weather of the training dates, and the raw members of all forecasts, for methods that read it."""
        if not any(METHODS[method].reads for method in self.methods):
            return None, None
        task = self.task
        # All folds together: starts near a forecast are never chosen for it.
        folds = self.options["split"] == "held_out" and self.split.fold is None
        training = self.dates if folds else self.split.dates("train", task.lead_times)
        past = Past.of(self.source(training), task, training)
        return past, self.source(self.dates).ensemble_fields(task.targets, task.lead_times)

    @property
    def runs(self) -> Runs:
        """The names of the runs of each model with several training runs."""
        return group_runs(list(self.paths))

    @property
    def run_dir(self) -> Path:
        """The folder of all results."""
        return Path(self.options["run_dir"])

    @property
    def folders(self) -> list[Path]:
        """The folder of each target's results."""
        return target_folders(self.run_dir, self.task)

    def source(self, dates: Dates) -> DataSource:
        """Return the files or the store with forecasts of some dates."""
        return choose_source(self.archive, self.options["data"]["store"], dates)

    def fingerprint(self) -> dict[str, Any]:
        """Return fingerprints of everything that the scores depend on: options, data, corrector and forecast files."""
        beside = ["run_dir", "correctors", "forecasts", "write_forecasts", "mesh", "member_counts"]
        beside += ["device", "cluster", "batch_size", "memory_bytes"]  # the scores do not depend on them
        options = {name: value for name, value in self.options.items() if name not in beside}
        found: dict[str, Any] = {"sizes": list(self.member_counts)} if self.member_counts else {}
        if self.files:
            found["forecasts"] = {name: file.fingerprint for name, file in self.files.items()}
        return {
            **found,
            "options": fingerprint_of(options),
            "data": self.source(self.dates).fingerprint,
            "deepweather": version("deepweather"),
            "correctors": {
                name: " ".join(sha256_of(path)[:16] for path in files) for name, files in self.paths.items()
            },
            **mask_hashes(self.regions),
            **self.choice.inputs,
        }


def corrector_paths(given: object) -> dict[str, list[Path]]:
    """Return the corrector files by name; a list or a pattern gives the correctors of several folds.

    The runs of a model with several training runs have names of their own.
    """
    given = given or {}
    if not isinstance(given, dict):
        raise InputError(f"correctors must be {{NAME: path, ...}}, got {given!r}")
    for name in given:
        check_name(str(name))
    found = {}
    for name, path in name_runs(given).items():
        patterns = path if isinstance(path, list) else [path]
        if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
            raise InputError(f"correctors.{name} must be a path, or a list of paths of all folds, got {path!r}")
        found[str(name)] = [
            file
            for pattern in patterns
            for file in (
                expand_paths(pattern) if has_magic(pattern) and not URL.match(pattern) else [local_file(pattern)]
            )
        ]
    return found


def target_folders(run_dir: Path, task: Task) -> list[Path]:
    """Return the folder of each target's results: `run_dir` itself if there is a single target."""
    if len(task.targets) == 1:
        return [run_dir]
    return [run_dir / re.sub("[:-]", "_", str(target).replace("@", "")) for target in task.targets]
