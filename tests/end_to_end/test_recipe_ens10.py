"""docs/recipes/ens10.md on the files of the twin experiment, which have the layout of ENS-10."""

import json

import eccodes
import pytest
from recipe_pages import follow
from twin_project import messages


@pytest.fixture(scope="module")
def followed(project, command):
    """The folder in which the page was followed, and the output of its commands."""
    (project / "ens10").symlink_to("data/twin")
    return project, follow("ens10.md", project, command)


def test_the_page_corrects_all_years_of_a_file(followed):
    folder, _ = followed

    def years(path):
        return {eccodes.codes_get(handle, "dataDate") // 10000 for handle in messages(path)}

    assert years(folder / "corrected.grib") == years(folder / "ens10/output.sfc.20180108") == {*range(2010, 2018)}


def test_the_scores_are_of_the_test_years(followed):
    folder, _ = followed
    scores = json.loads((folder / "runs/ens10/scores/scores.json").read_text())
    assert scores["n_dates"] == 8
    assert scores["models"]["emos"]["crps"] < scores["models"]["raw"]["crps"]
