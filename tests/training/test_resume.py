"""A run folder belongs to one run: what makes it another run, and what does not."""

import pytest

from data_pipeline.errors import InputError
from training.resume import claim

OPTIONS = {
    "data": {"name": "twin", "cache": {"memory": 4, "folder": None}},
    "trainer": {"epochs": 3, "checkpoint_minutes": 10},
    "run_dir": "runs/a",
}


def changed(group, option, value):
    return OPTIONS | {group: OPTIONS[group] | {option: value}}


def test_the_same_options_go_on(tmp_path):
    assert claim(tmp_path, OPTIONS, "data 1") == claim(tmp_path, OPTIONS | {"run_dir": "moved"}, "data 1")


@pytest.mark.parametrize(
    "options",
    [changed("data", "cache", {"memory": 9, "folder": "/other/disk"}), changed("trainer", "checkpoint_minutes", 1)],
    ids=["another disk", "other minutes"],
)
def test_options_without_effect_on_the_result_go_on(tmp_path, options):
    assert claim(tmp_path, OPTIONS, "data 1") == claim(tmp_path, options, "data 1")


@pytest.mark.parametrize(
    ("options", "fingerprint", "named"),
    [
        (changed("trainer", "epochs", 4), "data 1", "trainer"),
        (changed("data", "name", "grib"), "data 1", "data"),
        (changed("trainer", "epochs", 4) | {"data": {"name": "grib"}}, "data 1", "data and trainer"),
        (OPTIONS, "data 2", "fingerprint"),
    ],
)
def test_another_run_is_refused_by_what_differs(tmp_path, options, fingerprint, named):
    claim(tmp_path, OPTIONS, "data 1")
    with pytest.raises(InputError, match=f"holds a run with other .*{named}.*; choose another run_dir or remove"):
        claim(tmp_path, options, fingerprint)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_text("- a list\n")
    with pytest.raises(InputError, match="holds a run with other options"):
        claim(tmp_path, OPTIONS, "data 1")
