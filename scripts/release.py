"""Make a release: `make release VERSION=0.2.0`, or with DRY_RUN=1 the same in a copy that is thrown away.

The version goes into pyproject.toml and CITATION.cff, and the changes under [Unreleased] of CHANGELOG.md get it as
their title. Then come one commit, the tag vVERSION, and in dist/ the wheel of this commit and the notes of the release.
Nothing leaves the machine: the last lines say what to push and to upload.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from data_pipeline.common.errors import InputError

ROOT = Path(__file__).parents[1]
UNRELEASED = "## [Unreleased]\n"


def changelog_of(text: str, version: str, day: str) -> tuple[str, str]:
    """Return CHANGELOG.md with the unreleased changes under a version, and the changes alone."""
    head, found, rest = text.partition(UNRELEASED)
    changes, following, older = rest.partition("\n## [")
    if not found or not changes.strip():
        raise InputError("CHANGELOG.md has no changes under [Unreleased]; a release needs one line at least")
    return f"{head}{UNRELEASED}\n## [{version}] - {day}\n{changes}{following}{older}", changes.strip() + "\n"


def with_version(text: str, pattern: str, version: str) -> str:
    """Return a file with another version; `pattern` has the line's beginning as its group."""
    changed, count = re.subn(rf"^({pattern})\S+$", lambda match: match[1] + version, text, flags=re.MULTILINE)
    if count != 1:
        raise InputError(f"there are {count} lines like {pattern!r} in place of one; mend scripts/release.py")
    return changed


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version; an error for any other form than 1.2.3."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise InputError(f"{version!r} is no version; write three numbers, such as 0.2.0")
    return tuple(map(int, version.split(".")))


def release(folder: Path, version: str, day: str) -> list[str]:
    """Make the release in a checkout; return what is left to do."""

    def git(*words: str) -> str:
        ended = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
        if ended.returncode:
            raise InputError(f"git {words[0]} failed: {ended.stderr.strip()}; mend this and give the command again")
        return ended.stdout.strip()

    def change(name: str, edit: Callable[[str], str]) -> None:
        path = folder / name
        path.write_text(edit(path.read_text("utf-8")), "utf-8")

    project = (folder / "pyproject.toml").read_text("utf-8")
    current = re.search(r'^version = "(.*)"$', project, re.MULTILINE)
    assert current, "pyproject.toml has a version"
    if numbers(version) < numbers(current[1]):
        raise InputError(f"{version} is older than {current[1]}, the version of pyproject.toml; give a newer one")
    if git("status", "--porcelain"):
        raise InputError("there are changes that are not committed; commit them, or put them away with git stash")
    if git("tag", "--list", f"v{version}"):
        raise InputError(f"the tag v{version} exists; give a newer version")
    changelog, notes = changelog_of((folder / "CHANGELOG.md").read_text("utf-8"), version, day)
    change("CHANGELOG.md", lambda _: changelog)
    change("pyproject.toml", lambda text: with_version(text, "version = ", f'"{version}"'))
    change("CITATION.cff", lambda text: with_version(text, "version: ", version))
    git("commit", "--quiet", "--all", "--allow-empty", "--message", f"Release {version}")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"], cwd=folder, check=True)
    (folder / "dist" / f"notes-{version}.md").write_text(notes, "utf-8")
    git("tag", "--annotate", f"v{version}", "--message", f"deepweather {version}\n\n{notes}")
    wheel = f"dist/deepweather-{version}-py3-none-any.whl"
    return [f"git push origin HEAD v{version}", f"upload {wheel} with dist/notes-{version}.md"]


def main() -> None:
    """Read the command line and make the release, or rehearse it in a copy."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    day = datetime.date.today().isoformat()
    try:
        if not options.dry_run:
            print(f"released {options.version}; what is left to do:", *release(ROOT, options.version, day), sep="\n  ")
            return
        with tempfile.TemporaryDirectory() as copy:
            subprocess.run(["git", "clone", "--quiet", ROOT, copy], check=True)
            for name in ("user.name", "user.email"):
                subprocess.run(["git", "-C", copy, "config", name, "dry run"], check=True)
            release(Path(copy), options.version, day)
            subprocess.run(["git", "-C", copy, "show", "--stat", "--format=%s", "HEAD"], check=True)
            print(f"a dry run: {options.version} can be released; nothing here has changed")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
