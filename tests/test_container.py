"""The recipes of images: rules that a linter of Dockerfiles checks, equal steps, and steps that other tests run."""

import re
import subprocess

import pytest
from conftest import ROOT

DOCKERFILE = (ROOT / "container/Dockerfile").read_text()
APPTAINER = (ROOT / "container/deepweather.def").read_text()
INSTRUCTIONS = [
    tuple(line.split(maxsplit=1)) for line in DOCKERFILE.splitlines() if line and not line.startswith(("#", " "))
]


def stages():
    """The instructions of each stage by its name, with those of the stages that it continues; and its base image."""
    found, base, name = {}, {}, ""
    for word, rest in INSTRUCTIONS:
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            found[name], base[name] = [*found.get(image, [])], base.get(image, image)
        else:
            found[name].append((word, rest))
    return found, base


def context():
    """The tracked files that the build sees: `.dockerignore` leaves out all but some."""
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in tracked if name.split("/")[0] in kept], kept


@pytest.mark.parametrize("stage", ["correct", "train"])
def test_an_image_runs_without_rights_and_starts_the_command(stage):
    instructions = stages()[0][stage]
    assert [rest for word, rest in instructions if word == "USER"] == ["1000"]
    assert [rest for word, rest in instructions if word == "ENTRYPOINT"] == ['["deepweather"]']
    copied = [rest for word, rest in instructions if word == "COPY"]
    assert copied == [f"--from=install-{stage} /opt/deepweather /opt/deepweather"], "no sources, no tools of the build"
    assert not any(word == "ADD" or "sudo" in rest for word, rest in instructions)


def test_the_base_is_pinned_and_comes_from_the_default_registry():
    base = {*stages()[1].values()}
    base |= {line.split()[1] for line in APPTAINER.splitlines() if line.startswith("From:")}
    assert len(base) == 1
    version = re.fullmatch(r"python:(3\.1[123])\.\d+-slim-\w+", base.pop())
    assert version, "an exact version of Python, no host"
    assert not re.search(r"https?://|index-url|find-links", DOCKERFILE + APPTAINER)


def test_both_recipes_have_the_same_lines_and_settings():
    docker = {rest for _, instructions in stages()[0].items() for word, rest in instructions if word == "RUN"}
    docker = {line for line in docker if "useradd" not in line}
    post = APPTAINER.partition("%post\n")[2].partition("\n\n")[0].splitlines()
    lines = {line.strip() for line in post if not line.strip().startswith(("export ", "cd "))}
    assert {line.replace("{{ extra }}", extra) for line in lines for extra in ("small", "train")} == docker
    settings = next(rest for word, rest in stages()[0]["train"] if word == "ENV" and "PATH" in rest)
    assert [settings] == re.findall(r"%environment\n    export (.*)", APPTAINER)


def test_the_build_sees_all_files_of_the_wheel_and_no_others():
    """The wheel is built from the context alone: folders of the wheel, and the files that pyproject.toml names."""
    files, kept = context()
    assert all((ROOT / name).exists() for name in kept)
    project = (ROOT / "pyproject.toml").read_text()
    packages = re.search(r"packages = \[(.*)\]", project)[1].replace('"', "").split(", ")
    assert {*packages, "scripts", "README.md", "LICENSE", "pyproject.toml", "requirements.lock"} == {*kept}
    assert "scripts/install" in files
