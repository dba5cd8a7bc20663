"""Archives: formats of their parts, options and fingerprint."""

from dataclasses import replace

import numpy as np
import pytest
from weather_files import weather, write_grib

from data_pipeline.archive import Archive
from data_pipeline.common import identity
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.formats.reader_versions import READER_VERSIONS
from data_pipeline.grid import Grid
from data_pipeline.task import Task

TASK = Task("toy", ["2t"], ["2t"], [24], ["lsm"])
STARTS = np.array(["2016-01-04T12"], "M8[ns]")
WEATHER = weather((24,), (1, 2), (), STARTS, ("2t",), Grid.regular(5, 8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A GRIB ensemble of one start; analyses and static fields in GRIB and in NetCDF."""
    folder = tmp_path_factory.mktemp("archive")
    for part, data in WEATHER.items():
        write_grib(folder / f"{part}.grib", part, data, bitsPerValue=24)
        data.rename({"lsm": "LSM"} if part == "static" else {"2t": "MY_TEMPERATURE"}).to_netcdf(folder / f"{part}.nc")
    return folder


def archive(folder, analysis="grib", static="grib", **options):
    return Archive(
        [f"{folder}/ensemble.grib"], [f"{folder}/analysis.{analysis}"], [f"{folder}/static.{static}"], **options
    )


NAMES = {"MY_TEMPERATURE": "2t"}


@pytest.mark.parametrize(("analysis", "static", "names"), [("grib", "nc", None), ("nc", "grib", NAMES)])
def test_each_part_has_its_own_format(folder, analysis, static, names):
    (sample,) = ForecastDataset(archive(folder, analysis, static, variable_names=names), TASK, [2016])
    np.testing.assert_allclose(sample.ensemble[:, 0], WEATHER["ensemble"]["2t"][0, 0], rtol=1e-6)
    np.testing.assert_allclose(sample.target[0], WEATHER["analysis"]["2t"][0], rtol=1e-6)
    np.testing.assert_allclose(sample.static[3], WEATHER["static"].lsm, rtol=1e-6)


def test_the_oracle_is_the_same_archive_with_another_ensemble(folder):
    mixed = archive(folder, "nc", variable_names=NAMES, missing="mask", oracle_ensemble=[f"{folder}/ensemble.grib"])
    assert mixed.oracle == archive(folder, "nc", variable_names=NAMES, missing="mask")
    assert mixed.oracle.oracle is None


def test_wrong_options_are_refused(folder):
    for options, sentence in (
        ({"missing": "fill"}, "missing must be one of error, mask, drop, got 'fill'"),
        ({"variable_names": {228.128: "tp"}}, "variable_names has the number 228.128 as a name; write a"),
        ({"variable_names": ["2t"]}, r"variable_names must be {VARIABLE: shortName, ...}, got \['2t'\]"),
    ):
        with pytest.raises(InputError, match=rf"data\.archive\.{sentence}"):
            archive(folder, **options)


@pytest.mark.parametrize(("raised", "parts"), [("grib", ("grib", "grib")), ("netcdf", ("nc", "grib"))])
def test_a_new_version_of_a_reader_changes_the_fingerprint_of_its_files(folder, monkeypatch, raised, parts):
    mixed, grib = archive(folder, *parts), archive(folder)
    before = mixed.fingerprint, grib.fingerprint
    monkeypatch.setitem(READER_VERSIONS, raised, READER_VERSIONS[raised] + 1)
    assert replace(mixed).fingerprint != before[0]
    assert (replace(grib).fingerprint == before[1]) == (raised != "grib")


def test_an_unreadable_file_has_no_fingerprint(folder, monkeypatch):
    def refuse(*arguments):
        raise PermissionError(13, "Permission denied", str(folder / "ensemble.grib"))

    monkeypatch.setattr(identity, "sampled_hash", refuse)
    with pytest.raises(InputError, match=r"cannot read .*ensemble.grib \(Permission denied\)"):
        _ = archive(folder).fingerprint


def test_exists_is_false_if_a_part_has_no_files(folder, tmp_path):
    assert archive(folder).exists
    assert not Archive([f"{folder}/ensemble.grib"], [f"{tmp_path}/*"]).exists
