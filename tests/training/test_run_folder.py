"""A run folder belongs to one run: options that make another run, and options that do not."""

import pytest

from data_pipeline.common.errors import DiskFullError, InputError, InterruptedRunError
from training.run_folder import claim, resumable

OPTIONS = {
    "data": {"name": "twin", "cache": {"memory": 4, "folder": None}},
    "trainer": {"epochs": 3, "checkpoint_minutes": 10},
    "run_dir": "runs/a",
}


def change_option(group, option, value):
    return OPTIONS | {group: OPTIONS[group] | {option: value}}


def test_the_same_options_resume(tmp_path):
    assert claim(tmp_path, OPTIONS, "data 1") == claim(tmp_path, OPTIONS | {"run_dir": "moved"}, "data 1")


@pytest.mark.parametrize(
    "options",
    [
        change_option("data", "cache", {"memory": 9, "folder": "/other/disk"}),
        change_option("trainer", "checkpoint_minutes", 1),
    ],
    ids=["another disk", "other minutes"],
)
def test_options_without_effect_on_the_result_resume(tmp_path, options):
    assert claim(tmp_path, OPTIONS, "data 1") == claim(tmp_path, options, "data 1")


@pytest.mark.parametrize(
    ("options", "fingerprint", "named"),
    [
        (change_option("trainer", "epochs", 4), "data 1", "trainer"),
        (change_option("data", "name", "grib"), "data 1", "data"),
        (change_option("trainer", "epochs", 4) | {"data": {"name": "grib"}}, "data 1", "data and trainer"),
        (OPTIONS, "data 2", "fingerprint"),
    ],
)
def test_another_run_is_refused_with_the_differing_groups(tmp_path, options, fingerprint, named):
    claim(tmp_path, OPTIONS, "data 1")
    with pytest.raises(InputError, match=f"holds a run with other .*{named}.*; choose another run_dir"):
        claim(tmp_path, options, fingerprint)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_text("- a list\n")
    with pytest.raises(InputError, match="was not written by deepweather train; choose another run_dir"):
        claim(tmp_path, OPTIONS, "data 1")


def test_a_run_of_an_older_version_is_refused(tmp_path):
    """Version 0.1 had other names for options and for the state of callbacks in checkpoints."""
    (tmp_path / "config.yaml").write_text(
        "trainer: {epochs: 3, enough: null}\nfingerprint: data 1\nrun: 0123456789abcdef\n"
    )
    with pytest.raises(InputError, match=r"run of another version .* finish it with that version, or choose another"):
        claim(tmp_path, OPTIONS, "data 1")
    assert "enough" in (tmp_path / "config.yaml").read_text(), "a refused folder is not changed"


def fail(folder, error, made=()):
    """Claim a folder, create subfolders and fail."""
    with resumable(folder):
        claim(folder, OPTIONS, "data 1")
        for name in made:
            (folder / name).mkdir()
        raise error


@pytest.mark.parametrize("made", [[], ["tensorboard"], ["tensorboard", "checkpoints"]])
def test_a_refused_run_keeps_its_folder_only_with_checkpoints(tmp_path, made):
    with pytest.raises(InputError, match="wrong option"):
        fail(tmp_path, InputError("wrong option"), made)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == ({"config.yaml", *made} if "checkpoints" in made else set())


def test_a_refused_run_does_not_delete_earlier_files(tmp_path):
    (tmp_path / "tensorboard").mkdir()
    with pytest.raises(InputError, match="wrong option"):
        fail(tmp_path, InputError("wrong option"))
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]


@pytest.mark.parametrize("error", [DiskFullError("no space"), InterruptedRunError("stopped")])
def test_a_resumable_run_keeps_its_folder(tmp_path, error):
    with pytest.raises(InterruptedRunError):
        fail(tmp_path, error)
    assert (tmp_path / "config.yaml").exists()


def test_a_refused_run_does_not_touch_another_runs_folder(tmp_path):
    claim(tmp_path, OPTIONS, "data 1")
    with pytest.raises(InputError, match="holds a run"), resumable(tmp_path):
        claim(tmp_path, OPTIONS, "data 2")
    assert (tmp_path / "config.yaml").exists()
