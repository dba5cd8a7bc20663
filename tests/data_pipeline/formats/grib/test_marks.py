"""Marks and templates of corrected messages, compared with those that ecCodes itself writes."""

import eccodes
import numpy as np
import pytest
from marked_messages import ECMWF, keys_of, message

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib import HeaderMarks, marks
from data_pipeline.formats.grib.marks import IDENTITY, marked, postprocessed


def all_keys(message):
    """Every key of every section that ecCodes reads, with the values of the field."""
    handle = eccodes.codes_new_from_message(message)
    iterator, found = eccodes.codes_keys_iterator_new(handle), {}
    while eccodes.codes_keys_iterator_next(iterator):
        name = eccodes.codes_keys_iterator_get_name(iterator)
        if eccodes.codes_get_size(handle, name) == 1:
            found[name] = eccodes.codes_get_string(handle, name)
    eccodes.codes_keys_iterator_delete(iterator)
    values = eccodes.codes_get_values(handle)
    eccodes.codes_release(handle)
    return found, values


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
def test_a_mark_changes_only_the_generating_process(template, kind):
    old = message(template, **ECMWF)
    before, values = all_keys(old)
    after, same = all_keys(marked(old))
    changed = {key for key in before if before[key] != after[key]}
    assert {"typeOfGeneratingProcess", "generatingProcessIdentifier"} <= changed
    derived = {"md5Section4", "md5Headers", "modelVersion"}  # ecCodes computes them from the two keys
    assert changed <= {"typeOfGeneratingProcess", "generatingProcessIdentifier", *derived}
    assert (after["typeOfGeneratingProcess"], after["generatingProcessIdentifier"]) == (kind, "255")
    np.testing.assert_array_equal(values, same)
    late = HeaderMarks("postprocessed")(old)
    assert keys_of(late, "typeOfGeneratingProcess", "generatingProcessIdentifier") == ["13", "255"]
    assert keys_of(late, "inputProcessIdentifier", "inputOriginatingCentre") == ["152", "ecmf"]
    identity = [key for key in IDENTITY if key in before]
    assert keys_of(late, *identity) == keys_of(old, *identity)


def test_a_mark_in_grib1_changes_one_octet():
    old = message(1, edition=1, **ECMWF)
    new = marked(old)
    assert [(at, new[at]) for at in range(len(old)) if old[at] != new[at]] == [(13, 255)]
    assert keys_of(new, "generatingProcessIdentifier", "type", "number") == ["255", "pf", "7"]
    assert keys_of(marked(new), "generatingProcessIdentifier") == ["254"]


def test_without_a_mark_headers_are_identical():
    old = message(1, **ECMWF)
    assert HeaderMarks("same", False)(old) is old


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
    monkeypatch.setattr("data_pipeline.formats.grib.marks.marked", lambda message: other)
    with pytest.raises(InputError, match=r"would read dataType cf instead of pf; set mark=false"):
        HeaderMarks()(old)


KINDS = {
    1: [
        {"shortName": "skt"}, {"gribTablesVersionNo": 228}, {"generatingProcessIdentifier": 9},
        {"typeOfLevel": "isobaricInhPa", "level": 1}, {"typeOfLevel": "isobaricInhPa", "level": 257},
    ],
    2: [
        {"shortName": "skt"}, {"discipline": 2}, {"centre": 80}, {"subCentre": 3}, {"generatingProcessIdentifier": 9},
        {"typeOfLevel": "isobaricInhPa", "level": 1}, {"typeOfLevel": "isobaricInhPa", "level": 257},
        {"typeOfLevel": "heightAboveGroundLayer", "topLevel": 9, "bottomLevel": 2}, {"parameterNumber": 9},
        {"typeOfFirstFixedSurface": 7},
        {"parameterCategory": 9}, {"typeOfGeneratingProcess": 5},
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


def test_every_real_message_is_found_as_before(real_files, plain):
    """Messages of all samples in GRIB: identity by ecCodes, values bit for bit."""
    count = 0
    for path in real_files:
        for number, handle in enumerate(plain.handles(path)):
            if number % 17:
                continue
            old = eccodes.codes_get_message(handle)
            new = HeaderMarks()(old)
            assert len(new) == len(old)
            other = eccodes.codes_new_from_message(new)
            np.testing.assert_array_equal(plain.values(handle), plain.values(other))
            eccodes.codes_release(other)
            count += 1
    assert count > 30
