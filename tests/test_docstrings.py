"""The examples in docstrings give the printed results."""

import doctest
import importlib

import pytest
from conftest import ROOT

MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("data_pipeline", "models", "training", "evaluation")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>>" in path.read_text("utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted
    assert not results.failed
