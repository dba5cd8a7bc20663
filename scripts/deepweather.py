"""The command `deepweather VERB [FILE.yaml] [option=value ...]`, and the names of `import deepweather as dw`.

A name is imported when it is first used, so that `import deepweather` takes milliseconds and needs no PyTorch.
"""

import atexit
import importlib
import os
import runpy
import sys
import warnings
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from data_pipeline.common import interruption
from data_pipeline.common.extras import package
from data_pipeline.common.run_start import mark_begin

if TYPE_CHECKING:
    from data_pipeline.common.errors import InputError as InputError
    from data_pipeline.formats.open import open_analysis as open_analysis
    from data_pipeline.formats.open import open_ensemble as open_ensemble
    from data_pipeline.formats.open import open_static as open_static
    from data_pipeline.formats.table.table_datasets import open_table as open_table
    from data_pipeline.grids.points import Points as Points
    from data_pipeline.regridding.target import TargetGrid as TargetGrid
    from data_pipeline.synthetic.twin.twin_datasets import twin as twin
    from data_pipeline.task import Task as Task
    from evaluation.report.plots import plot_gain as plot_gain
    from evaluation.report.plots import plot_meteogram as plot_meteogram
    from evaluation.report.plots import plot_rank_histogram as plot_rank_histogram
    from evaluation.report.plots import plot_reliability as plot_reliability
    from evaluation.score_xarray import score as score
    from models.correction.loading import load as load
    from models.corrector import Corrector as Corrector
    from training.fit import fit as fit

NAMES = {
    "Corrector": "models.corrector",
    "InputError": "data_pipeline.common.errors",
    "Points": "data_pipeline.grids.points",
    "TargetGrid": "data_pipeline.regridding.target",
    "Task": "data_pipeline.task",
    "fit": "training.fit",
    "load": "models.correction.loading",
    "open_analysis": "data_pipeline.formats.open",
    "open_ensemble": "data_pipeline.formats.open",
    "open_static": "data_pipeline.formats.open",
    "open_table": "data_pipeline.formats.table.table_datasets",
    "plot_gain": "evaluation.report.plots",
    "plot_meteogram": "evaluation.report.plots",
    "plot_rank_histogram": "evaluation.report.plots",
    "plot_reliability": "evaluation.report.plots",
    "score": "evaluation.score_xarray",
    "twin": "data_pipeline.synthetic.twin.twin_datasets",
}
"""The module that defines each name of the Python interface."""

ACCESSOR = "models.correction.accessor"

VERBS = {
    "prepare": ("data_pipeline.prepare", "make the data of the twin experiment, or index your own files"),
    "train": ("training.train", "fit a corrector on the training years"),
    "combine": ("models.combine", "average several correctors, such as three seeds, as one corrector"),
    "evaluate": ("evaluation.evaluate", "score correctors on the test years: scores.json, report.html"),
    "compare": ("evaluation.compare", "one page and one table over the scores.json of several runs"),
    "correct": ("models.correct", "GRIB in, corrected GRIB out"),
    "export": ("models.export", "write a corrector for `correct` without PyTorch, as ONNX"),
    "monitor": ("evaluation.monitor", "score corrected forecasts as analyses arrive, and give alarms"),
    "submit": ("conf.submit", "run one of these verbs as a job of Slurm"),
}
USAGE = "usage: deepweather VERB [FILE.yaml] [option=value ...]\n\n" + "\n".join(
    [
        *(f"  {verb:9} {purpose}" for verb, (_, purpose) in VERBS.items()),
        "\n`deepweather VERB --help` lists a verb's options, `--help all` those rarely changed, too;",
        "`--help schema` prints a JSON schema of FILE.yaml for editors, `--dry-run` the checked options as YAML.",
    ]
)
PRINTED_BY_HYDRA = {"--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "--shell-completion", "-sc"}
"""Flags with which Hydra prints something, and the verb does not run."""


class _WithAccessor:
    """A finder of modules: registers `dataset.deepweather` when xarray is imported, which takes half a second."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of xarray that the next finders find, whose loader then imports the accessor; else None."""
        others = sys.meta_path[sys.meta_path.index(_WithAccessor) + 1 :] if name == "xarray" else []
        spec = next((found for one in others if (found := one.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                importlib.import_module(ACCESSOR)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "xarray" in sys.modules:
    importlib.import_module(ACCESSOR)
elif _WithAccessor not in sys.meta_path:
    sys.meta_path.insert(0, _WithAccessor)


def __getattr__(name: str) -> Any:
    """Return a name of the Python interface, and keep it in this module."""
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with package(f"deepweather.{name}", "train"):
        module = importlib.import_module(NAMES[name])
    found = globals()[name] = getattr(module, name)
    return found


def __dir__() -> list[str]:
    """Return all names, including names that have not been used yet."""
    return sorted({*globals(), *NAMES})


def main() -> None:
    """Run the verb as `python -m MODULE` would, so that `models.parallel.launch` can start more processes of it."""
    # Before imports that take time, such as numpy.
    interruption.install(at_once=True)
    atexit.register(interruption.ignore)
    from conf import check_words, expand_files, print_options, reporting
    from data_pipeline.common.progress import show_progress

    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help", "help"):
        with reporting():
            print(USAGE)
        return
    verb = sys.argv[1]
    if verb not in VERBS:
        sys.exit(_unknown(verb))
    mark_begin()
    with reporting():
        words = sys.argv[2:] = expand_files(sys.argv[2:])
    # Before the verb is imported, which takes seconds where it needs PyTorch.
    if {*words} & {"-h", "--help"}:
        from conf.help_text import help_text

        with reporting():
            print(help_text(verb, words))
        return
    del sys.argv[1]
    if {word.partition("=")[0] for word in words} & PRINTED_BY_HYDRA:
        print_options(verb, words)
        return
    with reporting():
        check_words(verb, words)
    # Processes must not import modules from the current folder.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    # On a shared machine, threads that spin while they wait made training five times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Hide stack traces that PyTorch logs beside our error message.
    if os.environ.get("DEEPWEATHER_DEBUG") != "1":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    # A process that has imported the verb, such as a test, gets a second copy of its module, which does no harm.
    warnings.filterwarnings("ignore", ".*found in sys.modules after import", RuntimeWarning)
    try:
        with show_progress(verb, sys.argv[1:]):
            runpy.run_module(VERBS[verb][0], run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        sys.exit(_missing(verb, error))


def _missing(verb: str, error: ModuleNotFoundError) -> int:
    """Name the package that a slim installation lacks; a missing file of this project stays a bug."""
    name = (error.name or "").partition(".")[0]
    if name in ("", "conf", "data_pipeline", "evaluation", "models", "training"):
        raise error
    print(
        f"error: deepweather {verb} needs the package {name}, which is not installed; run: "
        "pip install 'deepweather[train]'",
        file=sys.stderr,
    )
    return 2


def _unknown(verb: str) -> int:
    print(f"error: there is no verb {verb!r}; choose one of {', '.join(VERBS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
