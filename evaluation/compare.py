"""The verb `compare`: one page and one table over several runs of `evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from omegaconf import DictConfig

from conf import DRY_RUN, plain, verb
from data_pipeline.common.errors import InputError
from data_pipeline.common.files import write_text
from data_pipeline.common.progress import watched
from evaluation.report.comparison_page import comparison_page, plain_comparison
from evaluation.run_comparison import RunComparison, RunScores, run_names, write_comparison
from evaluation.tables.score_json import SCORES_FORMAT


def given_runs(cfg: DictConfig) -> tuple[dict[str, Path], Path]:
    """Check the options; return the paths of the runs by name, and the folder of the results."""
    if not isinstance(cfg.run_dir, str):
        raise InputError(f"run_dir must be the path of a folder, got {cfg.run_dir!r}")
    return runs_of(plain(cfg)["runs"]), Path(cfg.run_dir)


@verb("compare", given_runs)
def main(cfg: DictConfig) -> None:
    """Read the runs, compare them, write page and table, print the table."""
    given, folder = given_runs(cfg)
    found = watched(given.items(), "reading: run", len(given))
    runs = [run for name, path in found for run in RunScores.load_targets(name, path, SCORES_FORMAT)]
    if len(given) < 2:
        raise InputError(f"compare needs two runs or more, got only {next(iter(given.values()))}")
    comparisons = RunComparison.of_targets(runs)
    compared = [run for comparison in comparisons for run in comparison.runs]
    notes = [f"only {run.name} scores {run.scores['target']}" for run in runs if run not in compared]
    write_comparison(folder / "compare.csv", comparisons)
    write_text(folder / "compare.html", comparison_page(comparisons, notes))
    print("\n\n".join(map(plain_comparison, comparisons)), *(f"note: {text}" for text in notes), sep="\n")
    print(f"wrote {folder}/compare.html and {folder}/compare.csv")


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
    """Return the words of the command line, in which bare paths are gathered into the option `runs`.

    >>> as_options(["a/scores.json", "run_dir=c", "b"])
    ["runs=['a/scores.json','b']", 'run_dir=c']
    """
    paths = [
        word
        for before, word in pairwise(["", *words])
        if Path(word).exists()
        or not (word.startswith(("-", "+", "~")) or "=" in word or (before.startswith("-") and before != DRY_RUN))
    ]
    quoted = ",".join("'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'" for path in paths)
    return [f"runs=[{quoted}]"] * bool(paths) + [word for word in words if word not in paths]


if __name__ == "__main__":
    sys.argv[1:] = as_options(sys.argv[1:])
    main()
