"""The arrows between the packages, read from the imports of every file."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("data_pipeline", "models", "training", "evaluation", "conf")
MAY_IMPORT = {
    "data_pipeline": set(),
    "models": {"data_pipeline"},
    "training": {"data_pipeline", "models"},
    "evaluation": {"data_pipeline", "models"},
    "conf": {"data_pipeline"},
}
VERBS = {
    "data_pipeline/prepare.py",
    "models/combine.py",
    "models/correct.py",
    "training/train.py",
    "evaluation/evaluate.py",
}
SOURCES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imports(path):
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_dependencies_point_one_way(path):
    package = path.parts[0]
    ours = {name.partition(".")[0] for name in imports(path)} & set(PACKAGES) - {package}
    assert ours <= MAY_IMPORT[package] | ({"conf"} if str(path) in VERBS else set())


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_each_border_is_crossed_in_one_place(path):
    found = {name.partition(".")[0] for name in imports(path)}
    if path.parts[0] != "conf":
        assert "hydra" not in found
        assert "omegaconf" not in found or str(path) in {*VERBS, "training/run_folder.py"}
    if path.parts[:3] != ("data_pipeline", "formats", "grib"):
        assert not found & {"eccodes", "cfgrib", "gribapi"}
    if path.parts[0] != "training":
        assert not found & {"pytorch_lightning", "lightning"}


def named(requirement):
    """The name that a requirement begins with, as distributions are compared by it."""
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def test_the_program_imports_only_what_the_wheel_requires():
    """What only the tests need is not there where the wheel is installed."""
    required = {named(line) for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]}
    distributions = packages_distributions()
    imported = {name.partition(".")[0] for path in SOURCES for name in imports(path)}
    others = imported - set(PACKAGES) - sys.stdlib_module_names
    assert not [name for name in others if not required & {named(found) for found in distributions[name]}]


@pytest.mark.parametrize(
    "module",
    [
        "archive",
        "cluster",
        "formats.grib",
        "grid",
        "formats.netcdf",
        "prepare",
        "statistics.statistic_file",
        "store",
        "task",
    ],
)
def test_reading_an_archive_does_not_need_torch(module):
    code = f"import sys, data_pipeline.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
