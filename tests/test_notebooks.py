"""The notebooks, docs/python.md and the Python of the README run, block after block, and say what they claim."""

import json
import re

import deepweather
import matplotlib
import pytest
from conftest import ROOT
from kept import TWIN_PROGRAM, kept
from twin_project import make_datasets, read_datasets

NOTEBOOKS = sorted((ROOT / "docs/tutorials").glob("*.ipynb"))


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """The twin of all pages, made once: its integration takes longer than all else."""
    return read_datasets(kept("datasets", make_datasets, tmp_path_factory.getbasetemp(), TWIN_PROGRAM))


@pytest.fixture
def run_blocks(twin, tmp_path, monkeypatch):
    """A function that runs blocks of code in a new namespace, and returns it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(deepweather, "twin", lambda: tuple(data.copy(deep=True) for data in twin))
    matplotlib.use("agg")

    def run(name, blocks):
        namespace = {"__name__": "__main__"}
        for number, block in enumerate(blocks):
            exec(compile(block, f"{name}, block {number}", "exec"), namespace)
        return namespace

    return run


def cells_of(notebook):
    return json.loads(notebook.read_text())["cells"]


def python_of(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_the_first_correction(run_blocks, tmp_path):
    """The correction lowers the CRPS of test years that the corrector has not seen, at both lead times."""
    cells = cells_of(ROOT / "docs/tutorials/first_correction.ipynb")
    found = run_blocks("cells", ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"])
    raw, corrected = (found[name].crps_fair.sel(region="global").values for name in ("raw_scores", "scores"))
    assert (corrected < 0.9 * raw).all()
    assert abs(found["errors"]["corrected"]).mean() < abs(found["errors"]["raw"]).mean()
    assert [path.name for path in tmp_path.iterdir()] == ["t2m.safetensors"]


def test_the_page_on_python(run_blocks, capsys):
    found = run_blocks("docs/python.md", python_of("docs/python.md"))
    printed = capsys.readouterr().out
    assert "the dataset lacks the dimension number" in printed
    assert "trained on:     2005-2012" in printed
    assert any(str(line).startswith("fit of EMOS") for line in found["lines"])
    assert found["same"].grid == found["corrector"].grid


@pytest.mark.filterwarnings("ignore:.*training cases do not cover the year:UserWarning")  # all starts are in January
def test_the_readme(run_blocks):
    found = run_blocks("README.md", python_of("README.md"))
    assert found["corrected"].sizes["init_time"] == 2
    assert not found["corrected"]["2t"].equals(found["ensemble"]["2t"].sel(init_time="2016"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(notebook):
    assert all(cell.get("outputs", []) == [] and cell.get("execution_count") is None for cell in cells_of(notebook))
