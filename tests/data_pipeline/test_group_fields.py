"""Mean and spread of groups of members: against numpy, in any order, at stations, without members."""

from dataclasses import replace

import numpy as np
import pytest
from small_archive import NUMBERS, values, write_archive
from weather_files import weather

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.formulas.formula import Formula
from data_pipeline.grid import Grid
from data_pipeline.sources.array_source import ArraySource
from data_pipeline.store.store import Store
from data_pipeline.task import Task

COUNT = 7
GROUPS = {"control": 0, "one system": 1, "another": 4}
"""The members 0, 1 to 3, and 4 to 6."""
TASK = Task("groups", ["msl", "2t"], ["2t"], [24, 48], groups=GROUPS)
MEANS = [f"group_mean(2t, {part})" for part in ("0, 0", "1, 3", "4")]
MEANS += ["group_spread(2t, 1, 3)", "group_spread(2t, 4)"]
BELONGS = {"in_group(2t, 0, 0)": [1, 0, 0, 0, 0, 0, 0], "in_group(2t, 1, 3)": [0, 1, 1, 1, 0, 0, 0]}


def datasets():
    """Return forecasts on a grid, and analyses."""
    starts = np.datetime64("2020-01-01", "ns") + np.arange(4) * np.timedelta64(1, "D")
    parts = weather((24, 48), range(COUNT), (), starts, ("2t", "msl"), Grid.regular(3, 4))
    forecasts = parts["ensemble"].assign(msl=parts["ensemble"].msl.assign_attrs(units="Pa"))
    return forecasts, parts["analysis"][["2t"]]


def samples(forecasts, analyses, task=TASK):
    return ForecastDataset(ArraySource(forecasts, analyses), task, [2020])


def test_channels_are_mean_and_spread_of_each_group_and_who_belongs_to_it():
    forecasts, analyses = datasets()
    data = samples(forecasts, analyses)
    assert [str(channel) for channel in data.task.channels] == ["msl", "2t", *MEANS, *BELONGS]
    assert [meaning.units for meaning in data.meanings[1:]] == ["K"] * 6 + ["1"] * 2
    for k, sample in enumerate(data):
        own = forecasts["2t"][k // 2, k % 2].values.astype("f8")
        parts = [own[:1], own[1:4], own[4:]]
        wanted = [*(np.mean(part, 0) for part in parts), *(np.std(part, 0, ddof=1) for part in parts[1:])]
        assert sample.ensemble.shape[0] == COUNT
        for member in sample.ensemble[:, 2:7]:
            np.testing.assert_allclose(member, wanted, rtol=1e-6)
        assert (sample.ensemble[:, 7:].numpy() == np.transpose([*BELONGS.values()])[..., None, None]).all()


def test_a_missing_member_makes_its_group_missing(tmp_path):
    archive = write_archive(tmp_path, {("2t", 1, 2, 2)}, missing="mask")
    task = Task("groups", ["2t"], ["2t"], [48], groups={"control": 0, "others": 1})
    data = ForecastDataset(archive, task, [2020])
    assert [one.channels for one in data.ledger.omissions] == [("2t",)]
    assert [[bool(channel.any()) for channel in sample.mask] for sample in data] == [
        [True] * 5, [False, True, False, False, True], *[[True] * 5] * 4
    ]  # fmt: skip
    assert len(NUMBERS) == 3


def test_a_forecast_without_a_group_has_the_other_members(tmp_path):
    gaps = {("2t", 1, 2, 1), ("2t", 1, 2, 2), ("2t", 3, 2, 0)}
    archive = write_archive(tmp_path, gaps)
    task = Task("groups", ["2t"], ["2t"], [48], groups={"control": 0, "others": 1})
    data = ForecastDataset(archive, task, [2020])
    found = [(one.reason, one.channels) for one in data.ledger.omissions]
    assert found == [("without_group", ("others",)), ("without_group", ("control",))]
    members, there = values("2t")[0].sel(lead_time=48).values, {1: [0], 3: [1, 2]}
    for start, sample in enumerate(data):
        np.testing.assert_array_equal(sample.ensemble[:, 0], members[start][there.get(start, [0, 1, 2])])
        control, others = start != 3, start != 1
        assert sample.mask.all((1, 2)).tolist() == [True, control, others, others, True]

    # Stores have the same samples, and others leave these forecasts out.
    moments = ForecastDataset(archive, task, [2020], moments=True)
    for name, plain in (("members", data), ("moments", moments)):
        store = Store.write(archive, task, tmp_path / name, moments=name == "moments")
        for one, other in zip(ForecastDataset(store, task, [2020], moments=name == "moments"), plain, strict=True):
            np.testing.assert_array_equal(one.mask, other.mask)
            np.testing.assert_array_equal(one.ensemble[:, one.mask], other.ensemble[:, one.mask])
    alone = replace(task.only_targets(), systems=())
    assert len(ForecastDataset(Store(tmp_path / "members"), alone, [2020])) == 4
    for rest in (data.with_all_groups(), ForecastDataset(replace(archive, missing="drop"), task, [2020])):
        assert [one.reason for one in rest.ledger.omissions] == ["no_group", "no_group"]
        assert len(rest) == 4


def test_wrong_groups_are_refused():
    forecasts, analyses = datasets()
    with pytest.raises(InputError, match=r"no member of the group group_mean\(2t, 0, 0\).* numbers 1 2 3 4 5 6; add"):
        samples(forecasts.sel(number=slice(1, None)), analyses)
    with pytest.raises(InputError, match="members=3 leaves out 4 of 7 members, and group_mean"):
        ForecastDataset(ArraySource(forecasts, analyses), TASK, [2020], members=3)
    wrong = ("group_mean(2t)", "group_mean(2t, 5, 1)", "group_spread(speed(10u, 10v), 1)")
    for text in (*wrong, "change(group_mean(2t, 1), 24)"):
        with pytest.raises(InputError, match=r"write it like (group_|change)"):
            Formula.parse(text)
    for groups in ({"a": 1, "b": 0}, {"a": 0, "b": 0}, {"a": "0-3"}, {"a": -1}):
        with pytest.raises(InputError, match="the number of the first member of each group, increasing"):
            Task("groups", ["2t"], ["2t"], [24], groups=groups)
    assert Task("groups", ["2t"], ["2t"], [24], groups={"all": 0}) == Task("groups", ["2t"], ["2t"], [24])
