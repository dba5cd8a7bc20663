"""`import deepweather`: which names it has, and what it and other parts of the program import."""

import ast
import importlib
import subprocess
import sys

import deepweather
import pytest
from conftest import ROOT

INTERFACE = "import deepweather as dw; dir(dw)"
READING = "import " + ", ".join(
    f"data_pipeline.{module}"
    for module in (
        "formats.open", "formats.grib", "samples.inputs", "grids.grid_coordinates", "grids.points",
        "protocols", "regridding.target"
    )
)  # fmt: skip
PREPARING = "import " + ", ".join(
    f"data_pipeline.{module}"
    for module in ("archive", "cluster", "formats.netcdf", "prepare", "statistics.normalization", "store", "task")
)
OPENING = "dw.open_ensemble, dw.open_analysis, dw.Task, dw.InputError"
SLIM = """
sys.modules["torch"] = None
dw.load
try: dw.fit
except dw.InputError as error: print(error)
"""


@pytest.fixture(scope="module")
def printed():
    """What one new Python process prints: the modules after each of four steps, and the error without PyTorch."""
    steps = [f"{step}; print(*sys.modules)" for step in (INTERFACE, READING, PREPARING, OPENING)]
    process = subprocess.run(
        [sys.executable, "-c", "\n".join(["import sys", *steps, SLIM])],
        cwd=ROOT / "scripts", env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def test_files_are_read_without_the_packages_of_training(printed):
    """`correct` runs in installations without them, and would pay for their imports at each start."""
    heavy = {
        "torch", "xarray", "dask", "distributed", "pandas", "numba", "matplotlib", "hydra", "omegaconf",
        "pytorch_lightning", "zarr", "fsspec", "netCDF4", "pint", "cfgrib",
    }  # fmt: skip
    assert (heavy | {"numpy", "eccodes"}) & {*printed[0].split()} == set()
    assert heavy & {*printed[1].split()} == set()


@pytest.mark.parametrize("order", ["deepweather, xarray", "xarray, deepweather"])
def test_datasets_have_the_accessor_in_both_orders_of_imports(order):
    """It needs neither PyTorch nor a name of `deepweather` that was used before."""
    code = f"import {order}, sys; print(xarray.Dataset().deepweather.correct.__doc__[:20], 'torch' in sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "scripts", env={"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert (process.stdout, process.stderr) == ("Return the forecasts False\n", "")


def test_data_is_read_without_torch(printed):
    """Cluster workers, `prepare` and the functions that open files start faster without PyTorch."""
    assert "torch" not in {*printed[2].split(), *printed[3].split()}


def test_a_slim_installation_says_what_to_install(printed):
    assert "deepweather.fit needs the package" in printed[4]
    assert "pip install 'deepweather[train]'" in printed[4]


def test_every_name_is_defined_where_the_table_says():
    for name, module in deepweather.NAMES.items():
        found = getattr(deepweather, name)
        assert found is getattr(importlib.import_module(module), name)
        assert found.__module__ == module
        assert found.__doc__
        assert name in dir(deepweather)
    assert not hasattr(deepweather, "open_grib")


def test_type_checkers_see_the_same_names():
    tree = ast.parse((ROOT / "scripts/deepweather.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {alias.asname: line.module for line in block.body for alias in line.names}
    assert seen == deepweather.NAMES
