import re

from data_pipeline.grib import inventory


def lines(text):
    return dict(re.match(r"(.{12}) (.*)", line).groups() for line in text.splitlines())


def read(paths):
    return {name.strip(): text for name, text in lines(inventory(paths)).items()}


def test_a_complete_archive(writer, tmp_path):
    for year in (1998, 1999):
        writer.forecast(tmp_path / f"output.pl.{year}", ("z@500", "t@500", "z@850", "t@850"), (year,))
        writer.forecast(tmp_path / f"output.sfc.{year}", ("2t", "10u"), (year,))
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert read(tmp_path / "output.*") == {
        "files": f"4, {size:,} bytes",
        "messages": f"108, {108 * 40 * 4:,} bytes when decoded",
        "variables": "2t 10u; z t at 850 500 hPa",
        "starts": "2, 1998-01-04T00:00 to 1999-01-04T00:00 UTC",
        "lead times": "0 24 48 h",
        "members": "1 2 3",
        "grid": "5 x 8 points, latitudes 90 to -90, longitudes 0 to 315",
        "missing": "none",
        "repeated": "none",
    }


def test_what_is_missing_twice_or_damaged_is_said(writer, tmp_path):
    paths = [
        writer.forecast(tmp_path / "one", ("2t",), without=[("2t", 1999, 24, 2), ("2t", 1999, 24, 3)]),
        writer.forecast(tmp_path / "two", ("2t",), (1998,), (48,), (1, 2)),
        writer.forecast(tmp_path / "cut"),
    ]
    paths[-1].write_bytes(paths[-1].read_bytes()[:-1])
    found = read(paths)
    assert found["files"].startswith("2, ")
    assert found["missing"] == "2 of 18"
    assert found["repeated"] == "2"
    assert found["damaged"].startswith(f"{tmp_path}/cut is cut off: the message at byte ")


def test_only_damage_is_said_of_damaged_files(writer, tmp_path):
    path = writer.forecast(tmp_path / "cut")
    path.write_bytes(b"rubbish")
    assert list(read(path)) == ["damaged"]


def test_real_files(samples):
    assert read(samples / "grib_metview_ens" / "z500_ens.grib")["members"].endswith("11 ... 49 50 (51 in all)")
    assert read(samples / "grib_metview_ens" / "t_n48.grib")["grid"] == "reduced_gg, which is not read"
    found = read(samples / "grib_cfgrib_samples" / "hpa_and_pa.grib")
    assert found["variables"] == "t (isobaricInPa 10) t (isobaricInPa 1); t at 1 hPa"
    assert read(samples / "grib_cfgrib_samples" / "forecast_monthly_ukmo.grib")["missing"] == "4,312 of 4,480"
