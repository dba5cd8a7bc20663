import eccodes
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.writing import Encoder

GRID = Grid.regular(5, 8)
FIELD = 280 + np.random.default_rng(0).standard_normal((5, 8))
ENS10 = {
    "centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 26, "class": "od", "type": "pf",
    "stream": "enfh", "expver": "0001", "referenceDate": 20180104, "numberOfForecastsInEnsemble": 11,
}  # fmt: skip


def test_an_ens10_message_has_the_keys_and_the_size_of_the_published_files():
    grid = Grid.regular(361, 720)
    message = Encoder(grid, **ENS10).encode(
        np.random.default_rng(0).standard_normal(grid.shape),
        typeOfLevel="isobaricInhPa", level=850, shortName="t", dataDate=19980104, dataTime=0, endStep=48,
        perturbationNumber=7,
    )  # fmt: skip
    expected = {
        "edition": 1, "mars.hdate": 19980104, "mars.date": 20180104, "ls.dataDate": 19980104, "P1": 48,
        "ls.level": 850, "mars.param": "130.128", "mars.number": 7, "mars.type": "pf", "mars.stream": "enfh",
        "numberOfForecastsInEnsemble": 11, "bitsPerValue": 16, "Ni": 720, "Nj": 361, "scanningMode": 0,
        "iDirectionIncrementInDegrees": 0.5, "longitudeOfLastGridPointInDegrees": 359.5,
    }  # fmt: skip
    handle = eccodes.codes_new_from_message(message)
    assert {key: eccodes.codes_get(handle, key) for key in expected} == expected
    assert len(message) == 519_965  # 46,200 of them make the 24.0 GB of a published pressure-level file


CONSTANTS = [np.full(GRID.shape, value) for value in (0.0, 5.0, -273.15, np.nan)]
FIELDS = [FIELD, FIELD * 1e-6, np.where(FIELD > 280, np.nan, FIELD), *CONSTANTS]
KEYS = st.fixed_dictionaries(
    {"dataDate": st.sampled_from([19980104, 20171231]), "endStep": st.sampled_from([0, 24, 48])},
    optional={
        "perturbationNumber": st.integers(0, 50),
        "shortName": st.sampled_from(["t", "z", "q"]),
        "typeOfLevel": st.sampled_from(["surface", "isobaricInhPa"]),
        "level": st.sampled_from([0, 10, 500, 1000]),
        "dataTime": st.sampled_from([0, 1200]),
        "bitsPerValue": st.sampled_from([8, 16, 24]),
    },
)


@settings(max_examples=30)
@given(st.lists(st.tuples(KEYS, st.sampled_from(FIELDS)), min_size=1, max_size=6))
def test_no_message_depends_on_earlier_messages(plain, messages):
    encoder = Encoder(GRID, **ENS10)
    for keys, field in messages:
        message = encoder.encode(field, **keys)
        assert message == Encoder(GRID, **ENS10).encode(field, **keys)
        if np.isnan(field).all() or np.nanmin(field) == np.nanmax(field):
            values = plain.values(eccodes.codes_new_from_message(message))
            np.testing.assert_allclose(values.reshape(GRID.shape), field, rtol=1e-6)


def test_a_refused_key_is_not_kept(tmp_path):
    encoder = Encoder(GRID)
    with pytest.raises(ValueError, match="noSuchKey='x'"):
        encoder.encode(FIELD, noSuchKey="x")
    with pytest.raises(ValueError, match="shortName='nonsense'"):
        encoder.encode(FIELD, shortName="nonsense")
    assert encoder.encode(FIELD, shortName="2t") == Encoder(GRID).encode(FIELD, shortName="2t")


def test_grids_and_fields_that_cannot_be_written_are_refused():
    with pytest.raises(InputError, match="edition must be 1 or 2, got 3"):
        Encoder(GRID, edition=3)
    with pytest.raises(InputError, match=r"the latitudes of .* are not evenly spaced"):
        Encoder(Grid((60, 40, 10), (0, 10, 20)))
    with pytest.raises(ValueError, match=r"\(8, 5\)"):
        Encoder(GRID).encode(FIELD.T)


@pytest.mark.parametrize(
    ("edition", "grid"),
    [(1, GRID), (2, Grid((50.5, 50.0), (-20, -19.75, -19.5))), (1, Grid((10.0,), (20.0,))), (2, Grid.regular(33, 64))],
    ids=str,
)
def test_cfgrib_reads_the_grid(tmp_path, grid, edition):
    path = tmp_path / "field"
    path.write_bytes(Encoder(grid, edition=edition, shortName="t", level=500).encode(np.ones(grid.shape)))
    dataset = xr.open_dataset(path, engine="cfgrib", backend_kwargs={"indexpath": ""})
    np.testing.assert_allclose(np.atleast_1d(dataset.latitude), grid.latitudes, atol=2e-3)
    east = (np.atleast_1d(dataset.longitude) - np.array(grid.longitudes)) % 360
    np.testing.assert_allclose(np.minimum(east, 360 - east), 0, atol=2e-3)
