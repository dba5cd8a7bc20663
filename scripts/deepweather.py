"""The command: `deepweather VERB [option=value ...]`; `VERBS` lists the verbs."""

import os
import runpy
import sys
import warnings

from data_pipeline.common import interruption
from data_pipeline.common.run_start import mark_begin

VERBS = {
    "prepare": ("data_pipeline.prepare", "make the data of the twin experiment, or index your own files"),
    "train": ("training.train", "fit a corrector on the training years"),
    "combine": ("models.combine", "average several correctors, such as three seeds, as one corrector"),
    "evaluate": ("evaluation.evaluate", "score correctors on the test years: scores.json, report.html"),
    "compare": ("evaluation.compare", "one page and one table over the scores.json of several runs"),
    "correct": ("models.correct", "GRIB in, corrected GRIB out"),
    "export": ("models.export", "write a corrector for `correct` without PyTorch, as ONNX"),
    "monitor": ("evaluation.monitor", "score corrected forecasts as analyses arrive, and give alarms"),
    "submit": ("models.submit", "run one of these verbs as a job of Slurm"),
}
USAGE = "usage: deepweather VERB [option=value ...]\n\n" + "\n".join(
    f"  {verb:9} {purpose}" for verb, (_, purpose) in VERBS.items()
)


def main() -> None:
    """Run the verb as `python -m MODULE` would, so that `models.parallel.launch` can start more processes of it."""
    # Before numpy is imported, and all else that takes time.
    interruption.install(at_once=True)
    from data_pipeline.common.progress import show_progress

    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help", "help"):
        print(f"{USAGE}\n\n`deepweather VERB --help` lists a verb's options.")
        return
    verb = sys.argv[1]
    if verb not in VERBS:
        sys.exit(_unknown(verb))
    del sys.argv[1]
    mark_begin()
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
