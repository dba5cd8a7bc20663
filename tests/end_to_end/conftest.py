"""Verbs that must succeed, and verbs that must fail."""

import json

import pytest
from followed_page import without_suspicion


@pytest.fixture(scope="session")
def run_verb(command):
    """Run a verb that must succeed, without a false alarm about its data; return its output."""

    def run(folder, *arguments):
        ended = command(folder, *arguments)
        assert ended.code == 0, ended.stdout + ended.stderr
        return without_suspicion(ended.stdout)

    return run


@pytest.fixture(scope="session")
def run_failing_verb(command):
    """Run a verb that must fail with exit code `code` and one line on standard error; return that line."""

    def run(folder, *arguments, code=2):
        ended = command(folder, *arguments)
        assert ended.code == code, ended.stdout + ended.stderr
        (line,) = ended.stderr.splitlines()
        assert line.startswith("error: ")
        return line

    return run


@pytest.fixture
def score_models(tmp_path, run_verb):
    """Train models, each with its options, on files of stations; return what `evaluate` prints, and the scores."""

    def score(files, models, *options):
        options = ["data=netcdf", f"path={files.write(tmp_path / 'data')}", "task.static=[]", *options]
        for name, own in models.items():
            run_verb(tmp_path, "train", *options, *own, f"run_dir=runs/{name}")
        paths = ", ".join(f"{name}: runs/{name}/corrector.safetensors" for name in models)
        scoring = [f"correctors={{{paths}}}", "references=[raw]", "run_dir=runs/scores"]
        printed = run_verb(tmp_path, "evaluate", *options, *scoring)
        return printed, json.loads((tmp_path / "runs/scores/scores.json").read_text())

    return score
