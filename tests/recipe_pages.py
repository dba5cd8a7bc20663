"""Follow the pages of docs/recipes: write their files, and run their commands as they stand."""

import os
import re
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path

from conftest import ROOT, CommandResult
from followed_page import without_suspicion

BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Return language, file name and text of the code blocks of a page."""
    return BLOCK.findall((ROOT / "docs/recipes" / page).read_text())


def follow(page: str, folder: Path, command: Callable[..., CommandResult]) -> dict[str, str]:
    """Follow a page in a folder that holds its data; return the output of each command by its first two words.

    Blocks with a file name are files; blocks of `sh` are command lines. All other blocks, such as requests to a data
    centre, are left out. A verb that the page uses twice has the output of both.
    """
    outputs: dict[str, str] = {}
    for language, name, text in blocks(page):
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        elif language == "sh":
            for line in filter(None, text.replace("\\\n", " ").splitlines()):
                key = " ".join(line.split()[:2])
                outputs[key] = outputs.get(key, "") + run_line(line, folder, command)
    assert outputs, f"{page} has no commands"
    return outputs


def run_line(line: str, folder: Path, command: Callable[..., CommandResult]) -> str:
    """Run a command line of a page, which must succeed; return its output. Only programs named here can be run."""
    program, *words = shlex.split(line)
    if program == "python":
        before = Path.cwd()
        try:
            os.chdir(folder)
            runpy.run_path(words[0], run_name="__main__")
        finally:
            os.chdir(before)
        return ""
    assert program == "deepweather", line
    ended = command(folder, *words)
    assert ended.code == 0, f"{line}\n{ended.stdout}{ended.stderr}"
    return without_suspicion(ended.stdout + ended.stderr)
