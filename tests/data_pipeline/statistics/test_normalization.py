"""The normalisation of `prepare` is that of `train`: against NumPy's means, and against the fit of a normaliser."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data_pipeline.cell_moments import FORECASTS_OF_A_BLOCK
from data_pipeline.cluster import Threads
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.samples.pseudo_members import pseudo_members
from data_pipeline.statistics.normalization import SAMPLE_KINDS, Normalization, normalization_of
from data_pipeline.statistics.statistic_file import load_statistic
from data_pipeline.task import Task
from models.corrector import Corrector

NAMES = ("2t", "sst", "t")


@pytest.fixture(scope="module")
def statistic(written, tmp_path_factory):
    """The file of all members; tests read it."""
    return load_statistic(written(tmp_path_factory.mktemp("statistic") / "a.nc", Normalization()), "normalization")


@pytest.mark.parametrize("kind", SAMPLE_KINDS)
def test_means_and_squares_are_those_of_the_arrays(statistic, toy, in_training, kind):
    """By NumPy over all forecasts at once; one input has no value on land, and one forecast has a hole."""
    assert len(in_training) > FORECASTS_OF_A_BLOCK
    for channel, name in enumerate(NAMES):
        values = np.array([toy.ensemble[name][place] for place in in_training])
        if kind == "moments":
            values = pseudo_members(values.swapaxes(0, 1)).swapaxes(0, 1)
        known = np.isfinite(values).all(1)
        values = np.where(known[:, None], values, np.nan)
        found = {key: statistic[key].values[SAMPLE_KINDS.index(kind), channel] for key in ("count", "mean", "squares")}
        np.testing.assert_array_equal(found["count"], known.sum(0))
        there = known.any(0)
        mean = np.nanmean(values[..., there], (0, 1))
        squares = np.nansum((values[..., there] - mean) ** 2, (0, 1)) / values.shape[1]
        # The files have 24 bits.
        np.testing.assert_allclose(found["mean"][there], mean, rtol=1e-6)
        np.testing.assert_allclose(found["squares"][there], squares, rtol=1e-4)
        assert not found["squares"][~there].any()
    assert statistic["count"][0, 0].min() == len(in_training) - 1


def test_threads_and_bands_give_the_same_numbers(written, statistic, tmp_path):
    one, other = (written(tmp_path / f"{k}.nc", Normalization(), cluster=Threads(k)) for k in (1, 3))
    assert one.read_bytes() == other.read_bytes()
    # The grid has 19 rows; a band has 16 or fewer.
    bands = load_statistic(written(tmp_path / "d.nc", Normalization(memory_bytes=1)), "normalization")
    for name in ("count", "mean", "squares", "verified", "start", "lead"):
        np.testing.assert_array_equal(statistic[name], bands[name])
    np.testing.assert_allclose(statistic.summary, bands.summary, rtol=1e-12)


@pytest.mark.parametrize("kind", SAMPLE_KINDS)
@pytest.mark.parametrize("inputs", [["2t", "sst", "t@500"], ["2t"]], ids=["all channels", "one channel"])
def test_a_normaliser_from_the_file_is_the_fitted_one(training, statistic, kind, inputs):
    """Bit for bit, with the notes and the envelope; also of a model that reads fewer channels."""
    task = Task("toy", inputs, ["2t"], training.task.lead_times)
    data = ForecastDataset(training.source, task, training.dates, moments=kind == "moments")
    fitted, other = (Corrector(task, data.grid, {"_target_": "models.statistical.raw.Raw"}, data.static) for _ in "ab")
    for corrector in (fitted, other):
        corrector.provenance["members"] = data.members
    fitted.fit(data)
    other.fit(
        data, normalization=normalization_of(statistic, [str(channel) for channel in task.channels], ["2t"], kind)
    )
    state = other.state_dict()
    assert fitted.normalizer.location.std() > 0.1
    for name, tensor in fitted.state_dict().items():
        assert torch.equal(state[name], tensor), name
    assert other.notes == fitted.notes
    assert other.envelope == fitted.envelope
    assert other.provenance == fitted.provenance


def test_members_can_be_limited(written, training, tmp_path):
    file = load_statistic(written(tmp_path / "two.nc", Normalization(max_members=2)), "normalization")
    found = normalization_of(file, ["2t"], ["2t"], "members")
    data = ForecastDataset(training.source, replace(training.task, inputs=("2t",)), training.dates, members=2)
    fitted = Corrector(data.task, data.grid, {"_target_": "models.statistical.raw.Raw"}, data.static)
    fitted.fit(data)
    assert found.members == 2
    np.testing.assert_array_equal(fitted.normalizer.location, np.float32(found.mean))
    with pytest.raises(InputError, match=r"normalization\.max_members=4 is more than the 3 members of data"):
        Normalization(max_members=4).axes(training)


@pytest.mark.parametrize("options", [{"max_members": 0}, {"max_members": 2.5}, {"memory_bytes": 0}], ids=str)
def test_options_are_checked(options):
    with pytest.raises(InputError, match=rf"normalization\.{next(iter(options))}"):
        Normalization(**options)
