"""The expected size of a classic file against the position of its last value."""

import netCDF4
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.formats.netcdf.file import expected_size

FORMATS = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA")
KINDS = ("i1", "i2", "i4", "f4", "f8")


@settings(max_examples=25)
@given(
    st.sampled_from(FORMATS),
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from(KINDS), st.booleans(), st.integers(0, 2)), min_size=1, max_size=4),
    st.dictionaries(st.text("abc", min_size=1, max_size=5), st.text(max_size=9), max_size=3),
)
def test_the_last_value_ends_the_file(tmp_path_factory, file_format, records, variables, attributes):
    """No value has a zero byte, so the last non-zero byte of the file belongs to a value or its padding."""
    path = tmp_path_factory.mktemp("classic") / "file.nc"
    with netCDF4.Dataset(path, "w", format=file_format) as file:
        file.setncatts({name: text or "-" for name, text in attributes.items()})
        file.createDimension("record", None)
        file.createDimension("x", 3)
        file.createDimension("y", 2)
        for k, (kind, recorded, dimensions) in enumerate(variables):
            shape = (("record",) if recorded else ()) + ("x", "y")[:dimensions]
            variable = file.createVariable(f"v{k}", kind, shape)
            value = np.frombuffer(b"\x7e" * np.dtype(kind).itemsize, kind)[0]
            sizes = [records if name == "record" else len(file.dimensions[name]) for name in shape]
            variable[...] = np.full(sizes, value)
    content = path.read_bytes()
    has_values = any(not recorded or (recorded and records) for _, recorded, _ in variables)
    if has_values:
        # Padding to four bytes need not be zero.
        assert 0 <= len(content.rstrip(b"\0")) - expected_size(path) < 4
    else:
        assert expected_size(path) <= len(content)
