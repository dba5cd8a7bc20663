"""Summary of the contents of files."""

from data_pipeline.formats.cf import summarize_files
from data_pipeline.formats.netcdf.netcdf_catalog import NetCDFCatalog

K = {"units": "K"}


def test_summarize_files(plain, tmp_path):
    one = plain.cfgrib(tmp_path / "one.nc", {"t2m": K, "weird": {"units": "1"}}, starts=(0, 96))
    two = plain.cfgrib(tmp_path / "two.nc", {"t2m": {"units": "J"}}, starts=(192,))
    three = plain.cfgrib(tmp_path / "three.nc", {"t2m": K}, starts=(96, 240), steps=(0, 24))
    (tmp_path / "four.nc").write_text("no forecast")
    files = [one, two, three, tmp_path / "four.nc"]
    lines = summarize_files(files, catalog=NetCDFCatalog, names={"weird": "slt"}).splitlines()
    summary = dict(line.split(maxsplit=1) for line in lines if not line.startswith(("lead", "not")))
    assert summary["files"].startswith("4, ")
    assert summary["fields"] == "48, 4.61 kB when decoded"
    assert summary["variables"] == "2t slt"
    assert summary["called"] == "2t is t2m, slt is weird"
    assert summary["starts"] == "3, 2000-01-01T00:00 to 2000-01-11T00:00 UTC"
    assert "lead times   0 24 48 h" in lines
    assert summary["members"] == "1 2 3"
    assert summary["grid"] == "4 x 6 points, latitudes 60 to 15, longitudes 0 to 300"
    assert summary["missing"] == "3 of 45"
    assert summary["repeated"] == "6"
    assert [line for line in lines if "not read" in line] == [
        f"not read     {two} (t2m) is in 'J', GRIB has 2t in K; convert its values, for instance with cdo "
        '-setattribute,t2m@units="K" -addc,OFFSET -mulc,FACTOR in.nc out.nc, or give it another name with '
        "data.archive.variable_names",
        f"not read     {tmp_path / 'four.nc'} is text, not NetCDF; name a file of fields",
    ]


def test_prepare_describes_other_files_before_the_error_of_a_file_that_is_cut_off(plain, tmp_path, command):
    for name in ("ensemble_1.nc", "ensemble_2.nc", "analysis.nc"):
        plain.cfgrib(tmp_path / name)
    whole = (tmp_path / "ensemble_2.nc").read_bytes()
    (tmp_path / "ensemble_2.nc").write_bytes(whole[: len(whole) // 2])
    ended = command(tmp_path, "prepare", "data=netcdf", "path=.")
    assert ended.code == 2
    assert "variables    2t" in ended.stdout
    assert ended.stderr.startswith("error: cannot read ensemble_2.nc (")
    assert "fetch it again, or leave it out of data.archive" in ended.stderr
