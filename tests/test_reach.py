import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = {
    "models/__init__.py": "",
    "models/first.py": "from models import base\n",
    "models/second.py": "",
    "models/base.py": "LIMIT = 1\n",
    "models/plug.py": "",
    "conf/second.yaml": "a: 1\n",
    "docs/page.md": "",
    "docs/script.py": "",
    "tests/specs.py": "from pathlib import Path\nTEXT = Path('conf/second.yaml').read_text()\n",
    "tests/test_first.py": "def test_it(shared):\n    from models import first\n",
    "tests/test_second.py": "import models.second\nfrom specs import TEXT\n\ndef test_it(shared):\n    assert TEXT\n",
    "tests/test_page.py": """import runpy

def test_it():
    open("docs/page.md")
    runpy.run_path("docs/script.py")
""",
    "tests/test_late.py": "from specs import TEXT\n\ndef test_it(shared):\n    pass\n",
    "tests/test_program.py": "import os, subprocess\n\ndef test_it():\n    subprocess.run(['sh', '-c', ''])\n",
    "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\npythonpath = . tests\n",
    ".gitignore": "__pycache__\n.pytest_cache\n",
    "tests/conftest.py": """import importlib
from pathlib import Path
import pytest
from reach import Selection

def pytest_addoption(parser):
    parser.addoption("--reach", type=Path)

def pytest_configure(config):
    config.pluginmanager.register(Selection(config.getoption("reach"), config))

@pytest.fixture(scope="session")
def shared():
    importlib.import_module("models.plug")
""",
}


def git(folder, *arguments):
    identity = ("-c", "user.name=t", "-c", "user.email=t@t")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def run(folder):
    """Run the tests of the project; return the exit code and the output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DEEPWEATHER_REACH")}
    arguments = [sys.executable, "-m", "pytest", "-v", "-p", "no:xdist", f"--reach={folder}/.git/map.json"]
    ended = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, env=environment)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A committed project, and the map of a run of all its tests."""
    folder = tmp_path_factory.mktemp("recorded")
    for name, text in (PROJECT | {"tests/reach.py": (ROOT / "tests/reach.py").read_text()}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "init")
    git(folder, "add", "--all")
    git(folder, "commit", "--message", "one")
    code, said = run(folder)
    assert code == 0, said
    assert "running all tests: there is no map" in said
    return folder


@pytest.fixture
def project(recorded, tmp_path):
    return shutil.copytree(recorded, tmp_path / "project")


def selection(project):
    """Return the selection of the project's next run."""
    spec = importlib.util.spec_from_file_location("reach_of_project", project / "tests/reach.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Selection(project / ".git/map.json", None)


EVERY = {"first", "second", "page", "late", "program"}


@pytest.mark.parametrize(
    ("changed", "runs"),
    [
        ("models/first.py", {"first", "program"}),
        ("models/base.py", {"first", "program"}),  # another module imports it
        ("models/second.py", {"second", "program"}),
        ("models/plug.py", {"first", "second", "late", "program"}),  # a fixture that is made once imports it
        ("conf/second.yaml", {"second", "late", "program"}),  # a module that is imported once opens it
        ("conf/new.yaml", {"second", "late", "program"}),
        ("docs/page.md", {"page"}),
        ("docs/script.py", {"page"}),
        ("tests/test_late.py", {"late"}),
        ("README.md", set()),
    ],
)
def test_a_change_selects_the_test_files_that_reach_it(project, changed, runs):
    assert selection(project).selected == set()
    (project / changed).write_text("x = 1\n")
    assert selection(project).selected == {f"tests/test_{name}.py" for name in runs}
    git(project, "add", "--all")
    git(project, "commit", "--message", "two")
    assert selection(project).selected == {f"tests/test_{name}.py" for name in runs}


def test_the_selected_files_run_and_those_that_are_new(project):
    (project / "docs/page.md").write_text("changed")
    (project / "tests/test_new.py").write_text("def test_it():\n    pass\n")
    _, said = run(project)
    assert "running 1 of 5 test files" in said
    assert [line.partition("::")[0] for line in said.splitlines() if "PASSED" in line] == [
        "tests/test_new.py",
        "tests/test_page.py",
    ]
    (project / "tests/test_new.py").unlink()
    git(project, "checkout", ".")
    assert run(project)[0] == 0  # no test runs


@pytest.mark.parametrize("change", [{"python": "3.8"}, {"commit": 40 * "0"}, {"time": 1e9}])
def test_all_tests_run_where_the_map_says_nothing_of_this_tree(project, change):
    path = project / ".git/map.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert selection(project).selected is None


def test_all_tests_run_after_a_change_of_what_all_use(project):
    (project / "pyproject.toml").write_text("")
    assert selection(project).selected is None


def test_tests_that_fail_leave_no_map(project):
    (project / ".git/map.json").unlink()
    (project / "tests/test_late.py").write_text("def test_it():\n    assert False\n")
    git(project, "commit", "--all", "--message", "two")
    assert run(project)[0] == 1
    assert not (project / ".git/map.json").exists()
