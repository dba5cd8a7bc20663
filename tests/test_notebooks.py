"""The notebooks of docs/tutorials run, cell after cell, and say what they claim."""

import json

import deepweather
import matplotlib
import pytest
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "docs/tutorials").glob("*.ipynb"))


def run_cells(notebook, folder, monkeypatch):
    """Run the code cells in a new namespace, and return it."""
    monkeypatch.chdir(folder)
    matplotlib.use("agg")
    namespace = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec"), namespace)
    return namespace


def test_the_first_correction(tmp_path, monkeypatch):
    """The correction lowers the CRPS of test years that the corrector has not seen, at both lead times."""
    found = run_cells(ROOT / "docs/tutorials/first_correction.ipynb", tmp_path, monkeypatch)
    raw, corrected = (found[name].crps_fair.sel(region="global").values for name in ("raw_scores", "scores"))
    assert (corrected < 0.9 * raw).all()
    assert abs(found["errors"]["corrected"]).mean() < abs(found["errors"]["raw"]).mean()
    assert isinstance(found["corrector"], deepweather.Corrector)
    assert [path.name for path in tmp_path.iterdir()] == ["t2m.safetensors"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    assert all(cell.get("outputs", []) == [] and cell.get("execution_count") is None for cell in cells)
