"""Every command of README.md and of the docs: composed strictly, and run on a small twin where that takes seconds."""

import importlib.util
import re
import shlex
import shutil
from functools import cache

import pytest
from conftest import ROOT
from deepweather import VERBS
from followed_page import BLOCK, lines_of
from twin_project import FORECAST, SPLIT, TWIN

from conf import build, options_of_verb, plain
from conf.command_line import SHORT, has_groups
from conf.hydra_command import composed
from data_pipeline.grid import Grid
from models.corrector import build_model, needed_task
from training.run.trainer_options import TrainerOptions

FOLLOWED = ("docs/tutorials/", "docs/extending/", "docs/recipes/", "docs/data/stations.md")
"""Pages that a test of their own follows, command by command."""
PAGES = [
    name
    for name in ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
    if not name.startswith((*FOLLOWED, "docs/decisions/"))
]
RUN = ("prepare data=twin", "train data=twin", "combine", "evaluate", "correct", "monitor", "export")
"""Commands of the README that run here, by their beginning: every verb. Others are composed."""
STARTS = ("deepweather ", "torchrun ", "make ", "python -m ", "scripts/", ".venv/bin/python -m ")


def commands(page):
    """The command lines of a page; shell variables that a block sets have their values, all others are 1."""
    found = []
    for language, _, text in BLOCK.findall((ROOT / page).read_text()):
        if language in ("", "sh", "bash"):
            for name, value in re.findall(r'^(\w+)="(.*?)"$', text, re.MULTILINE | re.DOTALL):
                text = re.sub(rf"\${name}\b", " ".join(value.split()), text)
            lines = [re.sub(r"\$\w+", "1", line.removeprefix("$ ")) for line in lines_of(text)]
            found += [line for line in lines if line.startswith(STARTS)]
    return found


def words_of(line):
    """The words of a command behind `deepweather`; the reader fills in places that are written `...`."""
    words = shlex.split(line, comments=True)
    verb, *words = words[words.index("deepweather") + 1 :]
    if "..." in words and verb == "correct":
        words += ["corrector=A", "input=B", "output=C"]
    if verb == "compare":
        words.append(f"runs=[{','.join(word for word in words if '=' not in word)}]")
    return [verb, *(word for word in words if not re.search(r"(^|=|\{)\.\.\.\}?$", word))]


ALL = [(page, line) for page in PAGES for line in commands(page)]
OURS = [(page, line) for page, line in ALL if re.search(r"(^| )deepweather ", line)]


@cache
def check(verb, *words):
    """Compose the options of a verb, and build what they describe; a wrong name or value is an error."""
    assert verb in VERBS
    if verb == "submit":
        place = next(k for k, word in enumerate(words) if word in VERBS)
        check(*words[place:])
        words = [word for word in words[:place] if word != "--dry-run"]
    sweep = "-m" in words
    words = [word for word in words if "=" in word and not word.startswith(("hydra.", "hydra/"))]
    if sweep:
        words = [first_value(word) for word in words]
    if not has_groups(verb):
        options_of_verb(verb, words, ())
        return
    full = [re.sub(rf"^({'|'.join(SHORT)})=", r"data.\1=", word) for word in words]
    cfg = composed(verb, full)
    task = build(cfg.task) if "task" in cfg else None
    if verb == "train":
        spec = plain(cfg.model)
        build_model(spec, needed_task(spec, task), Grid.regular(17, 24))
        assert isinstance(build(cfg.trainer), TrainerOptions)


def first_value(word):
    """The first value of a sweep: of `1,2,3`, of a range and of an interval."""
    name, _, value = word.partition("=")
    value = re.sub(r"^(?:range\((\d+),.*\)|tag\(log,interval\(([^,]+),.*\))$", lambda m: m[1] or m[2], value)
    return f"{name}={value if value.startswith(('[', '{', '$')) else value.split(',')[0]}"


@pytest.mark.parametrize("page", sorted({page for page, _ in OURS}))
def test_commands_have_names_and_values_that_exist(page):
    for line in (line for where, line in OURS if where == page):
        try:
            check(*words_of(line))
        except Exception as error:
            raise AssertionError(f"{line}\n{error}") from error


def test_other_commands_exist():
    """Targets of make, scripts, and modules that `python -m` starts."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page, line in ALL:
        words = shlex.split(line, comments=True)
        if words[0] == "make":
            assert words[1] in targets, (page, line)
        elif words[0].startswith("scripts/"):
            assert (ROOT / words[0]).is_file(), (page, line)
        elif words[1] == "-m" and words[0] != "torchrun":
            assert importlib.util.find_spec(words[2]), (page, line)


def test_a_wrong_command_is_found():
    with pytest.raises(Exception, match="mosel"):
        check("train", "mosel=unet")
    with pytest.raises(Exception, match="head"):
        check("train", "model=mlp", "model.head=norml")


def with_small_options(words):
    """A command with the years of the small twin, and few epochs."""
    verb, *rest = words
    if verb == "prepare":
        return [verb, *rest, *TWIN]
    if verb == "evaluate":
        return [verb, *rest, *SPLIT]
    if verb == "train":
        return [verb, *rest, *SPLIT, "trainer.epochs=1"]
    return words


@pytest.mark.long
def test_the_commands_of_the_readme_run(first_project, tmp_path, command):
    """In their order; a corrector that the page takes as given is the MLP of the small twin."""
    (tmp_path / "data").symlink_to(first_project / "data")
    shutil.copy(first_project / FORECAST, tmp_path / "IN.grib")
    starts = tuple(f"deepweather {start}" for start in RUN)
    lines = [line for line in commands("README.md") if " ".join(line.split()).startswith(starts)]
    assert len(lines) >= len(RUN)
    for line in lines:
        words = [word.replace("data/twin/output.sfc.20180709", FORECAST) for word in words_of(line)]
        for word in words:
            for path in re.findall(r"[\w./-]+\.safetensors", word) if not word.startswith("output=") else ():
                if not (tmp_path / path).exists():
                    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(first_project / "runs/mlp/corrector.safetensors", tmp_path / path)
        ended = command(tmp_path, *with_small_options(words))
        assert ended.code == 0, f"{line}\n{ended.stdout}{ended.stderr}"
