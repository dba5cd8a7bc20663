"""What a command tells a suite at its end: exit code, a line of JSON, ecFlow's label and event, Cylc's message.

`ecflow_client` and `cylc` are doubles that keep their arguments.
"""

import json
import os

import pytest

from conf.run_end import LABEL_LENGTH, run_to_end
from data_pipeline.common.errors import InputError, InterruptedRunError

REASONS = ["out.grib: 2 forecasts are the raw ones", "out.grib: a message occurs twice"]
SUITES = {
    "ecflow": ({"ECF_NAME": "/s/t", "ECF_PASS": "p"}, ["--label=attention|{}", "--event=attention"]),
    "cylc": ({"CYLC_WORKFLOW_ID": "w", "CYLC_TASK_JOB": "1/t/01"}, ["message|--|w|1/t/01|WARNING:{}"]),
    "none": ({}, []),
}


@pytest.fixture(params=SUITES)
def suite(request, tmp_path, monkeypatch):
    """Return a function that reads what a suite was told, and what it should be told."""
    variables, expected = SUITES[request.param]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in ("ecflow_client", "cylc"):
        (tmp_path / name).write_text(f'#!/bin/sh\nIFS="|"\necho "$*" >> {tmp_path}/told\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    told = tmp_path / "told"
    return lambda: told.read_text().splitlines() if told.exists() else [], expected


def end(tmp_path, attention, work):
    """Exit code and status of a run."""
    status = tmp_path / "status.json"
    try:
        run_to_end("correct", {"attention": attention, "status": str(status)}, work)
        code = 0
    except SystemExit as ended:
        code = ended.code
    return code, json.loads(status.read_text())


@pytest.mark.parametrize(("attention", "code"), [("exit", 4), ("record", 0)])
def test_reasons_are_recorded_and_told_to_the_suite(tmp_path, suite, attention, code):
    told, expected = suite
    found, status = end(tmp_path, attention, lambda: REASONS)
    assert (found, status["code"], status["reasons"], status["verb"]) == (code, code, REASONS, "correct")
    assert told() == [line.format("; ".join(REASONS)) for line in expected]
    assert end(tmp_path, attention, list)[1]["reasons"] == []
    assert len(told()) == len(expected)


@pytest.mark.parametrize("suite", ["ecflow"], indirect=True)
def test_long_reasons_are_cut_and_a_client_that_fails_is_a_warning(tmp_path, suite, capsys):
    end(tmp_path, "record", lambda: ["x" * 999])
    assert len(suite[0]()[0]) == LABEL_LENGTH + len("--label=attention|")
    (tmp_path / "ecflow_client").write_text("#!/bin/sh\necho no server >&2\nexit 1\n")
    assert end(tmp_path, "record", lambda: REASONS)[0] == 0
    assert "warning: ecflow_client --event=attention did not take the reasons: no server" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"), [(InputError("no\nfile"), 2), (InterruptedRunError("stop"), 3), (KeyboardInterrupt(), 3)]
)
def test_the_end_by_an_error_is_recorded(tmp_path, error, code):
    def work():
        assert not (tmp_path / "status.json").exists(), "the status of an earlier run"
        raise error

    (tmp_path / "status.json").write_text("earlier")
    with pytest.raises(type(error)):
        end(tmp_path, "record", work)
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["code"] == code
    assert status["reasons"] in (["no file"], ["stop"], ["interrupted"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attention": "no"}, "attention"), ({"status": 3}, "status must be"),
        ({"status": "/absent/status.json"}, "in a folder that exists"), ({"status": "/tmp"}, "in a folder that exists"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_before_the_run(options, words):
    with pytest.raises(InputError, match=words):
        run_to_end("correct", {"attention": "exit", "status": None} | options, lambda: pytest.fail("it has run"))
