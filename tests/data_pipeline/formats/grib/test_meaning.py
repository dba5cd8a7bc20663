"""Units, processing over time, intervals and products of GRIB messages, which ecCodes alone has written."""

import eccodes
import numpy as np
import pytest
from grib_parts import packed

from data_pipeline.common.errors import InputError
from data_pipeline.common.messages import say_once
from data_pipeline.formats.grib.grib_catalog import MessageCatalog
from data_pipeline.formats.grib.grib_contents import summarize_files
from data_pipeline.formats.grib.interval import MONTHLY_STREAMS
from data_pipeline.formats.grib.table import Table
from data_pipeline.formats.open import ensemble_fields, open_analysis, open_ensemble
from data_pipeline.task import Variable

ECMWF = {
    "centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 1, "class": "od", "type": "pf",
    "stream": "enfo", "expver": "0001", "numberOfForecastsInEnsemble": 51,
}  # fmt: skip
FIELD = np.linspace(0, 99, 12)


def message(edition=2, values=FIELD, octets=None, **keys):
    """A message on 3 x 4 points; `octets` are octets 18 to 21 of GRIB1: unit, P1, P2, time range indicator."""
    handle = eccodes.codes_grib_new_from_samples(f"regular_ll_pl_grib{edition}")
    keys = {"Ni": 4, "Nj": 3, "bitsPerValue": 24, "dataDate": 20200101, "level": 0, **keys}
    content = bytearray(packed(handle, values, **keys))
    if octets is not None:
        content[25:29] = octets
    return bytes(content)


def ecmwf(octets, values=FIELD, number=0, **keys):
    """A GRIB1 message of ECMWF's ensemble with this time."""
    keys = {"typeOfLevel": "surface", **ECMWF, **keys, "perturbationNumber": number}
    return message(1, values, octets, **keys)


def ncep(short_name, template=1, number=0, values=FIELD, step="24", **keys):
    """A GRIB2 message of NCEP with this product template."""
    members = {"perturbationNumber": number} if template in (1, 11, 60, 61) else {}
    height = (
        {"typeOfLevel": "heightAboveGround", "level": 2} if short_name.endswith("2t") else {"typeOfLevel": "surface"}
    )
    keys = {"centre": "kwbc", "productDefinitionTemplateNumber": template, **height, **keys}
    last = {name: keys.pop(name) for name in ("parameterNumber",) if name in keys}
    return message(2, values, **keys, shortName=short_name, **members, stepRange=step, **last)


def write(path, *messages):
    path.write_bytes(b"".join(messages))
    return path


def values_of(path, name, lead=24, **options):
    return open_ensemble(path, [Variable.parse(name)], [lead], chunks=None, **options)


# Units


@pytest.mark.parametrize(
    ("content", "name", "units", "factor"),
    [
        (ecmwf((1, 24, 0, 0), paramId=228164), "tcc", "(0 - 1)", 1e-2),  # in %, as TIGGE, S2S and GEFS write it
        (ncep("tp", 11, step="0-24"), "tp", "m", 1e-3),  # in kg m-2 (228228)
        (ecmwf((1, 24, 0, 0), shortName="tp"), "tp", "m", 1),
    ],
    ids=["per cent", "mass per area", "metres"],
)
def test_values_and_meanings_are_those_of_the_units_of_ecmwf(tmp_path, content, name, units, factor):
    path = write(tmp_path / "file", content)
    opened = values_of(path, name)[name]
    assert opened.units == units
    np.testing.assert_allclose(opened.values.ravel(), FIELD * factor, rtol=1e-6)
    (meaning,) = ensemble_fields(path, [Variable(name)], [24]).meanings
    assert (meaning.units, meaning.intervals) == (("1", (0,)) if name == "tcc" else ("m", (1440,)))


def test_units_without_a_conversion_are_refused(tmp_path):
    """A parameter that is not in the table: in m of water and in kg m-2 there is no telling whether it is water."""
    files = [
        write(tmp_path / f"{name}", ecmwf((1, 24, 0, 0), paramId=parameter, dataDate=20200101 + k))
        for k, (name, parameter) in enumerate({"one": 141, "two": 228141}.items())
    ]
    with pytest.raises(InputError, match=r"two has sd in kg m\*\*-2, .*one in m of water .*, and there is no convers"):
        values_of(files, "sd")


# Processing over time


@pytest.mark.parametrize(
    "content",
    [
        ecmwf((1, 0, 24, 3), shortName="2t"),  # the indicator 3: a mean
        ecmwf((1, 24, 0, 0), shortName="2t", type="fcmean"),
        message(2, **{"centre": "ecmf", "productDefinitionTemplateNumber": 8, "typeOfLevel": "surface"},
                shortName="skt", stepType="avg", stepRange="0-24"),
    ],
)  # fmt: skip
def test_a_mean_is_not_the_instantaneous_field(tmp_path, content):
    path = write(tmp_path / "file", content)
    (kind,) = Table.of(path).kinds
    name = kind.short_name
    with pytest.raises(InputError, match=rf"file has no 2t; it has {name}(:mean)?$"):
        values_of(path, "2t")
    (meaning,) = ensemble_fields(path, [Variable(name, process="mean")], [24]).meanings
    assert meaning.variable.processing == "mean"
    assert meaning.intervals in ((1440,), (-1,))


INTERVALS = {
    "since the start": (ecmwf((1, 24, 0, 0), shortName="tp"), "tp", 1440, 1440),
    "since the start, two octets": (ecmwf((1, 1, 14, 10), shortName="tp"), "tp", 270 * 60, 270 * 60),
    "at the start": (ecmwf((1, 0, 0, 0), shortName="tp"), "tp", 0, 0),
    "radiation": (ecmwf((1, 24, 0, 0), paramId=176), "ssr", 1440, 1440),
    "ERA5, an hour": (ecmwf((1, 17, 18, 4), shortName="tp", type="fc", stream="oper"), "tp", 1080, 60),
    "mass per area of ECMWF": (ecmwf((1, 24, 0, 0), paramId=228228), "tp", 1440, 1440),
    "GEFS, six hours": (ncep("tp", 11, step="18-24"), "tp", 1440, 360),
    "GEFS, the whole day": (ncep("tp", 11, step="0-24"), "tp", 1440, 1440),
    "S2S reforecast": (ncep("tp", 61, step="12-24"), "tp", 1440, 720),
    "gusts of an unknown interval": (ecmwf((1, 24, 0, 0), shortName="10fg"), "10fg", 1440, -1),
    "gusts of six hours by their name": (ecmwf((1, 24, 0, 0), paramId=123), "10fg6", 1440, 360),
    "ECMWF's own indicator, maximum": (ecmwf((1, 18, 24, 2), shortName="mx2t"), "mx2t", 1440, 360),
    "ECMWF's own indicator, minimum": (ecmwf((1, 18, 24, 2), shortName="mn2t"), "mn2t", 1440, 360),
    "instantaneous": (ecmwf((1, 24, 0, 0), shortName="2t"), "2t", 1440, 0),
    "a day is the unit": (ecmwf((2, 1, 2, 4), shortName="tp"), "tp", 2880, 1440),
    "another centre than ECMWF": (
        message(1, octets=(1, 24, 0, 0), centre="kwbc", gribTablesVersionNo=2, indicatorOfParameter=61,
                indicatorOfTypeOfLevel=1), "tp", 1440, -1
    ),
}  # fmt: skip
"""Message, variable, step and interval in minutes: written out, not computed."""


def test_the_interval_of_a_field(tmp_path):
    for name, (content, variable, step, interval) in INTERVALS.items():
        catalog = MessageCatalog.gather(write(tmp_path / name, content), None)
        assert catalog.wanted == (Variable.parse(variable),), name
        assert catalog.rows[["step", "interval"]].tolist() == [(step, interval)], name


@pytest.mark.parametrize("stream", MONTHLY_STREAMS)
def test_streams_of_monthly_means_are_known_to_ecCodes_and_are_means(tmp_path, stream):
    path = write(tmp_path / "file", ecmwf((1, 24, 0, 0), shortName="2t", stream=stream))
    assert MessageCatalog.gather(path, None).wanted == (Variable.parse("2t:mean"),)


def test_fields_of_different_intervals_are_different_fields(tmp_path):
    """GEFS has the rain of 6 and of 24 hours, valid at the same time."""
    path = write(tmp_path / "file", *(ncep("tp", 11, k, step=step) for k in (1, 2) for step in ("18-24", "0-24")))
    found = {line[:12].strip(): line[13:] for line in summarize_files(path).splitlines()}
    assert (found["repeated"], found["missing"], found["intervals"]) == ("none", "no field", "tp 6 24 h")
    assert len(MessageCatalog.gather(path, [Variable("tp")]).rows) == 4


def test_the_summary_states_intervals_and_units(tmp_path):
    write(tmp_path / "one", *(ecmwf((1, hours, 0, 0), shortName="tp") for hours in (24, 48)))
    write(tmp_path / "two", *(ecmwf((1, hours, 0, 0), paramId=228164) for hours in (24, 48)))
    write(tmp_path / "three", *(ecmwf((1, hours, 0, 0), shortName="10fg") for hours in (24, 48)))
    found = {line[:12].strip(): line[13:] for line in summarize_files(f"{tmp_path}/*").splitlines()}
    assert found["intervals"] == "tp since the start, 10fg unknown"
    assert found["units"] == "tcc in %, converted to (0 - 1)"


# Products

PRODUCTS = {
    "ensemble mean": [
        ecmwf((1, 24, 0, 0), shortName="2t", type="em"),
        *(ncep("2t", 2, derivedForecast=number) for number in (0, 1)),
    ],
    "ensemble spread": [ecmwf((1, 24, 0, 0), shortName="2t", type="es"), ncep("2t", 2, derivedForecast=4)],
    "cluster mean": [ncep("2t", 4, derivedForecast=6)],
    "probability": [ecmwf((1, 24, 0, 0), shortName="2t", type="ep"), ncep("2t", 5)],
    "quantile": [ecmwf((1, 24, 0, 0), shortName="2t", type="pb"), ncep("2t", 6, percentileValue=10)],
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_statistics_of_an_ensemble_are_no_members(tmp_path, capsys, product):
    say_once.cache_clear()
    members = [ecmwf((1, 24, 0, 0), 280 + FIELD + k, k, shortName="2t") for k in (1, 2)]
    path = write(tmp_path / "file", *PRODUCTS[product], *members)
    opened = values_of(path, "2t")["2t"]
    assert opened.number.values.tolist() == [1, 2]
    count = len(PRODUCTS[product])
    sentence = f"{path}: left out {count} x {product} of 2t, which are no forecasts, members or analyses"
    assert capsys.readouterr().err == f"warning: {sentence}\n"
    summary = summarize_files(path)
    assert f"left out     {count} x {product} of 2t: they are no forecasts, members or analyses\n" in summary
    assert "members      1 2\n" in summary
    write(path, *PRODUCTS[product])
    with pytest.raises(InputError, match=rf"file has 2t only as {count} x {product} of 2t, which are no forecasts,"):
        values_of(path, "2t")
    with pytest.raises(InputError, match="file has messages only as"):
        open_analysis(path)


# Names


def test_names_of_the_user(tmp_path):
    """An unknown parameter has the units of its name."""
    path = write(tmp_path / "file", ncep("avg_2t", 11, 3, step="0-24"))
    assert Table.of(path).kinds[0].short_name == "avg_2t"
    for name in ("avg_2t", "228004", "4.228"):
        opened = values_of(path, "2t:mean", names={name: "2t"})
        np.testing.assert_allclose(opened["2t_mean"].values.ravel(), FIELD, atol=1e-4)
    path = write(tmp_path / "unknown", ncep("2t", parameterNumber=250))
    assert values_of(path, "tp", names={"unknown": "tp"}).tp.units == "m"
    assert ensemble_fields(path, [Variable("tp")], [24], names={"unknown": "tp"}).meanings[0].intervals == (-1,)
