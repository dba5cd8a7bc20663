"""Every failure ends in one sentence that names the file, field or option, and leaves no incomplete file."""

import eccodes
import pytest
from twin_project import FORECAST, QUICK, SPLIT, TWIN, messages

CORRECT = ("correct", "corrector=runs/emos/corrector.safetensors")


def test_a_truncated_forecast_is_named(project, refuse):
    (project / "cut.grib").write_bytes((project / FORECAST).read_bytes()[:100_000])
    line = refuse(project, *CORRECT, "input=cut.grib", "output=never.grib")
    assert "cut.grib" in line
    assert not (project / "never.grib").exists()


def test_a_missing_member_is_named(project, refuse):
    with (project / "holes.grib").open("wb") as file:
        for handle in messages(project / FORECAST):
            found = {name: eccodes.codes_get(handle, name) for name in ("shortName", "number", "step", "dataDate")}
            if found != {"shortName": "2t", "number": 3, "step": 48, "dataDate": 20120108}:
                file.write(eccodes.codes_get_message(handle))
    line = refuse(project, *CORRECT, "input=holes.grib", "output=never.grib")
    assert all(word in line for word in ("holes.grib", "2t", "2012-01-08", "48", "3"))


def test_a_missing_variable_is_named(project, refuse):
    line = refuse(project, *CORRECT, "input=data/twin/output.pl.20180108", "output=never.grib")
    assert "2t" in line
    assert "output.pl.20180108" in line


def test_an_unknown_variable_of_a_task_is_named(project, refuse):
    line = refuse(project, "train", *SPLIT, "task.inputs=[2t,xyz]", "run_dir=runs/unknown")
    assert "xyz" in line


@pytest.mark.parametrize("output", [FORECAST, f"./{FORECAST}"])
def test_the_input_is_not_overwritten(project, output, refuse):
    before = (project / FORECAST).read_bytes()
    line = refuse(project, *CORRECT, f"input={FORECAST}", f"output={output}")
    assert "output.sfc.20180108" in line
    assert (project / FORECAST).read_bytes() == before


def test_a_run_folder_belongs_to_one_run(project, refuse):
    line = refuse(project, "train", *SPLIT, "model=unet", "run_dir=runs/unet", "trainer.epochs=3", "model.width=4")
    assert "runs/unet holds a run with other trainer" in line


def test_another_twin_is_not_mixed_with_this_one(project, refuse):
    line = refuse(project, "prepare", *TWIN[:2], "data.generator.members=6")
    assert "members" in line


def test_testing_on_training_years_is_refused(project, refuse):
    line = refuse(
        project, "evaluate",
        "data.split.train=[2010,2011]", "data.split.val=[2012,2012]", "data.split.test=[2014,2014]",
        "correctors={emos: runs/emos/corrector.safetensors}", "run_dir=runs/leak",
    )  # fmt: skip
    assert "2014" in line
    assert not (project / "runs/leak/scores.json").exists()


def test_a_full_disk_while_correcting(project, small_disk, refuse):
    line = refuse(project, *CORRECT, f"input={FORECAST}", f"output={small_disk}/out.grib")
    assert "no space left" in line
    assert f"{small_disk}/out.grib" in line
    assert not list(small_disk.iterdir())


def test_a_full_disk_while_preparing_can_be_resumed(small_disk, tmp_path, refuse):
    line = refuse(tmp_path, "prepare", *TWIN, f"data.path={small_disk}/twin", code=3)
    assert "no space left" in line
    assert not list(small_disk.rglob("*.partial"))


def test_a_full_disk_while_training(project, small_disk, refuse):
    (small_disk / "ballast").write_bytes(bytes(1024 * 1024 - 8192))
    line = refuse(project, "train", *SPLIT, "model=unet", f"run_dir={small_disk}/run", *QUICK, code=3)
    assert "no space left" in line
    assert str(small_disk) in line
