"""A release is made in a copy of the project."""

import re
import subprocess
import sys
import zipfile

import pytest
import yaml
from conftest import ROOT


def git(folder, *words):
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def make_release(folder, *words):
    return subprocess.run(
        [sys.executable, "scripts/release.py", *words], cwd=folder, capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder), "HOME": str(folder.parent)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A clone with one unreleased change, and with the files of this checkout that a release reads."""
    folder = tmp_path_factory.mktemp("release") / "project"
    subprocess.run(["git", "clone", "--quiet", "--shared", "--no-tags", ROOT, folder], check=True)
    for name, value in (("user.name", "a tester"), ("user.email", "tester@example.org")):
        git(folder, "config", name, value)
    for name in ("scripts/release.py", "CITATION.cff", "pyproject.toml"):
        (folder / name).write_text((ROOT / name).read_text())
    head = "# Changelog\n\n## [Unreleased]\n"
    (folder / "CHANGELOG.md").write_text(f"{head}\n### Added\n\n- A thing.\n\n## [0.1.0] - 2020-01-01\n\n- Old.\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a change")
    return folder


def test_a_dry_run_changes_nothing(copy):
    before = git(copy, "rev-parse", "HEAD")
    ended = make_release(copy, "9.8.7", "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert "CHANGELOG.md" in ended.stdout
    assert "9.8.7 can be released" in ended.stdout
    assert (git(copy, "rev-parse", "HEAD"), git(copy, "status", "--porcelain"), git(copy, "tag")) == (before, "", "")


def test_a_wrong_version_is_one_sentence(copy):
    for version, fault in (("1.0", "is no version"), ("0.0.1", "is older than"), ("v1.0.0", "is no version")):
        ended = make_release(copy, version)
        assert ended.returncode == 2
        assert re.fullmatch(rf"error: '?{version}'? {fault}.*\n", ended.stderr)


def test_a_release_has_version_tag_wheel_and_notes(copy):
    (copy / "uncommitted").write_text("")
    assert "not committed" in make_release(copy, "9.8.7").stderr
    (copy / "uncommitted").unlink()
    ended = make_release(copy, "9.8.7")
    assert ended.returncode == 0, ended.stderr
    assert git(copy, "describe", "--tags") == "v9.8.7"
    assert yaml.safe_load((copy / "CITATION.cff").read_text())["version"] == "9.8.7"
    with zipfile.ZipFile(copy / "dist/deepweather-9.8.7-py3-none-any.whl") as wheel:
        assert "Version: 9.8.7" in wheel.read("deepweather-9.8.7.dist-info/METADATA").decode()
    assert (copy / "dist/notes-9.8.7.md").read_text() == "### Added\n\n- A thing.\n"
    titles = re.findall(r"^## \[(.*?)\]", (copy / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles == ["Unreleased", "9.8.7", "0.1.0"]
    assert "no changes under [Unreleased]" in make_release(copy, "9.8.8").stderr


def test_the_citation_has_the_fields_of_its_format():
    """What the schema of cff-version 1.2.0 requires; all keys are keys of the schema."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert all(set(author) <= {"name", "website"} for author in citation["authors"])
    assert f'version = "{citation["version"]}"' in (ROOT / "pyproject.toml").read_text()
