"""Products of `correct`: fields that summarise the corrected distribution, as ecCodes reads them from the output."""

import eccodes
import numpy as np
import pytest
from correction_runs import correct, random_corrector, read_messages, read_sidecar, write_members
from grib_parts import GRID

from data_pipeline.common.errors import InputError
from data_pipeline.formats.grib.interval import step_and_interval
from data_pipeline.formats.grib.kind import product_of
from data_pipeline.formats.open import open_ensemble
from data_pipeline.task import Task
from data_pipeline.writing import Encoder, HeaderMarks, StatisticHeader
from data_pipeline.writing.product import ClimateSample, Product
from models.members.options import CorrectionOptions
from models.members.products import products_of_tasks

TASK = Task("toy", ["2t"], ["2t"], [24])
MEMBERS = 5
HEIGHT = {"productDefinitionTemplateNumber": 1, "typeOfLevel": "heightAboveGround", "level": 2}
WANTED = ("mean", "spread", "quantile 0.9", "probability > 6 degC", "probability <= 281")


def forecast(path, edition=2, holes=()):
    """Write forecasts of 2t for one start; `holes` are members without a value in the first cell."""
    random, fields = np.random.default_rng(3), {}
    for number in range(1, MEMBERS + 1):
        field = fields["2t", 20200101, 24, number] = 280 + 8 * random.standard_normal(GRID.shape)
        if number in holes:
            field[0, 0] = np.nan
    return write_members(path, fields, edition=edition, bitsPerValue=24, **(HEIGHT if edition == 2 else {}))


def make_corrector():
    """Return EMOS, whose distributions are normal."""
    return random_corrector(TASK)


def read(path, *names):
    """Return keys, as texts, and values of all messages, as ecCodes reads them."""
    return [([*map(str, keys)], field.reshape(GRID.shape)) for keys, field in read_messages(path, *names)]


def test_products_follow_the_first_member(tmp_path):
    """`test_product_formats.py` compares their values with the distribution."""
    source = forecast(tmp_path / "in")
    plain = correct(make_corrector(), source, tmp_path / "plain")
    done = correct(make_corrector(), source, tmp_path / "out", options=CorrectionOptions(products=WANTED))
    assert done.messages == plain.messages == MEMBERS
    assert done.notes[0] == (
        "5 products were written: 1 of mean, 1 of spread, 1 of quantile 0.9, 1 of probability > 6 degC, "
        "1 of probability <= 281 K"
    )
    messages = read(tmp_path / "out", "productDefinitionTemplateNumber", "stepRange", "shortName")
    assert [keys[0] for keys, _ in messages] == ["1", "199", "199", "89", "201", "201", *["1"] * (MEMBERS - 1)]
    names = "typeOfGeneratingProcess", "generatingProcessIdentifier"
    assert [keys for keys, _ in read(tmp_path / "out", *names)][:7] == [
        ["11", "255"],
        *[["13", "255"]] * 5,
        ["11", "255"],
    ]
    members = np.stack([messages[0][1], *(field for _, field in messages[6:])])
    np.testing.assert_array_equal(members, [field for _, field in read(tmp_path / "plain")])


def test_grib1_holds_mean_and_spread(tmp_path):
    source, options = forecast(tmp_path / "in", 1), CorrectionOptions(products=("mean", "spread"))
    correct(make_corrector(), source, tmp_path / "out", options=options)
    messages = read(tmp_path / "out", "type")
    assert [keys[0] for keys, _ in messages] == ["pf", "em", "es", *["pf"] * (MEMBERS - 1)]
    with pytest.raises(InputError, match="GRIB1 has no header for a quantile, and the input is GRIB1; convert it"):
        correct(make_corrector(), source, tmp_path / "never", options=CorrectionOptions(products=("quantile 0.5",)))
    assert not (tmp_path / "never").exists()


def test_a_text_that_names_no_product_is_refused():
    for text, sentence in (
        ("median", r"products: cannot read 'median'; write mean, spread, quantile 0\.9, efi, sot 90"),
        ("quantile 1.5", r"the level of 'quantile 1\.5' must be between 0 and 1, such as quantile 0\.9"),
        ("quantile nan", "the level of 'quantile nan' must be between 0 and 1"),
        ("probability > 10 %", "is a percentile of the climatology, which correct does not read"),
        ("probability msl > 5", "is about msl, which is not a target of the task toy; its targets are 2t"),
        ("probability > 5 mm", "'mm' of '> 5 mm' cannot be converted to the units of 2t"),
    ):
        with pytest.raises(InputError, match=sentence):
            products_of_tasks([text], [TASK])


def test_each_text_needs_one_of_several_correctors():
    rain = Task("rain", ["tp"], ["tp"], [24])
    of_temperature, of_rain = products_of_tasks(["mean", "probability > 1 mm"], [TASK, rain])
    assert [product.text for product in of_temperature] == ["mean"]
    assert [product.text for product in of_rain] == ["mean", "probability > 1 mm"]
    assert of_rain[1].threshold.value == pytest.approx(0.001)
    with pytest.raises(InputError, match="cannot read"):
        products_of_tasks(["nothing"], [TASK, rain])


def test_keys_are_those_of_corrected_messages_and_products(tmp_path):
    source = forecast(tmp_path / "in")
    other = write_members(tmp_path / "msl", {("msl", 20200101, 24, 1): np.full(GRID.shape, 1e5)})
    options = CorrectionOptions(products=("mean",), keys={"expver": "0079", "subCentre": 7})
    correct(make_corrector(), [source, other], tmp_path / "out", options=options)
    messages = read(tmp_path / "out", "shortName", "expver", "subCentre")
    assert [keys for keys, _ in messages] == [*[["2t", "0079", "7"]] * (MEMBERS + 1), ["msl", "0001", "0"]]
    assert read_sidecar(tmp_path / "out")["options"]["keys"] == {"expver": "0079", "subCentre": 7}
    assert open_ensemble(tmp_path / "out", ["2t"], chunks=None).sizes["number"] == MEMBERS
    correct(
        make_corrector(), source, tmp_path / "few", options=CorrectionOptions(member_count=2, keys={"subCentre": 7})
    )
    assert [keys for keys, _ in read(tmp_path / "few", "subCentre")] == [["7"]] * 2
    local = {"centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 1, "stream": "enfo", "expver": "0079"}
    options = CorrectionOptions(member_count=2, products=("mean",), keys=local)
    correct(make_corrector(), source, tmp_path / "local", options=options)
    found = [keys for keys, _ in read(tmp_path / "local", "centre", "stream", "expver", "type")]
    assert found == [["ecmf", "enfo", "0079", kind] for kind in ("pf", "em", "pf")]
    assert open_ensemble(tmp_path / "local", ["2t"], chunks=None).sizes["number"] == 2


def test_options_without_effect_and_keys_that_do_not_exist_are_refused(tmp_path):
    for options, sentence in (
        ({"keys": {"expverr": "0079"}}, "keys: ecCodes cannot set expverr='0079'"),
        ({"keys": {"expver": "0079"}, "member_count": 2}, "keys: ecCodes cannot set expver='0079'"),
        ({"members": "none"}, "members=none writes products alone, and there are none; name them, or members"),
        ({"members": "none", "products": ("mean",), "member_count": 2}, "member_count=2 has no effect with"),
        ({"members": "none", "products": ("mean",), "quantile_levels": "weibull"}, "has no effect with members"),
        ({"products": ("quantile 0.5", "quantile 0.50")}, "products names a field twice, as quantile 0.5"),
    ):
        source = forecast(tmp_path / "in")
        with pytest.raises(InputError, match=sentence):
            correct(make_corrector(), source, tmp_path / "out", options=CorrectionOptions(**options))
        assert [each.name for each in tmp_path.iterdir()] == ["in"]


def test_an_output_without_any_product_is_refused(tmp_path):
    """All forecasts keep their raw members, because two of them are equal."""
    source = write_members(tmp_path / "in", {("2t", 20200101, 24, number): np.eye(*GRID.shape) for number in (1, 2)})
    options = CorrectionOptions(products=("mean",), members="none")
    with pytest.raises(InputError, match="would have no products, because all forecasts keep their raw members"):
        correct(make_corrector(), source, tmp_path / "out", options=options, on_problem="raw")
    assert [each.name for each in tmp_path.iterdir()] == ["in"]


MARS = {"centre": "ecmf", "setLocalDefinition": 1, "localDefinitionNumber": 1, "type": "pf", "stream": "enfo"}
RAIN = {"productDefinitionTemplateNumber": 11, "shortName": "tp", "stepType": "accum", "startStep": 72, "endStep": 96}
INDEX_KEYS = {
    "derivedForecast": 5, "numberOfForecastsInEnsemble": 51, "typeOfReferenceDataset": 0, "forecastTime": 72,
    "sampleSizeOfReferencePeriod": 620, "numberOfReferencePeriodTimeRanges": 2, "startDateOfReferencePeriod": 20010103,
    "typeOfGeneratingProcess": 3, "generatingProcessIdentifier": 255,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "level", "relation", "quantile"),
    [("efi", None, 20, None), ("sot 90", 0.9, 21, "90-99:100"), ("sot 10", 0.1, 21, "1-10:100")],
)
@pytest.mark.parametrize("instant", [True, False])
def test_headers_of_indices_are_those_of_ecmwf(text, level, relation, quantile, instant, capfd):
    """Keys that the tests of ECMWF's encoder (metkit, mars2grib) state for an index over an interval; as ecCodes reads.

    At one time, the template is WMO's 4.130, and the parameter stays.
    """
    own = {**HEIGHT, "shortName": "2t", "endStep": 72} if instant else RAIN
    message = Encoder(GRID, edition=2, **MARS, numberOfForecastsInEnsemble=51, **own).encode(np.ones(GRID.shape))
    sample = ClimateSample(np.datetime64("2001-01-03", "s"), 20, 31, 620)
    header = StatisticHeader(Product(text[:3], 0, text, level), 51, sample)
    handle = eccodes.codes_new_from_message(HeaderMarks().of_product(header, message))
    assert product_of(handle) == ("extreme forecast index" if relation == 20 else "shift of tail")
    names = "productDefinitionTemplateNumber", "paramId", "typeOfRelationToReferenceDataset"
    expected = [130, 167, relation] if instant else [107, 132228, relation]
    assert [eccodes.codes_get(handle, name, int) for name in names] == expected
    assert {name: eccodes.codes_get(handle, name, int) for name in INDEX_KEYS} == INDEX_KEYS
    assert eccodes.codes_get(handle, "mars.type") == text[:3]
    arrays = {
        "indicatorOfUnitForTimeRangeForReferencePeriod": [4, 2], "lengthOfTimeRangeForReferencePeriod": [20, 31],
    }  # fmt: skip
    if not instant:
        arrays |= {"typeOfStatisticalProcessing": [102, 1], "lengthOfTimeRange": [24, 24]}
        assert eccodes.codes_get(handle, "stepRange") == "72-96"
        assert step_and_interval(handle, 0) == (96 * 60, 24 * 60)
        assert not capfd.readouterr().err  # of ecCodes
    if quantile:
        assert eccodes.codes_get(handle, "mars.quantile") == quantile
        arrays["scaledValueOfAdditionalParameterForReferencePeriod"] = [90, 99] if level == 0.9 else [10, 1]
    for name, values in arrays.items():
        assert eccodes.codes_get_array(handle, name).tolist() == values
    np.testing.assert_array_equal(eccodes.codes_get_values(handle), 1)
    eccodes.codes_release(handle)


def test_what_has_no_header_for_an_index_is_refused():
    sample = ClimateSample(np.datetime64("2001-01-03", "s"), 20, 31, 620)
    header = StatisticHeader(Product("efi", 0, "efi"), 51, sample)
    first = Encoder(GRID, shortName="2t", type="pf", stream="enfo", centre="ecmf").encode(np.ones(GRID.shape))
    other = Encoder(GRID, edition=2, productDefinitionTemplateNumber=6).encode(np.ones(GRID.shape))
    for message, sentence in (
        (first, "GRIB1 has no header for the extreme forecast index, and the input is GRIB1; convert it"),
        (other, r"template 4\.6, for which WMO has no comparison with a climate; leave efi out of products"),
    ):
        with pytest.raises(InputError, match=sentence):
            header(message)
