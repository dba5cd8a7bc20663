"""Headers of ensemble statistics, read back by ecCodes and by this project's reader."""

import eccodes
import numpy as np
import pytest
from marked_messages import ECMWF, keys_of, message

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib import Edit, NewMessage, StatisticHeader, rewrite, summarize_files
from data_pipeline.formats.grib.product import product_of

STATISTICS = [
    (StatisticHeader("mean", 50), ("199", "200"), "ensemble mean", {"derivedForecast": "0"}, "em"),
    (StatisticHeader("spread", 50), ("199", "200"), "ensemble spread", {"derivedForecast": "4"}, "es"),
    (
        StatisticHeader("quantile", 50, level=0.9), ("89", "90"), "quantile",
        {"quantileValue": "9", "totalNumberOfQuantiles": "10"}, "pb",
    ),
    (
        StatisticHeader("probability", 50, above=True, limit=273.15), ("201", "202"), "probability",
        {"probabilityType": "3", "lowerLimit": "273.15", "scaledValueOfUpperLimit": "MISSING"}, "ep",
    ),
    (
        StatisticHeader("probability", 50, above=False, limit=0.001), ("201", "202"), "probability",
        {"probabilityType": "4", "upperLimit": "0.001", "scaledValueOfLowerLimit": "MISSING"}, "ep",
    ),
]  # fmt: skip


@pytest.mark.parametrize("centre", [{"centre": "kwbc"}, ECMWF], ids=["no local section", "ECMWF"])
@pytest.mark.parametrize("over_time", [False, True])
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
    assert keys_of(StatisticHeader("mean", 50)(old), "type", "number", "stepRange") == ["em", "0", "48"]
    assert keys_of(StatisticHeader("spread", 50)(old), "type", "number", "shortName") == ["es", "0", "2t"]
    for header in (StatisticHeader("quantile", 50, level=0.5), StatisticHeader("probability", 50, limit=273.15)):
        with pytest.raises(InputError, match=rf"GRIB1 has no header for a {header.kind}, .*edition=2 IN OUT"):
            header(old)
    for header, sentence in (
        (StatisticHeader("quantile", 50, level=0.12345), r"the quantile level 0\.12345 is no fraction"),
        (StatisticHeader("probability", 50, limit=np.pi), r"the threshold 3\.14159.* has more digits"),
    ):
        with pytest.raises(InputError, match=sentence):
            header(message(1))
    handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib1")
    eccodes.codes_set(handle, "setLocalDefinition", 0)
    eccodes.codes_set(handle, "centre", 7)
    with pytest.raises(InputError, match="GRIB1 of this centre has no header for an ensemble mean"):
        StatisticHeader("mean", 50)(eccodes.codes_get_message(handle))


def test_statistics_are_written_after_a_message_and_left_out_by_the_reader(tmp_path):
    (tmp_path / "in").write_bytes(message(1, **ECMWF))
    field = np.arange(40.0).reshape(5, 8)
    after = tuple(NewMessage(None, {}, field, header) for header, *_ in STATISTICS)
    assert (
        rewrite(tmp_path / "in", tmp_path / "out", lambda _: Edit(after=after)) == 0
    )  # statistics are no corrected fields
    with (tmp_path / "out").open("rb") as file:
        found = []
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            found.append((eccodes.codes_get_string(handle, "productDefinitionTemplateNumber"), handle))
    assert [template for template, _ in found] == ["1", "199", "199", "89", "201", "201"]
    for _, handle in found[1:]:
        np.testing.assert_allclose(eccodes.codes_get_values(handle).reshape(5, 8), field, atol=1e-3)
    assert "ensemble mean of 2t" in str(summarize_files([tmp_path / "out"]))
