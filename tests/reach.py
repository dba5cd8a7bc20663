"""Which test files a change can break: `pytest --reach MAP` runs these, and all where it cannot know.

A run of all tests records what each test file reaches, and writes a map of it if it succeeds on a committed tree:

- the modules that the file imports, at any time, in whichever process the fork server started, and what these import;
- the tracked files that it opens, such as configurations and pages;
- what the fixtures do that it shares with other files, and the modules that it shares;
- `*`, all code, if it starts a program that may be Python, whose imports are not seen.

The next run compares the tree with the commit of the map. It runs the test files that are new or reach a changed file,
or the folder of a new file. It runs all of them if there is no map, if the map is older than a day or of another
Python, if its commit is not in the clone, and if a file of `EVERYWHERE` has changed.
"""

import ast
import builtins
import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = (ROOT, ROOT / "scripts", ROOT / "tests", ROOT / "tests/external")
"""Folders of modules."""
TOP = {"tests", *(path.stem for place in PLACES for path in place.glob("*") if path.suffix in ("", ".py"))}
"""First parts of the dotted names of modules of this project, and of a few others."""
EVERYWHERE = (
    "pyproject.toml", "requirements.lock", "scripts/setup", "scripts/test", "tests/conftest.py", "tests/forks.py",
    "tests/ranks.py", "tests/reach.py", "tests/waiting.py",
)  # fmt: skip
"""Files that every test uses."""
NOT_PYTHON = {
    "cdo", "chromium", "git", "ip", "mount", "ncdump", "node", "nvidia-smi", "shellcheck", "uname", "umount",
}  # fmt: skip
ALL_CODE = "*"
OWNER, RECORDS = "DEEPWEATHER_REACHED_BY", "DEEPWEATHER_REACH_RECORDS"
"""Environment variables, because forks and ranks inherit them: the test file or the fixture that runs, and the file of
the records. `adopt` reads them; the environment is too slow for each import."""
_now = {}
"""Their values in this process."""
OLD = 86_400
_importing = []
"""Modules whose import has begun and not ended, the innermost last."""


def adopt():
    """Go on for the owner that the environment names."""
    _now.update({name: os.environ.get(name, "") for name in (OWNER, RECORDS)})


def note(path):
    """Record that the running test file and the module that is being imported reach a file."""
    if records := _now.get(RECORDS):
        if owner := _now[OWNER]:
            _append(records, owner, str(path))
        if _importing:
            _append(records, f"import {_importing[-1]}", str(path))


@cache
def _append(records, owner, path):
    with Path(records).open("a") as file:
        file.write(f"{owner}\t{path}\n")


@cache
def module(name):
    """Return the path of a module of this project, None for other names."""
    for place in PLACES if name.partition(".")[0] in TOP else ():
        path = place / name.replace(".", "/")
        for found in (path.with_suffix(".py"), path / "__init__.py"):
            if found.is_file():
                return str(found.relative_to(ROOT))
    return None


def record():
    """Note imports, opened files and started programs of this process from now on, where `RECORDS` is set."""
    plain, found = builtins.__import__, importlib._bootstrap._gcd_import
    tracked, inside = set(git("ls-files").splitlines()), f"{ROOT}/"
    adopt()

    def load(name):
        """Import a module of this project after its packages, each as the one that is being imported."""
        for end in (*(place for place, letter in enumerate(name) if letter == "."), len(name)):
            if path := module(name[:end]):
                note(path)
                if name[:end] not in sys.modules:
                    _importing.append(path)
                    try:
                        found(name[:end], None, 0)
                    finally:
                        _importing.pop()

    def statement(name, own=None, local=None, fromlist=(), level=0):
        if not level and name.partition(".")[0] in TOP:
            load(name)
            for each in fromlist or ():
                if not hasattr(sys.modules.get(name), each) or f"{name}.{each}" in sys.modules:
                    load(f"{name}.{each}")
        return plain(name, own, local, fromlist, level)

    def function(name, package=None, level=0):
        if not level:
            load(name)
        return found(name, package, level)

    def note_opened(argument):
        if isinstance(argument, str | Path) and ((text := str(argument)).startswith(inside) or text[:1] != "/"):
            with contextlib.suppress(ValueError, OSError):  # an empty name; a working directory that is gone
                if (path := os.path.relpath(text, ROOT)) in tracked:
                    note(path)

    def noting(opened):
        def opening(file, *arguments, **options):
            note_opened(file)
            return opened(file, *arguments, **options)

        opening.__code__ = opening.__code__.replace(co_filename="<frozen reach>")
        return opening

    def starting(self, args, *others, **options):
        arguments = [args] if isinstance(args, str | os.PathLike) else list(args)
        if "forks.py" not in str(arguments):
            if Path(options.get("executable") or str(arguments[0])).name not in NOT_PYTHON:
                note(ALL_CODE)
            for argument in arguments:
                note_opened(argument)
        return started(self, args, *others, **options)

    # Messages about an import that failed leave out the frames of such a file.
    for own in (load, statement, function, starting):
        own.__code__ = own.__code__.replace(co_filename="<frozen reach>")
    started = subprocess.Popen.__init__
    builtins.__import__, importlib._bootstrap._gcd_import = statement, function
    builtins.open = io.open = noting(io.open)
    io.open_code = noting(io.open_code)  # of `runpy.run_path`
    subprocess.Popen.__init__ = starting


def git(*arguments):
    """Return the output of a command of git in this checkout, an empty text if it fails."""
    ended = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    return ended.stdout if ended.returncode == 0 else ""


def imports(path, *, later=False):
    """Return the modules of this project that a file imports when it is imported; `later`: or at any time."""
    names, nodes = [], [ast.parse((ROOT / path).read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif later or not (isinstance(node, ast.FunctionDef) or _of_types_only(node)):
            nodes += ast.iter_child_nodes(node)
    every = {ALL_CODE} if later and "deepweather" in names else set()  # its names are imported at their first use
    return every | {found for name in names if (found := module(name))}


def _of_types_only(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def reach_of(records):
    """Return what each test file reaches, from lines of an owner and a path."""
    noted = {}
    for line in records:
        owner, path = line.rstrip("\n").split("\t")
        noted.setdefault(owner, set()).add(path)

    @cache
    def direct(node):
        found = noted.get(node, set()) | noted.get(f"import {node}", set())
        if node.endswith(".py") and (ROOT / node).is_file():
            test, folders = Path(node).name.startswith("test_"), Path(node).parents
            names = ("__init__.py", "conftest.py") if test else ("__init__.py",)
            found |= {str(folder / name) for folder in folders for name in names if (ROOT / folder / name).is_file()}
            found |= imports(node, later=test)
        return found

    def everything(owner):
        reached, new = set(), {owner}
        while new:
            node = new.pop()
            reached.add(node)
            new |= direct(node) - reached
        return sorted(node for node in reached if not node.startswith("fixture "))

    return {owner: everything(owner) for owner in noted if owner.startswith("tests/")}


def broken_by(changed, reach, known):
    """Return the test files of a map that changed files can break; `known` are the files that the map's commit has."""
    folders = {str(Path(path).parent) for path in changed - known if not Path(path).name.startswith("test_")}
    code = any(not path.startswith(("docs/", "tests/")) and not path.endswith(".md") for path in changed)
    return {
        test
        for test, paths in reach.items()
        if not changed.isdisjoint(paths)
        or not folders.isdisjoint(str(Path(path).parent) for path in paths if path != ALL_CODE)
        or (code and ALL_CODE in paths)
    }


class Selection:
    """The plugin of pytest behind `--reach MAP`."""

    def __init__(self, path, config):
        self.path, self.config, self.selected, self.known, self.said = path, config, None, set(), "running all tests: "
        self.head = git("rev-parse", "HEAD").strip()
        reach = self._known_reach()
        if reach is not None:
            self.said = f"running {len(self.selected)} of {len(reach)} test files: what has changed since the last run "
            self.said += "of all reaches only these; `make test-all` runs all"

    def pytest_configure(self):
        """Record what the tests reach if all run."""
        if self.selected is None:
            os.environ.setdefault(RECORDS, f"{self.path}.{os.getpid()}.records")
            record()

    def _known_reach(self):
        """Read the map and select test files; return None if all must run, and say why."""
        try:
            found = json.loads(self.path.read_text())
        except (OSError, ValueError):
            self.said += f"there is no map in {self.path}"
            return None
        if not 0 <= time.time() - found["time"] < OLD or found["python"] != sys.version:
            self.said += "the map of what they reach is older than a day or of another Python"
            return None
        known = set(git("ls-tree", "-r", "--name-only", found["commit"]).splitlines())
        if not known:
            self.said += f"commit {found['commit'][:12]} of the last run of all is not in this clone"
            return None
        changed = {*git("diff", "--name-only", "--no-renames", found["commit"]).splitlines()}
        changed |= {*git("ls-files", "--others", "--exclude-standard").splitlines()}
        if everywhere := changed & {*EVERYWHERE}:
            self.said += f"every test uses {min(everywhere)}, which has changed"
            return None
        self.selected, self.known = broken_by(changed, found["reach"], known), set(found["reach"])
        return found["reach"]

    def pytest_report_header(self):
        """Say what runs, and why."""
        return self.said

    def pytest_ignore_collect(self, collection_path):
        """Leave out known test files that no change reaches."""
        if self.selected is not None and collection_path.name.startswith("test_"):
            path = str(collection_path.relative_to(ROOT))
            return True if path in self.known - self.selected else None
        return None

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        """Record what a test file does at its import."""
        with _owned_by(str(collector.path.relative_to(ROOT)) if isinstance(collector, pytest.Module) else ""):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Record what a test does."""
        with _owned_by(str(item.path.relative_to(ROOT))):
            for name in item.fixturenames:
                note(f"fixture {name}")
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        """Record what a fixture of several tests does for all who use it."""
        with _owned_by("" if fixturedef.scope == "function" else f"fixture {fixturedef.argname}"):
            return (yield)

    def pytest_sessionfinish(self, session, exitstatus):
        """Write the map of what the test files reach, if all tests succeeded on a committed tree."""
        if hasattr(self.config, "workerinput"):
            return
        if self.selected is not None:
            if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
                session.exitstatus = pytest.ExitCode.OK
            return
        records = Path(os.environ.pop(RECORDS))
        if exitstatus == pytest.ExitCode.OK and self.head and not git("status", "--porcelain"):
            reach = reach_of(records.read_text().splitlines())
            found = {"commit": self.head, "time": time.time(), "python": sys.version, "reach": reach}
            partial = self.path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(found))
            partial.replace(self.path)
        records.unlink(missing_ok=True)


@contextlib.contextmanager
def _owned_by(owner):
    before = os.environ.get(OWNER)
    if owner:
        os.environ[OWNER] = owner
        adopt()
    try:
        yield
    finally:
        os.environ.pop(OWNER, None)
        if before is not None:
            os.environ[OWNER] = before
        adopt()
