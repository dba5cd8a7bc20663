"""The verb `compare`: one page and one table over several runs of `evaluate`, or over several runs of `train`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from omegaconf import DictConfig

from conf import plain, verb
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_write
from data_pipeline.common.progress import watched
from evaluation.report.comparison_page import comparison_page, plain_comparison
from evaluation.report.run_table_page import run_table_page
from evaluation.run_comparison import RunComparison, RunScores, run_names, write_comparison
from evaluation.run_table import RunTable, TrainedRun, is_run_folder, plain_run_table, write_run_table
from evaluation.scoreboard import SCORES_FORMAT


@verb("compare")
def main(cfg: DictConfig) -> None:
    """Read the runs, compare them, write page and table, print the table."""
    if not isinstance(cfg.run_dir, str):
        raise InputError(f"run_dir must be the path of a folder, got {cfg.run_dir!r}")
    given, folder = runs_of(plain(cfg)["runs"]), Path(cfg.run_dir)
    trained, without = training_runs(given)
    if len(trained or given) < 2:
        raise InputError(f"compare needs two runs or more, got only {next(iter((trained or given).values()))}")
    if trained:
        table = RunTable.of(
            [TrainedRun.load(*run) for run in watched(trained.items(), "reading: run", len(trained))], without
        )
        write_run_table(folder / "compare.csv", table)
        page, text = run_table_page(table), plain_run_table(table)
    else:
        found = watched(given.items(), "reading: run", len(given))
        comparison = RunComparison.of([RunScores.load(name, path, SCORES_FORMAT) for name, path in found])
        write_comparison(folder / "compare.csv", comparison)
        page, text = comparison_page(comparison), plain_comparison(comparison)
    with atomic_write(folder / "compare.html") as file:
        file.write(page.encode())
    print(text)
    print(f"wrote {folder}/compare.html and {folder}/compare.csv")


def training_runs(given: Mapping[str, Path]) -> tuple[dict[str, Path], list[Path]]:
    """Return the run folders of `train` by name, also those in the folder of a sweep, and folders that hold no run.

    Both are empty if all runs are of `evaluate`.
    """
    if all(path.is_file() or (path / "scores.json").exists() for path in given.values()):
        return {}, []
    found, without = dict[str, Path](), list[Path]()
    for name, path in given.items():
        if is_run_folder(path):
            found[name] = path
            continue
        inner = [folder for folder in sorted(path.glob("*/")) if path.is_dir()]
        runs = [folder for folder in inner if is_run_folder(folder)]
        found |= {f"{name}/{folder.name}" if len(given) > 1 else folder.name: folder for folder in runs}
        without += [folder for folder in inner if folder not in runs] if runs else [path]
    if not found:
        return {}, []
    homes = {folder.parent for folder in found.values()}
    if others := [path for path in without if path.parent not in homes or not path.is_dir()]:
        raise InputError(f"{others[0]} is no run folder of train, as {found.popitem()[1]} is; compare runs of one verb")
    return found, without


def runs_of(option: object) -> dict[str, Path]:
    """Return the paths of the option `runs` by name: [PATH, ...], named by their folders, or {NAME: PATH, ...}."""
    given = option if isinstance(option, dict) else dict(enumerate(option)) if isinstance(option, list) else {}
    if not given or not all(isinstance(path, str) and path for path in given.values()):
        raise InputError(
            f"runs must be [PATH, PATH, ...] or {{NAME: PATH, ...}}, got {option!r}; write deepweather compare A B"
        )
    paths = [Path(path).expanduser() for path in given.values()]
    found = run_names(paths)
    return dict(zip(map(str, option) if isinstance(option, dict) else found, paths, strict=True))


def as_options(words: Sequence[str]) -> list[str]:
    """Return the words of the command line with paths, which are no options, joined to the option `runs`.

    >>> as_options(["a/scores.json", "run_dir=c", "b"])
    ["runs=['a/scores.json','b']", 'run_dir=c']
    """
    paths = [
        word
        for before, word in pairwise(["", *words])
        if Path(word).exists() or not (word.startswith(("-", "+", "~")) or "=" in word or before.startswith("-"))
    ]
    quoted = ",".join("'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'" for path in paths)
    return [f"runs=[{quoted}]"] * bool(paths) + [word for word in words if word not in paths]


if __name__ == "__main__":
    sys.argv[1:] = as_options(sys.argv[1:])
    main()
