"""Summary of the contents of files."""

from data_pipeline.formats.netcdf import summarize_files

K = {"units": "K"}


def test_summarize_files(plain, tmp_path):
    one = plain.cfgrib(tmp_path / "one.nc", {"t2m": K, "weird": {"units": "1"}}, starts=(0, 96))
    two = plain.cfgrib(tmp_path / "two.nc", {"t2m": {"units": "J"}}, starts=(192,))
    three = plain.cfgrib(tmp_path / "three.nc", {"t2m": K}, starts=(96, 240), steps=(0, 24))
    (tmp_path / "four.nc").write_text("no forecast")
    lines = summarize_files([one, two, three, tmp_path / "four.nc"], names={"weird": "slt"}).splitlines()
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
        f"not read     {two} (t2m) is in 'J', GRIB has 2t in K; convert it or correct its units, for instance with "
        'ncatted -a units,t2m,o,c,"K"',
        f"not read     {tmp_path / 'four.nc'} is not a NetCDF file; check the path",
    ]
