"""Every failure prints one line that names the file, field or option, and leaves no incomplete file."""

import eccodes
import pytest
from twin_project import FORECAST, QUICK, SPLIT, TWIN, messages

CORRECT = ("correct", "corrector=runs/emos/corrector.safetensors")


def test_a_truncated_forecast_is_named(project, run_failing_verb):
    (project / "cut.grib").write_bytes((project / FORECAST).read_bytes()[:100_000])
    line = run_failing_verb(project, *CORRECT, "input=cut.grib", "output=never.grib")
    assert "cut.grib" in line
    assert not (project / "never.grib").exists()


def test_a_missing_member_is_named(project, run_failing_verb):
    with (project / "holes.grib").open("wb") as file:
        for handle in messages(project / FORECAST):
            found = {name: eccodes.codes_get(handle, name) for name in ("shortName", "number", "step", "dataDate")}
            if found != {"shortName": "2t", "number": 3, "step": 48, "dataDate": 20120108}:
                file.write(eccodes.codes_get_message(handle))
    line = run_failing_verb(project, *CORRECT, "input=holes.grib", "output=never.grib")
    assert all(word in line for word in ("holes.grib", "2t", "2012-01-08", "48", "3"))


def test_a_missing_variable_is_named(project, run_failing_verb):
    line = run_failing_verb(project, *CORRECT, "input=data/twin/output.pl.20180108", "output=never.grib")
    assert "2t" in line
    assert "output.pl.20180108" in line


def test_an_unknown_variable_of_a_task_is_named(project, run_failing_verb):
    line = run_failing_verb(project, "train", *SPLIT, "task.inputs=[2t,xyz]", "run_dir=runs/unknown")
    assert "xyz" in line


@pytest.mark.parametrize("output", [FORECAST, f"./{FORECAST}"])
def test_the_input_is_not_overwritten(project, output, run_failing_verb):
    before = (project / FORECAST).read_bytes()
    line = run_failing_verb(project, *CORRECT, f"input={FORECAST}", f"output={output}")
    assert "output.sfc.20180108" in line
    assert (project / FORECAST).read_bytes() == before


def test_the_run_folder_of_another_run_is_refused(project, run_failing_verb):
    line = run_failing_verb(
        project, "train", *SPLIT, "model=unet", "run_dir=runs/unet", "trainer.epochs=3", "model.width=4"
    )
    assert "runs/unet holds a run with other trainer" in line


def test_other_options_of_a_prepared_twin_are_refused(project, run_failing_verb):
    line = run_failing_verb(project, "prepare", *TWIN[:2], "data.generator.members=6")
    assert "members" in line


def test_test_years_that_overlap_training_years_are_refused(project, run_failing_verb):
    line = run_failing_verb(
        project, "evaluate",
        "data.split.train=[2010,2011]", "data.split.val=[2012,2012]", "data.split.test=[2014,2014]",
        "correctors={emos: runs/emos/corrector.safetensors}", "run_dir=runs/leak",
    )  # fmt: skip
    assert "2014" in line
    assert not (project / "runs/leak/scores.json").exists()


def test_a_full_disk_while_correcting_is_reported(project, small_disk, run_failing_verb):
    line = run_failing_verb(project, *CORRECT, f"input={FORECAST}", f"output={small_disk}/out.grib")
    assert "no space left" in line
    assert f"{small_disk}/out.grib" in line
    assert not list(small_disk.iterdir())


def test_a_full_disk_while_preparing_is_reported_and_can_be_resumed(small_disk, tmp_path, run_failing_verb):
    line = run_failing_verb(tmp_path, "prepare", *TWIN, f"data.path={small_disk}/twin", code=3)
    assert "no space left" in line
    assert not list(small_disk.rglob("*.partial"))


def test_a_full_disk_while_training_is_reported(project, small_disk, run_failing_verb):
    (small_disk / "ballast").write_bytes(bytes(1024 * 1024 - 8192))
    line = run_failing_verb(project, "train", *SPLIT, "model=unet", f"run_dir={small_disk}/run", *QUICK, code=3)
    assert "no space left" in line
    assert str(small_disk) in line
