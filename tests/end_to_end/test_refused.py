"""Failures print one line that names the file, field or option, and leave no incomplete file."""

import eccodes
import pytest
from twin_project import FORECAST, QUICK, SPLIT, TWIN, messages

CORRECT = ("correct", "corrector=runs/emos/corrector.safetensors", "output=never")
REFUSED = {
    "a missing member": ([*CORRECT, "input=holes.grib"], ["holes.grib", "2t", "2012-01-08", "48", "3"]),
    "a missing variable": ([*CORRECT, "input=data/twin/output.pl.20180108"], ["2t", "output.pl.20180108"]),
    "a loss for a model that is fitted at once": (
        ["train", *SPLIT, "model=emos", "loss=squared_error", "run_dir=runs/refused"],
        ["is fitted in closed form, with its own score; leave out loss"],
    ),
    "other options of a prepared twin": (["prepare", *TWIN[:2], "data.generator.members=6"], ["members"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_named(project, run_failing_verb, what):
    """The file `holes.grib` lacks a member of one field."""
    with (project / "holes.grib").open("wb") as file:
        for handle in messages(project / FORECAST):
            found = [eccodes.codes_get(handle, name) for name in ("shortName", "number", "step", "dataDate")]
            if found != ["2t", 3, 48, 20120108]:
                file.write(eccodes.codes_get_message(handle))
    words, named = REFUSED[what]
    line = run_failing_verb(project, *words)
    assert [text for text in named if text not in line] == []
    assert not (project / "never").exists()


def test_a_full_disk_while_training_is_reported(project, small_disk, run_failing_verb):
    (small_disk / "ballast").write_bytes(bytes(1024 * 1024 - 8192))
    line = run_failing_verb(project, "train", *SPLIT, "model=unet", f"run_dir={small_disk}/run", *QUICK, code=3)
    assert "no space left" in line
    assert str(small_disk) in line
