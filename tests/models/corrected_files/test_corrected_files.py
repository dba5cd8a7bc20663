"""The law of corrected files: the output has every message of the input, in its order, with its keys and its packing.

Messages that are not corrected are copied to the byte. The corrector adds a constant to all members of its target.
"""

import eccodes
import numpy as np
import pytest
import torch
from correction_runs import EMOS, correct, read_messages, write_members
from grib_parts import GRID, KEYS
from twin_project import keys, messages

from data_pipeline.task import Task
from data_pipeline.writing import Encoder
from models.corrector import Corrector
from models.members.options import CorrectionOptions

WARMER, START, LEADS, NUMBERS = 2.5, 20200101, (24, 48), range(1, 4)
MEMBER = {"productDefinitionTemplateNumber": 1}
FILES = {
    "GRIB1": {},
    "GRIB1 in 12 bits": {"bitsPerValue": 12},
    "GRIB2": {"edition": 2, **MEMBER, "bitsPerValue": 16},
    "GRIB2 in CCSDS": {"edition": 2, **MEMBER, "packingType": "grid_ccsds", "bitsPerValue": 20},
}
NAMESPACES = ("geography", "ls", "mars", "parameter", "statistics", "time", "vertical")
OF_VALUES = ("avg", "average", "const", "isConstant", "kurt", "kurtosis", "max", "maximum", "min", "minimum", "sd",
             "skew", "skewness", "standardDeviation")  # fmt: skip


def warmer():
    task = Task("toy", ["2t"], ["2t"], LEADS)
    corrector = Corrector(task, GRID, EMOS | {"seasonal": False, "shared": True}, torch.zeros(3, *GRID.shape))
    corrector.model.coefficients[:, 0] += WARMER
    return corrector.eval()


def keys_of(message):
    """Return all keys of a message that do not follow from its values, as texts."""
    handle = eccodes.codes_new_from_message(message)
    found = {name: text for name, text in keys(handle, *NAMESPACES).items() if name not in OF_VALUES}
    for name in ("edition", "packingType", "bitsPerValue", "numberOfForecastsInEnsemble", "bitmapPresent"):
        found[name] = eccodes.codes_get_string(handle, name)
    eccodes.codes_release(handle)
    return found


def split(path):
    """Return the bytes of each message of a file."""
    return [eccodes.codes_get_message(handle) for handle in messages(path)]


@pytest.mark.parametrize("kind", FILES)
def test_only_corrected_messages_change_and_only_their_values(kind, tmp_path):
    """The file has another variable, a lead time that is not corrected, an ensemble mean, and missing values.

    Messages of two products are added.
    """
    random, fields = np.random.default_rng(1), {}
    for name, lead in (("msl", 24), ("2t", 24), ("2t", 72), ("2t", 48)):
        for number in NUMBERS:
            fields[name, START, lead, number] = 280 + 8 * random.standard_normal(GRID.shape)
    fields["2t", START, 24, 2][1, :3] = fields["msl", START, 24, 3][2] = np.nan
    write_members(tmp_path / "members", fields, **FILES[kind])
    of_mean = {"productDefinitionTemplateNumber": 2} if "edition" in FILES[kind] else {"type": "em"}
    mean = Encoder(GRID, **KEYS | {"stream": "enfo"} | FILES[kind] | of_mean).encode(
        np.full(GRID.shape, 281.0), shortName="2t", dataDate=START, endStep=24
    )
    source = tmp_path / "in"
    source.write_bytes((tmp_path / "members").read_bytes() + mean)
    done = correct(warmer(), source, tmp_path / "out", options=CorrectionOptions(products=("mean", "spread")))
    assert done.messages == len(LEADS) * len(NUMBERS)

    before, after = split(source), split(tmp_path / "out")
    assert len(after) == len(before) + 2 * len(LEADS)
    known = {str(keys_of(message)) for message in before}
    after = [message for message in after if str(keys_of(message)) in known]
    assert list(map(keys_of, after)) == list(map(keys_of, before))
    corrected = [name == "2t" and lead in LEADS for name, _, lead, _ in fields] + [False]
    assert [old != new for old, new in zip(before, after, strict=True)] == corrected

    (tmp_path / "kept").write_bytes(b"".join(after))
    raw, found = (np.array([values for _, values in read_messages(path)]) for path in (source, tmp_path / "kept"))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(raw))
    for lead in LEADS:
        own = [k for k, (name, _, at, _) in enumerate(fields) if (name, at) == ("2t", lead)]
        whole = np.isfinite(raw[own]).all(0)
        np.testing.assert_array_equal(found[own].argsort(0)[:, whole], raw[own].argsort(0)[:, whole])
        change, step = (found[own] - raw[own])[:, whole], np.ptp(raw[own][:, whole]) / 2**11
        np.testing.assert_allclose(change.mean(0), WARMER, atol=2 * step)
        np.testing.assert_allclose(found[own][:, ~whole], raw[own][:, ~whole], atol=2 * step)
