"""Correctors at URLs give the numbers of the same correctors in files, in every verb that reads one."""

import shutil
from pathlib import Path

import deepweather as dw
import numpy as np
import pytest
from web_server import Handler, server

from data_pipeline.common.errors import InputError
from data_pipeline.common.identity import sha256_of
from evaluation.run.plan import corrector_paths
from training.initial_state import hash_corrector_files

__all__ = ["server"]


@pytest.fixture
def url(server, project, tmp_path, monkeypatch):
    """The URL of the EMOS of the project, with its hash."""
    monkeypatch.setenv("DEEPWEATHER_CACHE", str(tmp_path / "cache"))
    shutil.copy(project / "runs/emos/corrector.safetensors", tmp_path / "t2m.safetensors")
    return f"{server}/t2m.safetensors@sha256:{sha256_of(tmp_path / 't2m.safetensors')}"


def test_verbs_and_load_read_a_corrector_at_a_url(project, url, command, tmp_path):
    forecast = sorted((project / "data/twin").glob("output.*"))[-1]
    file = project / "runs/emos/corrector.safetensors"
    outputs = {name: tmp_path / f"{name}.grib" for name in ("file", "url")}
    for name, corrector in (("file", file), ("url", url)):
        ended = command(project, "correct", f"corrector={corrector}", f"input={forecast}", f"output={outputs[name]}")
        assert ended.code == 0, ended.stderr
    assert outputs["url"].read_bytes() == outputs["file"].read_bytes()
    assert Handler.requested == ["/t2m.safetensors"]
    ours, theirs = dw.load(url), dw.load(file)
    assert ours.provenance == theirs.provenance
    assert np.array_equal(ours.task.lead_times, theirs.task.lead_times)
    ended = command(project, "combine", f"correctors=[{url},{file}]", f"output={tmp_path}/both.safetensors")
    assert ended.code == 0, ended.stderr
    ended = command(project, "export", f"corrector={url}", f"output={tmp_path}/t2m.onnx")
    assert ended.code == 0, ended.stderr
    assert Path(tmp_path / "t2m.onnx").exists()
    assert Handler.requested == ["/t2m.safetensors"]


def test_train_and_evaluate_read_a_corrector_at_a_url(url, tmp_path):
    """The identity of a run has the URL and the hash of the file, as it has a path and its hash."""
    sha256 = url[-64:]
    kept = tmp_path / "cache/correctors" / sha256 / "t2m.safetensors"
    assert corrector_paths({"emos": url, "folds": [url, url]}) == {"emos": [kept], "folds": [kept, kept]}
    assert kept.read_bytes() == (tmp_path / "t2m.safetensors").read_bytes()
    assert hash_corrector_files({"from": url, "teacher": None}) == {"from": f"{url} {sha256[:16]}"}
    with pytest.raises(InputError, match="ends in no SHA-256"):
        hash_corrector_files({"teacher": url[:-1]})
