"""`train statistics=FOLDER` takes what `prepare` computed from the same samples, and refuses everything else."""

import re
import shutil

import eccodes
import pytest
import torch
from grib_parts import OPTIONS, write_archive

from models.corrector import Corrector
from models.normalizer import Normalizer

NETWORK = ("model.width=4", "trainer.epochs=1", "trainer.emos_minutes=0")
SMALL = {"transformer": ("trainer.epochs=1", "model.depth=1", "model.width=4"), "emos": ("model.shared=false",)}


@pytest.fixture(scope="module")
def project(tmp_path_factory, command):
    """A folder with an archive and its statistics of the training years."""
    folder = tmp_path_factory.mktemp("project")
    write_archive(folder)
    ended = command(folder, "prepare", *OPTIONS, "path=.", "statistics=[normalization,efi]", "run_dir=made")
    assert ended.code == 0, ended.stderr
    assert "normalization: in made/normalization.nc" in ended.stdout
    return folder


@pytest.mark.parametrize("model", SMALL)
def test_the_corrector_is_the_same_with_the_file(model, project, command, monkeypatch):
    """Bit for bit, for models of moments and of members; only the run without the file reads samples to normalise."""
    passes, fit = [], Normalizer.fit
    monkeypatch.setattr(Normalizer, "fit", lambda self, batches: passes.append(1) or fit(self, batches))
    monkeypatch.setattr("training.training_run.fitted_references", lambda *arguments: {})
    line = ("train", *OPTIONS, "path=.", f"model={model}", *SMALL[model], "trainer.emos_minutes=0")
    for run, options in (("own", ()), ("file", ("statistics=made",))):
        ended = command(project, *line, *options, f"run_dir={model}-{run}")
        assert ended.code == 0, ended.stderr
        assert ("normalisation from made" in ended.stdout) == (run == "file")
    assert len(passes) == 1
    own, file = (Corrector.load(project / f"{model}-{run}/corrector.safetensors") for run in ("own", "file"))
    for name, tensor in own.state_dict().items():
        assert torch.equal(file.state_dict()[name], tensor), name
    assert file.envelope == own.envelope
    assert {**file.provenance, "run": ""} == {**own.provenance, "run": ""}


def test_the_climate_of_the_loss_is_in_the_same_folder(project, command):
    line = ("train", *OPTIONS, "path=.", "model=mlp", *NETWORK, "loss=eecrps")
    assert command(project, *line, "statistics=made", "run_dir=eecrps").code == 0
    ended = command(project, *line, "run_dir=none")
    assert ended.code == 2
    assert "loss=eecrps needs a climate: set loss.climate to a file efi.nc, or statistics to its folder" in ended.stderr
    # A run belongs to the climate that it began with.
    shutil.copytree(project / "made", project / "changed")
    assert command(project, *line, "loss.climate=changed/efi.nc", "run_dir=by-file").code == 0
    prepare = ("prepare", *OPTIONS, "path=.", "statistics=[efi]", "efi.window_starts=3", "run_dir=changed")
    assert command(project, *prepare).code == 0
    ended = command(project, *line, "loss.climate=changed/efi.nc", "run_dir=by-file")
    assert ended.code == 2
    assert "by-file holds a run with other climate" in ended.stderr


@pytest.fixture(scope="module")
def others(project, command):
    """Statistics of the same project that do not suit its runs: of fewer inputs, of fewer forecasts, of no inputs."""
    shutil.copy(project / "ensemble.grib", project / "renamed.grib")
    (project / "climate").mkdir()
    shutil.copy(project / "made/efi.nc", project / "climate")
    with (project / "ensemble.grib").open("rb") as file, (project / "holes.grib").open("wb") as out:
        dropped = False
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            if dropped or eccodes.codes_get(handle, "shortName") != "msl":
                out.write(eccodes.codes_get_message(handle))
            else:
                dropped = True
            eccodes.codes_release(handle)
    line = ("prepare", *OPTIONS, "path=.", "statistics=[normalization]")
    assert command(project, *line, "task.inputs=[2t]", "run_dir=thin").code == 0
    assert command(project, *line, *HOLES, "run_dir=holes").code == 0
    return project


HOLES = ("data.archive.ensemble=[holes.grib]", "data.archive.missing=drop")


def test_statistics_of_other_samples_are_refused(others, command):
    for options, message in (
        (("statistics=nowhere",), r"statistics: nowhere holds no normalization\.nc or efi\.nc; make them with"),
        (
            ("data.split.train=[2000,2000]",),
            r"normalization\.nc is made of 2000-01-01 to 2001-12-21, the training dates are 2000",
        ),
        (("max_members=3",), r"is made of 4 members, this run uses 3; .* normalization\.max_members=3"),
        (("data.archive.ensemble=[renamed.grib]",), "is made of other forecasts than those of data"),
        (("statistics=thin",), r"thin/normalization\.nc is made without the channel msl of the task"),
        (
            ("statistics=holes", *HOLES, "task.inputs=[2t]"),
            r"holes/normalization\.nc is made of 23 forecasts at 24 h, this run trains on 24 at 24 h",
        ),
        (
            ("model.power=0.5",),
            r"model\.power=0\.5 changes the values that are normalised \(model\.power=1 does not\); leave out",
        ),
        (("initial_weights=made/efi.nc",), "initial_weights brings its own normalisation; leave out statistics"),
        (("statistics=climate",), r"climate holds efi\.nc only, which needs loss=eecrps without loss\.climate"),
    ):
        line = ("train", *OPTIONS, "path=.", "model=mlp", "++model.power=1", *NETWORK, "run_dir=refused")
        ended = command(others, *line, *([] if options[0].startswith("statistics") else ["statistics=made"]), *options)
        assert ended.code == 2, ended.stdout
        assert re.search(message, ended.stderr), ended.stderr
        assert not (others / "refused" / "config.yaml").exists()
