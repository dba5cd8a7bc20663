"""GRIB2 messages with several fields: read through cfgrib, compared with the single fields they were made from."""

from concurrent.futures import ThreadPoolExecutor

import eccodes
import numpy as np
import pytest
from correction_runs import rewrite_fields
from grib_parts import section

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.grib_contents import summarize_files
from data_pipeline.formats.grib.scan import scan_messages
from data_pipeline.formats.grib.table import Table
from data_pipeline.formats.open import ensemble_fields, open_ensemble
from data_pipeline.grid import Grid
from data_pipeline.task import Variable
from data_pipeline.writing import Encoder

U, V = Variable("u", 500), Variable("v", 500)
PACKING = 2e-3
ENCODER = Encoder(Grid.regular(5, 8), edition=2, centre="kwbc", productDefinitionTemplateNumber=1)


def value(name, number, step):
    """A field (5, 8) that belongs to one message only."""
    return np.random.default_rng([*name.encode(), number, step]).normal(0, 10, (5, 8))


def field(name, number, step, values=None):
    """An ecCodes message of one field on a 45-degree grid, as NCEP writes members."""
    content = ENCODER.encode(
        value(name, number, step) if values is None else values, shortName=name, typeOfLevel="isobaricInhPa",
        level=500, dataDate=20180104, dataTime=0, step=step, perturbationNumber=number,
    )  # fmt: skip
    return eccodes.codes_new_from_message(content)


def write(path, *messages):
    """Write messages; each is a list of fields."""
    with path.open("wb") as file:
        for fields in messages:
            multi = eccodes.codes_grib_multi_new()
            for number, handle in enumerate(fields):
                # The second and later fields share sections 1 to 3 with the first.
                eccodes.codes_grib_multi_append(handle, 4 if number else 0, multi)
            if len(fields) > 1:
                eccodes.codes_grib_multi_write(multi, file)
            else:
                file.write(eccodes.codes_get_message(fields[0]))
            eccodes.codes_grib_multi_release(multi)
    return path


@pytest.fixture
def winds(tmp_path):
    """Wind components of two members and steps: two fields in each message; one message has a single field."""
    pairs = [[field(name, number, step) for name in "uv"] for number in (1, 2) for step in (0, 24)]
    return write(tmp_path / "winds", *pairs[:-1], *([one] for one in pairs[-1]))


def test_values_are_those_of_single_fields(winds, tmp_path):
    """Also in parts that several threads read, and where values are missing."""
    single = write(
        tmp_path / "single", *([field(name, number, step)] for number in (1, 2) for step in (0, 24) for name in "uv")
    )
    several, expected = (open_ensemble(path, chunks=None).load() for path in (winds, single))
    assert several.identical(expected)
    fields = ensemble_fields(winds, (V, U), (0, 24))

    def read(_):
        out = np.empty((2, 2, 2, 8), np.float32)
        fields.read(fields.cells[0, 1], out, (slice(1, 3), slice(None)))
        return out

    wanted = [[value(name, number, 24)[1:3] for name in "vu"] for number in (1, 2)]
    with ThreadPoolExecutor(4) as pool:
        for out in pool.map(read, range(20)):
            np.testing.assert_allclose(out, wanted, atol=PACKING)
    gaps = value("v", 1, 0)
    gaps[0, :3] = np.nan
    dataset = open_ensemble(write(tmp_path / "gaps", [field("u", 1, 0), field("v", 1, 0, gaps)]), chunks=None)
    np.testing.assert_array_equal(np.isnan(dataset.v.values.squeeze()), np.isnan(gaps))
    assert not np.isnan(dataset.u.values).any()


def test_fields_of_one_message_for_one_place_are_compared(tmp_path):
    """Both are parts of the same message, byte for byte, but different fields."""
    path = write(tmp_path / "file", [field("u", 1, 0), field("u", 1, 0, np.zeros((5, 8)))])
    with pytest.raises(InputError, match=r"file \(byte 0\) and .*file \(byte 0\) both hold u@500 .*their values only"):
        open_ensemble(path)
    assert "repeated     1" in summarize_files(path)
    same = write(tmp_path / "same", [field("u", 1, 0), field("u", 1, 0)])
    np.testing.assert_allclose(open_ensemble(same).u.squeeze(), value("u", 1, 0), atol=PACKING)


def test_rewriting_writes_one_message_per_field(winds, tmp_path):
    target = tmp_path / "target"
    new = np.arange(40.0).reshape(5, 8)
    count = rewrite_fields(
        winds, target, lambda message: new if message.variable == V and message.number == 2 else None
    )
    assert count == 2
    assert len(list(scan_messages(target))) == 8
    before, after = open_ensemble(winds, chunks=None), open_ensemble(target, chunks=None)
    assert (Table.of(target).records["field"] == 0).all()
    np.testing.assert_array_equal(after.u, before.u)
    np.testing.assert_array_equal(after.v.sel(number=1), before.v.sel(number=1))
    np.testing.assert_allclose(after.v.sel(number=2).values[0, :, 0], [new, new], atol=1e-2)


def test_a_damaged_field_is_refused_with_advice(winds):
    content = bytearray(winds.read_bytes())
    second = Table.of(winds).records["offset"][2]
    position = section(content, 5, second)  # data representation
    content[position + 9 : position + 11] = b"\xff\x00"  # a packing that does not exist
    winds.write_bytes(content)
    with pytest.raises(InputError, match=rf"winds: .*byte {second}"):
        open_ensemble(winds, chunks=None).load()
