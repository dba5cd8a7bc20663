"""`import deepweather`: which names it has, and what it imports for them."""

import ast
import importlib
import subprocess
import sys

import deepweather
import pytest
from conftest import ROOT

HEAVY = {"torch", "numpy", "xarray", "dask", "pandas", "numba", "hydra", "omegaconf", "pint", "eccodes"}


def modules_after(code):
    """The modules that a new Python process has imported after some lines."""
    process = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        cwd=ROOT / "scripts", env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(process.stdout.split())


def test_the_import_needs_no_other_package():
    assert modules_after("import deepweather; dir(deepweather)") & HEAVY == set()


def test_files_are_opened_without_torch():
    found = modules_after("import deepweather as dw; dw.open_ensemble, dw.open_analysis, dw.Task, dw.InputError")
    assert "torch" not in found


@pytest.mark.parametrize("name", sorted(deepweather.NAMES))
def test_every_name_is_defined_where_the_table_says(name):
    found = getattr(deepweather, name)
    assert found is getattr(importlib.import_module(deepweather.NAMES[name]), name)
    assert found.__module__ == deepweather.NAMES[name]
    assert found.__doc__
    assert name in dir(deepweather)


def test_type_checkers_see_the_same_names():
    tree = ast.parse((ROOT / "scripts/deepweather.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {alias.asname: line.module for line in block.body for alias in line.names}
    assert seen == deepweather.NAMES


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'open_grib'"):
        _ = deepweather.open_grib


def test_a_slim_installation_says_what_to_install():
    lines = (
        "sys.modules |= dict.fromkeys(('torch', 'xarray'))",
        "import deepweather as dw",
        "dw.Task, dw.load",
        "try: dw.fit",
        "except dw.InputError as error: print(error)",
    )
    process = subprocess.run(
        [sys.executable, "-c", "\n".join(["import sys", *lines])],
        cwd=ROOT / "scripts", env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "deepweather.fit needs the package" in process.stdout
    assert "pip install 'deepweather[train]'" in process.stdout
