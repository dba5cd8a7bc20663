"""Versions of the readers: the part of an archive's fingerprint that says how its files are read.

Stores, statistics and cached samples hold values that a reader returned. Raise the version of a reader in the same
commit in which it returns other values, units, times or members for the same file: stores and statistics of the old
reader are then refused. `tests/data_pipeline/formats/test_reader_versions.py` fails when this was forgotten.
"""

READER_VERSIONS: dict[str, int] = {
    "grib": 5, "netcdf": 3, "zarr": 2, "table": 1, "dataset": 1, "derived": 1, "regridding": 1,
}  # fmt: skip
"""Version by the name of the format's package; of variables derived from others; of fields brought to another grid."""
COMMON_READERS = ("derived", "regridding")
"""Those that any archive may need."""


def common_versions() -> dict[str, int]:
    """Return the versions of the common readers."""
    return {name: READER_VERSIONS[name] for name in COMMON_READERS}
