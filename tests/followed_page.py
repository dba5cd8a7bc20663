"""Follows a page of the docs: writes its files, runs its commands and its Python, in their order.

A block with a name (```python write.py) is a file. A block ```sh holds commands: those of `deepweather` run in this
process, programs in Python too, and all others in a shell. A block ```python without a name runs as one script for the
page; one that starts with >>> holds examples with results.
"""

import contextlib
import doctest
import io
import os
import re
import runpy
import shlex
import subprocess

from conftest import ROOT, run_command
from quick_report import no_figures

BLOCK = re.compile(r"^```(\w*)(?: (\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)

SUSPICION = re.compile(r"seems? to (be|have)|the loss of one batch is")
"""In warnings about data that are not what their metadata say, and about scores and losses that are not plausible."""


def without_suspicion(printed):
    """Return what a command on right data has printed: there, such a warning is a false alarm."""
    assert not SUSPICION.search(printed), printed
    return printed


def blocks_of(page):
    """Return (language, name, text) of every block of a page of docs/."""
    return BLOCK.findall((ROOT / "docs" / page).read_text())


def lines_of(text):
    """Return the command lines of a block: continued lines joined, without comments and empty lines."""
    joined = text.replace("\\\n", " ").splitlines()
    return [line for line in joined if line.strip() and not line.lstrip().startswith("#")]


def follow(page, folder):
    """Follow a page in a folder; every command must succeed. Return what was printed, command by command."""
    printed, names = {}, {}
    for language, name, text in blocks_of(page):
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        elif language == "sh":
            for line in lines_of(text):
                printed[line] = run_line(line, folder)
        elif language == "python" and ">>>" in text:
            with contextlib.chdir(folder):
                test = doctest.DocTestParser().get_doctest(text, names, page, page, 0)
                assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0, page
        elif language == "python":
            with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(text, f"docs/{page}", "exec"), names)
            printed[text] = output.getvalue()
    return printed


def follow_recipe(page, folder):
    """Follow a page of docs/recipes in a folder with its data; return the output by the first two words of a line.

    Blocks of Python and text without a name, such as requests to a data centre, are left out, and figures.
    """
    outputs = {}
    for language, name, text in blocks_of(f"recipes/{page}"):
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        elif language == "sh":
            for line in lines_of(text):
                key = " ".join(line.split()[:2])
                with no_figures():
                    outputs[key] = outputs.get(key, "") + run_line(line, folder)
    return outputs


def run_line(line, folder):
    """Run one command line in a folder; return what it printed."""
    words = shlex.split(line, comments=True)
    if words[0] == "deepweather":
        ended = run_command(folder, *words[1:])
        assert ended.code == 0, f"{line}\n{ended.stdout}{ended.stderr}"
        without_suspicion(ended.stderr)
        return without_suspicion(ended.stdout)
    if words[0] == "python" and len(words) == 2:
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as output:
            runpy.run_path(words[1], run_name="__main__")
        return output.getvalue()
    ended = subprocess.run(line, shell=True, cwd=folder, env=os.environ, capture_output=True, text=True)
    assert ended.returncode == 0, f"{line}\n{ended.stdout}{ended.stderr}"
    return ended.stdout
