"""Marks and templates of corrected messages and ensemble statistics, compared with what ecCodes writes and reads."""

import eccodes
import numpy as np
import pytest

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.kind import product_of
from data_pipeline.grid import Grid
from data_pipeline.variables.thresholds import Threshold
from data_pipeline.writing import Encoder, HeaderMarks, StatisticHeader, marks
from data_pipeline.writing.marks import IDENTITY, marked, postprocessed
from data_pipeline.writing.product import Product

GRID = Grid.regular(5, 8)
ECMWF = {
    "centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 1, "class": "od", "type": "pf",
    "stream": "enfo", "expver": "0001",
}  # fmt: skip
MEMBER = {"numberOfForecastsInEnsemble": 51, "perturbationNumber": 7, "generatingProcessIdentifier": 152}


def message(template, edition=2, **keys):
    """A message of 2t, or of tp over 24 hours, in a product definition template."""
    over_time = template in (8, 11)
    times = {"stepType": "accum", "startStep": 24, "endStep": 48} if over_time else {"step": 48}
    member = MEMBER if template in (1, 11) or edition == 1 else {"generatingProcessIdentifier": 152}
    number = {"productDefinitionTemplateNumber": template} if edition == 2 else {}
    name = "tp" if over_time else "2t"
    encoder = Encoder(GRID, edition=edition, **keys)
    return encoder.encode(
        np.random.default_rng(0).normal(280, 5, GRID.shape), **number, **member, typeOfLevel="surface", level=0,
        shortName=name, dataDate=20200101, **times,
    )  # fmt: skip


def keys_of(message, *names):
    handle = eccodes.codes_new_from_message(message)
    found = [eccodes.codes_get_string(handle, name) for name in names]
    eccodes.codes_release(handle)
    return found


@pytest.mark.parametrize("centre", [{"centre": "kwbc"}, ECMWF], ids=["no local section", "ECMWF"])
@pytest.mark.parametrize(("raw", "new"), [(0, 70), (1, 71), (8, 72), (11, 73)])
def test_postprocessed_templates_are_the_bytes_that_eccodes_writes(raw, new, centre):
    old = message(raw, **centre)
    handle = eccodes.codes_new_from_message(old)
    eccodes.codes_set(handle, "productDefinitionTemplateNumber", new)
    for key, value in (
        ("inputProcessIdentifier", 152),
        ("inputOriginatingCentre", eccodes.codes_get_long(handle, "centre")),
        ("typeOfPostProcessing", 255),
    ):
        eccodes.codes_set(handle, key, value)
    assert postprocessed(old) == eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    assert postprocessed(postprocessed(old)) == postprocessed(old)


@pytest.mark.parametrize(("template", "kind"), [(0, "3"), (1, "11"), (8, "3"), (11, "11")])
def test_a_mark_changes_only_the_generating_process(plain, template, kind):
    old = message(template, **ECMWF)
    handles = [eccodes.codes_new_from_message(each) for each in (old, marked(old))]
    before, after = (plain.keys(handle, [None]) for handle in handles)
    values, same = (plain.values(handle) for handle in handles)
    changed = {key for key in before if before[key] != after[key]}
    assert {"typeOfGeneratingProcess", "generatingProcessIdentifier"} <= changed
    derived = {"md5Section4", "md5Headers", "modelVersion"}  # ecCodes computes them from the two keys
    assert changed <= {"typeOfGeneratingProcess", "generatingProcessIdentifier", *derived}
    assert (after["typeOfGeneratingProcess"], after["generatingProcessIdentifier"]) == (kind, "255")
    np.testing.assert_array_equal(values, same)
    late = HeaderMarks("postprocessed")(old)
    assert keys_of(late, "typeOfGeneratingProcess", "generatingProcessIdentifier") == ["13", "255"]
    assert keys_of(late, "inputProcessIdentifier", "inputOriginatingCentre") == ["152", "ecmf"]
    assert HeaderMarks("same", False)(old) is old
    identity = [key for key in IDENTITY if key in before]
    assert keys_of(late, *identity) == keys_of(old, *identity)


def test_a_mark_in_grib1_changes_one_octet():
    old = message(1, edition=1, **ECMWF)
    new = marked(old)
    assert [(at, new[at]) for at in range(len(old)) if old[at] != new[at]] == [(13, 255)]
    assert keys_of(new, "generatingProcessIdentifier", "type", "number") == ["255", "pf", "7"]
    assert keys_of(marked(new), "generatingProcessIdentifier") == ["254"]


def test_templates_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match=r"needs GRIB2, .* grib_set -s edition=2 IN OUT, or set template=same"):
        HeaderMarks("postprocessed")(message(1, edition=1, **ECMWF))
    handle = eccodes.codes_new_from_message(message(1))
    eccodes.codes_set(handle, "productDefinitionTemplateNumber", 60)
    with pytest.raises(InputError, match=r"template 4\.60, for which WMO has no post-processed template"):
        HeaderMarks("postprocessed")(eccodes.codes_get_message(handle))
    with pytest.raises(InputError, match="template must be"):
        HeaderMarks("71")
    with pytest.raises(InputError, match="mark must be"):
        HeaderMarks(mark="no")


def test_a_mark_that_changes_the_identity_of_a_field_is_refused(monkeypatch):
    old = message(1, **ECMWF)
    other = message(1, **{**ECMWF, "type": "cf"})
    monkeypatch.setattr("data_pipeline.writing.marks.marked", lambda message: other)
    with pytest.raises(InputError, match=r"would read dataType cf instead of pf; set mark=false"):
        HeaderMarks()(old)


KINDS = {
    1: [
        {"shortName": "skt"}, {"gribTablesVersionNo": 228}, {"generatingProcessIdentifier": 9},
        *({"typeOfLevel": "isobaricInhPa", "level": level} for level in (1, 2, 257)),
    ],
    2: [
        {"shortName": "skt"}, {"discipline": 2}, {"centre": 80}, {"subCentre": 3}, {"generatingProcessIdentifier": 9},
        {"typeOfLevel": "isobaricInhPa", "level": 1}, {"typeOfLevel": "isobaricInhPa", "level": 257},
        {"typeOfLevel": "heightAboveGroundLayer", "topLevel": 9, "bottomLevel": 2},
        {"typeOfLevel": "heightAboveGroundLayer", "topLevel": 9, "bottomLevel": 3},
        {"typeOfLevel": "heightAboveGroundLayer", "topLevel": 8, "bottomLevel": 2}, {"parameterNumber": 9},
        {"typeOfFirstFixedSurface": 7}, {"parameterCategory": 9}, {"typeOfGeneratingProcess": 5},
    ],
}  # fmt: skip
ONE_KIND = [{"dataDate": 20210203}, {"dataTime": 600}, {"step": 24}, {"step": 300}, {"number": 9}, {"bitsPerValue": 8}]


@pytest.mark.parametrize("edition", KINDS)
def test_ecCodes_is_asked_once_for_each_kind_of_message(edition, monkeypatch):
    """Another parameter, level, centre or process is another kind; another time, member or packing is not."""
    original = message(1, edition, **ECMWF)
    checked, check = [], marks._check_identity
    monkeypatch.setattr(marks, "_check_identity", lambda *messages: checked.append(1) or check(*messages))
    header = HeaderMarks()
    for k, keys in enumerate([{}, *KINDS[edition]], start=1):
        handle = eccodes.codes_new_from_message(original)
        for key, value in keys.items():
            eccodes.codes_set(handle, key, value)
        for own in [{}, *ONE_KIND]:
            for key, value in own.items():
                eccodes.codes_set(handle, key, value)
            eccodes.codes_set_values(handle, eccodes.codes_get_values(handle))  # packs them anew
            header(eccodes.codes_get_message(handle))
            assert len(checked) == k, (keys, own)
        eccodes.codes_release(handle)


# Keys


@pytest.mark.parametrize("edition", [1, 2])
def test_keys_change_a_header_and_no_field(edition):
    old = message(1, edition=edition, **ECMWF)
    keys = {"expver": "0079", "class": "rd", "generatingProcessIdentifier": 99}
    new = HeaderMarks(keys=keys)(old)
    assert keys_of(new, *keys) == ["0079", "rd", "99"]
    same = ("paramId", "dataDate", "stepRange", "level", "number", "type", "packingType", "bitsPerValue", "average")
    assert keys_of(new, *same) == keys_of(old, *same)
    assert keys_of(HeaderMarks(keys=keys).of_product(header_of("mean"), old), "expver", "type") == ["0079", "em"]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"nothing": 1}, "ecCodes cannot set nothing=1"),
        ({"expver": 79}, "keys: ecCodes reads expver=.* where expver=79 was set; write the value as grib_ls prints it"),
        ({"class": "zz"}, "keys: ecCodes (cannot set class='zz'|reads class=)"),
        ({"expver": "00790"}, "keys: ecCodes (cannot set expver='00790'|reads expver=)"),
        ({"step": 24}, "keys: step says which field a message holds"),
        ({"productDefinitionTemplateNumber": 1}, "which field a message holds"),
        ({"typeOfFirstFixedSurface": 100}, "typeOfFirstFixedSurface=100 changes"),
        ({"scaleValuesBy": 2}, "scaleValuesBy=2 changes section 7|cannot set scaleValuesBy|reads scaleValuesBy"),
        ({"Nx": 3}, "keys: (Nx=3 changes|ecCodes)"),
        ({"expver": True}, "keys: 'expver' has True; name a key of ecCodes and give it a text or a number"),
        (["expver"], "keys must map ecCodes keys to values"),
    ],
)
def test_a_key_that_does_not_exist_or_makes_a_message_lie_is_refused(keys, sentence):
    with pytest.raises(InputError, match=sentence):
        HeaderMarks(keys=keys)(message(1, **ECMWF))


def test_a_key_that_suits_the_first_message_only_is_refused():
    marks_of_seven, old = HeaderMarks(keys={"mars.number": 7}), message(1, **ECMWF)
    assert keys_of(marks_of_seven(old), "number") == ["7"]
    handle = eccodes.codes_new_from_message(old)
    eccodes.codes_set(handle, "perturbationNumber", 8)
    with pytest.raises(InputError, match=r"keys: mars.number=7 changes number"):
        marks_of_seven(eccodes.codes_get_message(handle))
    eccodes.codes_release(handle)


# Ensemble statistics


def header_of(kind, level=None, threshold=None):
    """The headers of a product of 50 members."""
    return StatisticHeader(Product(kind, 0, kind, level, threshold), 50)


STATISTICS = [
    (header_of("mean"), ("199", "200"), "ensemble mean", {"derivedForecast": "0"}, "em"),
    (header_of("spread"), ("199", "200"), "ensemble spread", {"derivedForecast": "4"}, "es"),
    (
        header_of("quantile", 0.9), ("89", "90"), "quantile",
        {"quantileValue": "9", "totalNumberOfQuantiles": "10"}, "pb",
    ),
    (
        header_of("probability", threshold=Threshold(">", 273.15)), ("201", "202"), "probability",
        {"probabilityType": "3", "lowerLimit": "273.15", "scaledValueOfUpperLimit": "MISSING"}, "ep",
    ),
    (
        header_of("probability", threshold=Threshold("<", 0.001)), ("201", "202"), "probability",
        {"probabilityType": "4", "upperLimit": "0.001", "scaledValueOfLowerLimit": "MISSING"}, "ep",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("over_time", "centre"), [(False, {"centre": "kwbc"}), (True, ECMWF)])
@pytest.mark.parametrize(("header", "templates", "product", "keys", "mars"), STATISTICS)
def test_headers_of_statistics(header, templates, product, keys, mars, over_time, centre):
    old = message(11 if over_time else 1, **centre)
    new = header(old)
    assert keys_of(new, "productDefinitionTemplateNumber") == [templates[over_time]]
    assert keys_of(new, *keys) == list(keys.values())
    kept = ("paramId", "dataDate", "stepRange", "level", "centre", "inputProcessIdentifier")
    assert keys_of(new, *kept[:-1]) == keys_of(old, *kept[:-1])
    assert keys_of(new, kept[-1]) == ["152"]
    if "type" in centre:
        assert keys_of(new, "marsType") == [mars]
    handle = eccodes.codes_new_from_message(new)
    assert product_of(handle) == product
    eccodes.codes_release(handle)


def test_what_a_header_cannot_hold_is_refused_and_grib1_has_mean_and_spread_of_ecmwf_only():
    old = message(1, edition=1, **ECMWF)
    assert keys_of(header_of("mean")(old), "type", "number", "stepRange") == ["em", "0", "48"]
    assert keys_of(header_of("spread")(old), "type", "number", "shortName") == ["es", "0", "2t"]
    for header in (header_of("quantile", 0.5), header_of("probability", threshold=Threshold(">", 273.15))):
        with pytest.raises(InputError, match=rf"GRIB1 has no header for a {header.product.kind}, .*edition=2 IN OUT"):
            header(old)
    for header, sentence in (
        (header_of("quantile", 0.12345), r"the quantile level 0\.12345 is no fraction"),
        (header_of("probability", threshold=Threshold(">", np.pi)), r"the threshold 3\.14159.* has more digits"),
    ):
        with pytest.raises(InputError, match=sentence):
            header(message(1))
    handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib1")
    eccodes.codes_set(handle, "setLocalDefinition", 0)
    eccodes.codes_set(handle, "centre", 7)
    with pytest.raises(InputError, match="GRIB1 of this centre has no header for an ensemble mean"):
        header_of("mean")(eccodes.codes_get_message(handle))
