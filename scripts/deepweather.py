"""The command: `deepweather prepare | train | combine | evaluate | correct [option=value ...]`."""

import os
import runpy
import sys

VERBS = {
    "prepare": ("data_pipeline.prepare", "make the twin experiment, or look through your own files"),
    "train": ("training.train", "fit a corrector on the training years"),
    "combine": ("models.combine", "make one corrector of several, such as those of three seeds"),
    "evaluate": ("evaluation.evaluate", "score correctors on the test years: scores.json, report.html"),
    "correct": ("models.correct", "GRIB in, corrected GRIB out"),
}
USAGE = "usage: deepweather VERB [option=value ...]\n\n" + "\n".join(
    f"  {verb:9} {purpose}" for verb, (_, purpose) in VERBS.items()
)


def main() -> None:
    """Run the verb exactly as `python -m MODULE` would: processes that a mesh starts find their way."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help", "help"):
        print(f"{USAGE}\n\n`deepweather VERB --help` lists a verb's options.")
        return
    verb = sys.argv[1]
    if verb not in VERBS:
        sys.exit(_unknown(verb))
    del sys.argv[1]
    # Such processes must not import from the folder they happen to run in.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    # Threads that spin while they wait for each other slow a machine that others use as well five-fold.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Our one sentence, not the stack of a library's own log, unless it is asked for.
    if os.environ.get("DEEPWEATHER_DEBUG") != "1":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    runpy.run_module(VERBS[verb][0], run_name="__main__", alter_sys=True)


def _unknown(verb: str) -> int:
    print(f"error: there is no verb {verb!r}; choose one of {', '.join(VERBS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
