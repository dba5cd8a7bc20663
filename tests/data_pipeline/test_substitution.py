"""The law of substitution: whatever stands in for an archive gives its samples, bit for bit, or refuses by name.

Every kind of task is read through stores of every kind, and a task of all kinds through every substitute. Both are
registries that must grow with the code: a new option of a task, a new data source and a new way to read a data set fail
a test here until they are in one of them.
"""

import importlib
import inspect
import pickle
import pkgutil
from dataclasses import fields, replace
from functools import partial
from itertools import product
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_archive import NUMBERS, TIMES, UNITS, write_archive

import data_pipeline
from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.formats.open import open_analysis, open_ensemble
from data_pipeline.formats.stated_intervals import StatedIntervals
from data_pipeline.formulas.formula import read_variable
from data_pipeline.prefetch.budget import Budget
from data_pipeline.prefetch.tiers import Tiers
from data_pipeline.samples.pseudo_members import pseudo_members
from data_pipeline.sources.array_source import ArraySource
from data_pipeline.store import Store
from data_pipeline.task import Task
from data_pipeline.variables.variable import Channel, Origin

ALL_DATES, SOME_DATES = Dates.of_years([2020]), Dates.of_times(TIMES[2:6])

KINDS = {
    "one field": {},
    "masked cells": {"inputs": ["msl", "2t", "sst"], "other_leads": ["2t+0h"]},
    "several targets": {"inputs": ["2t", "msl"], "targets": ["msl", "2t"]},
    "another target": {"inputs": ["msl"], "targets": ["msl"]},
    "levels and static fields": {"inputs": ["t@500", "2t", "t@850"], "static": ["lsm"]},
    "amounts": {"inputs": ["2t", "tp:24h"], "targets": ["tp:24h"]},
    "earlier lead times": {"other_leads": ["2t-24h", "msl-48h"]},
    "other lead times": {"lead_times": [24], "other_leads": ["2t+48h"]},
    "analyses": {"analysis": ["2t", "msl"]},
    "formulas": {"formulas": ["change(2t, 24)", "speed@850", "gradient(t@850)"]},
    "groups of members": {"targets": ["2t"], "formulas": ["change(2t, 24)"], "groups": {"control": 0, "others": 1}},
    "earlier starts": {"inputs": ["2t", "msl"], "lagged": [24]},
}
"""Options of tasks, in addition to those of `PLAIN`."""
PLAIN = {"inputs": ["2t"], "targets": ["2t"], "lead_times": [24, 48]}
EVERYTHING = Task(
    "everything", ["2t", "msl", "sst", "t@850", "t@500", "tp:24h"], ["2t", "msl", "tp:24h"], [24, 48], ["lsm"],
    ["2t-24h", "msl-48h", "2t+48h", "2t+0h"], ["2t", "msl"], ["change(2t, 24)", "speed@850", "gradient(t@850)"],
    groups={"control": 0, "others": 1},
)  # fmt: skip
TASKS = {kind: Task("kind", **(PLAIN | options)) for kind, options in KINDS.items()} | {
    "everything": EVERYTHING, "everything of single cells": replace(EVERYTHING, formulas=EVERYTHING.formulas[3:]),
}  # fmt: skip

GAPS = {
    ("2t", 2, 2, 1), *(("msl", 3, 1, member) for member in range(3)), ("t", 1, 2, 0),
    *(("2t", 4, 0, member) for member in range(3)), ("2t", 4, None, None), ("msl", 5, None, None),
}  # fmt: skip


class World:
    """An archive, and what is made of it, each once."""

    def __init__(self, folder, gaps, missing, names=tuple(UNITS), starts=6, stations=False):
        self.folder = folder
        self.archive = write_archive(folder, gaps, names, starts, stations, missing=missing)
        self._plain, self._stores = {}, {}

    def plain(self, task, dates=ALL_DATES, **options):
        """Return the samples that the archive itself gives, and their data set."""
        key = (task, dates, repr(options))
        if key not in self._plain:
            dataset = ForecastDataset(self.archive, task, dates, **options)
            self._plain[key] = list(dataset), dataset
        return self._plain[key]

    def store(self, task, dates=None, moments=False):
        """Return a store of a task."""
        folder = self.folder / f"store{len(self._stores)}"
        key = task, dates, moments
        if key not in self._stores:
            self._stores[key] = Store.write(self.archive, task, folder, dates, moments=moments, shard_bytes=3000)
        return self._stores[key]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """A complete archive, one with gaps and one of stations; hypothesis draws archives of gaps with `drop`."""
    return {
        "complete": World(tmp_path_factory.mktemp("complete"), (), "error"),
        "gaps": World(tmp_path_factory.mktemp("gaps"), GAPS, "mask"),
        "stations": World(tmp_path_factory.mktemp("stations"), GAPS, "mask", stations=True),
    }


def through_store(of=None, dates=None, moments=False, **subset):
    """Return a substitute: a store of the task, or of the task `of`, with these dates, in another process."""

    def substitute(world, task):
        options = {"dates": dates or ALL_DATES, **subset} | ({"moments": True} if moments else {})
        if "members" in options:
            options["members"] = members_of(task)
        dataset = ForecastDataset(pickle.loads(pickle.dumps(world.store(of or task, dates, moments))), task, **options)
        expected, whole = world.plain(task, **options)
        assert dataset.fingerprint == whole.fingerprint
        return dataset, dataset, (expected, whole)

    return substitute


def arrays_of(world, task, chunks=None):
    """Return datasets of xarray as a source, as `deepweather.fit` does."""
    leaves = dict.fromkeys(one for formula in task.formulas for one in formula.leaves)
    read = [*map(Channel, task.inputs), *task.other_leads, *leaves]
    leads = sorted({lead for one in read for each in task.lead_times if (lead := one.lead_time(each)) >= 0})
    leads += [72] * any(formula.lag for formula in task.formulas)
    archive, options = world.archive, {"missing": "mask", "chunks": chunks}
    inputs, truth = dict.fromkeys(one.variable for one in read), dict.fromkeys([*task.targets, *task.analysis])
    stated = [StatedIntervals.parse(archive.intervals, part) for part in ("ensemble", "analysis")]
    return ArraySource(
        open_ensemble(archive.ensemble, [*inputs], leads, intervals=stated[0], **options),
        open_analysis(archive.analysis, [*truth], intervals=stated[1], **options),
        archive.static, missing=archive.missing,
    )  # fmt: skip


def through_arrays(world, task, chunks=None):
    """Read from datasets of xarray."""
    dataset = ForecastDataset(arrays_of(world, task, chunks), task, ALL_DATES)
    return dataset, dataset, world.plain(task)


def through_caches(world, task):
    """Read all samples twice through memory and disk; the folder held another task's samples before."""
    folder = world.folder / "cache"
    for each in (TASKS["one field"], task):
        dataset = ForecastDataset(world.archive, each, ALL_DATES)
        few = 2 * (dataset.nbytes + 2000)
        for _ in range(2):
            with Tiers(dataset, Budget(memory_bytes=few, disk_bytes=2 * few, disk_folder=str(folder))) as tiers:
                found = [tiers[k] for k in range(len(tiers))]
    return found, dataset, world.plain(task)


def members_of(task):
    """Return some members, or all in another order, if the task describes groups of members."""
    return [2, 0, 1] if any(formula.members for formula in task.formulas) else [2, 0]


def through_tile(world, task, source=lambda world, task: world.archive):
    """Read some rows, columns and members."""
    whole, of_all = world.plain(task)
    rows, columns = slice(1, 4), slice(2, 7) if whole[0].target.shape[-1] > 1 else slice(None)
    some = members_of(task)
    dataset = ForecastDataset(source(world, task), task, ALL_DATES, rows=rows, columns=columns, members=some)
    few = [one._replace(ensemble=one.ensemble[some], mask=one.ensemble[some].isfinite().all(0)) for one in whole]
    on_grid = ("ensemble", "mask", "static", "target")
    cut = [one._replace(**{name: getattr(one, name)[..., rows, columns] for name in on_grid}) for one in few]
    return dataset, dataset, (cut, of_all)


def through_same_grid(world, task):
    """Read through the regridding to the grid that the files have."""
    dataset = ForecastDataset(replace(world.archive, grid="analysis"), task, ALL_DATES)
    return dataset, dataset, world.plain(task)


def through_another_process(world, task):
    """Read from a data set that was sent to another process."""
    dataset = pickle.loads(pickle.dumps(ForecastDataset(world.archive, task, ALL_DATES)))
    return dataset, dataset, world.plain(task)


SUBSTITUTES = {
    "store": through_store(),
    "store of moments": through_store(moments=True),
    "store of all fields": through_store(EVERYTHING),
    "store of moments of all fields": through_store(EVERYTHING, moments=True),
    "store of one field": through_store(TASKS["one field"]),
    "store of two fields": through_store(TASKS["several targets"]),
    "store of some dates": through_store(TASKS["one field"], SOME_DATES),
    "tile of a store": through_store(rows=slice(1, 4), columns=slice(2, 7), members=[2, 0]),
    "tile of a store of moments": through_store(moments=True, rows=slice(3, 4), columns=slice(0, 3)),
    "arrays": through_arrays,
    "lazy arrays": partial(through_arrays, chunks="auto"),
    "caches": through_caches,
    "tile": through_tile,
    "tile of arrays": partial(through_tile, source=arrays_of),
    "regridding to the same grid": through_same_grid,
    "another process": through_another_process,
}
TILES_OF_STORES = {"tile of a store", "tile of a store of moments"}
OF_THE_TASK = {"store", "store of moments", *TILES_OF_STORES} | {name for name in SUBSTITUTES if "store" not in name}
"""Substitutes that are made of the very task, and must not refuse it."""
OF_ALL_FIELDS = {"store of all fields", "store of moments of all fields"}
THROUGH_ALL = ["masked cells", "everything", "earlier starts"]
FORMS = {"lazy arrays", "tile of arrays", "another process", "regridding to the same grid"}
"""Substitutes that differ from another one in the form of its fields only; stations read everything through them."""
OTHER_STORES = SUBSTITUTES.keys() - OF_THE_TASK - {"store of all fields"}
OF_OTHER_STORES = [*THROUGH_ALL, "one field", "another target", "formulas"]
CASES = [
    # The first start has no earlier one, so a store of earlier starts is one of fewer forecasts.
    *product(["complete"], sorted(KINDS.keys() - {"earlier starts"}), ["store of all fields"]),
    *product(["gaps"], KINDS, ["store", "store of all fields"]),
    *product(["gaps"], [*OF_OTHER_STORES, "groups of members"], ["store of moments"]),
    *product(["gaps"], OF_OTHER_STORES, sorted(OTHER_STORES)),
    *product(["gaps"], THROUGH_ALL, sorted(OF_THE_TASK - {"store", "store of moments"} - FORMS)),
    *product(["gaps"], ["masked cells", "earlier starts"], sorted(FORMS)),
    # Stations have no derivatives, no grid to be brought to, and one column.
    *product(
        ["stations"],
        ["everything of single cells"],
        sorted(OF_THE_TASK - TILES_OF_STORES - {"regridding to the same grid"}),
    ),
]


def bits(samples):
    return [[(tensor.dtype, tensor.contiguous().numpy().tobytes()) for tensor in sample] for sample in samples]


def places(dataset):
    """Return what the channels mean, and the forecasts that are left out or masked, with reason and channels."""
    ledger = dataset.ledger
    omissions = [(one.key, one.reason, one.channels) for one in ledger.omissions]
    return dataset.meanings, ledger.forecasts, omissions


@pytest.mark.parametrize(("archive", "kind", "substitute"), CASES)
def test_a_substitute_gives_the_samples_of_the_archive(worlds, archive, kind, substitute):
    world, task = worlds[archive], TASKS[kind]
    try:
        samples, dataset, (expected, whole) = SUBSTITUTES[substitute](world, task)
    except InputError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert refused.startswith((f"the store {world.folder}", f"the truth in the store {world.folder}"))
        assert substitute not in OF_THE_TASK
        assert archive == "gaps" or substitute not in OF_ALL_FIELDS
        return
    assert bits(samples) == bits(expected)
    assert places(dataset) == places(whole)


@pytest.mark.parametrize("kind", ["masked cells", "everything"])
def test_moments_are_those_of_the_members(worlds, kind):
    """Of a channel that all members share, both pseudo-members are the channel."""
    (members, _), (moments, _) = (worlds["gaps"].plain(TASKS[kind], moments=flag) for flag in (False, True))
    pairs = [one._replace(ensemble=torch.from_numpy(pseudo_members(one.ensemble.numpy()))) for one in members]
    assert [one.ensemble.nan_to_num(-1).tolist() for one in moments] == [
        pair.ensemble.nan_to_num(-1).tolist() for pair in pairs
    ]
    assert bits(one[1:] for one in moments) == bits(pair[1:] for pair in pairs)


def test_kinds_have_all_options_of_a_task():
    plain = TASKS["one field"]
    tasks = [TASKS[kind] for kind in KINDS]
    varied = {
        option.name
        for task in tasks
        for option in fields(Task)
        if getattr(task, option.name) != getattr(plain, option.name)
    }
    assert varied == {option.name for option in fields(Task)} - {"name", "thresholds"}
    assert {channel.origin for task in tasks for channel in task.channels} == {*get_args(Origin)}


def test_substitutes_are_all_sources_and_all_options():
    """The heat experiment computes its fields: nothing stands in for it."""
    names = [one.name for one in pkgutil.walk_packages(data_pipeline.__path__, "data_pipeline.")]
    classes = (one for name in names for _, one in inspect.getmembers(importlib.import_module(name), inspect.isclass))
    found = {one.__name__ for one in classes if hasattr(one, "check_available")}
    assert found == {"DataSource", "Archive", "Heat", Store.__name__, ArraySource.__name__}
    options = {*inspect.signature(ForecastDataset).parameters} - {"source", "task", "dates"}
    assert options == {"members", "rows", "columns", "moments"}


FEW = ("2t", "msl")
CHOICES = {
    "inputs": FEW, "targets": FEW, "lead_times": (24, 48), "analysis": FEW,
    "other_leads": [name + at for name, at in product(FEW, ("-24h", "+0h", "+48h"))],
    "formulas": ["change(2t, 24)", "change(msl, 24)", "group_mean(2t, 0, 0)", "group_spread(msl, 1)",
                 "in_group(2t, 1)", "lagged_mean(2t, 24)"],
}  # fmt: skip


@st.composite
def drawn_tasks(draw, choices=CHOICES):
    """Return a task; each of its options is a part of the `choices`."""
    least = {"targets": 1, "lead_times": 1}
    drawn = {
        name: draw(st.lists(st.sampled_from(values), min_size=least.get(name, 0), max_size=2, unique=True))
        for name, values in choices.items()
        if values
    }
    formulas = map(read_variable, map(str, drawn.get("formulas", ())))
    members = [formula.leaves[0].variable for formula in formulas if formula.members]
    inputs = [*dict.fromkeys(map(str, [*drawn["targets"], *drawn["inputs"], *members]))]
    return Task("drawn", **(drawn | {"inputs": inputs, "lead_times": sorted(drawn["lead_times"])}))


def parts_of(task):
    """Return tasks whose options are parts of those of a task."""
    return drawn_tasks({name: values for name in CHOICES if (values := getattr(task, name))})


PAIRS = drawn_tasks().flatmap(lambda task: st.tuples(st.just(task), st.one_of(drawn_tasks(), *[parts_of(task)] * 3)))


def drawn_gaps():
    forecasts = st.tuples(
        st.sampled_from(FEW), st.integers(0, 2), st.integers(0, 2), st.sets(st.sampled_from(NUMBERS), min_size=1)
    )
    analyses = st.tuples(st.sampled_from(FEW), st.integers(0, 4))
    return st.builds(
        lambda some, others: [
            *((name, start, lead, member) for name, start, lead, members in some for member in members),
            *((name, time, None, None) for name, time in others),
        ],
        st.lists(forecasts, max_size=4),
        st.lists(analyses, max_size=2),
    )


@settings(max_examples=12)
@given(
    pair=PAIRS, gaps=drawn_gaps(), missing=st.sampled_from(["mask", "drop"]), moments=st.booleans(), some=st.booleans()
)
def test_a_store_of_any_task_gives_the_samples_of_the_archive(tmp_path_factory, pair, gaps, missing, moments, some):
    (stored, task), dates = pair, Dates.of_times(TIMES[2:4]) if some else ALL_DATES
    world = World(tmp_path_factory.mktemp("drawn"), gaps, missing, FEW, 3)
    try:
        store = world.store(stored, dates, moments)
        expected, whole = world.plain(task, dates, moments=moments)
    except InputError:
        return  # the archive itself cannot be used
    try:
        dataset = ForecastDataset(store, task, dates, moments=moments)
    except InputError as error:
        if stored == task or str(store) not in str(error):
            raise
        return
    assert bits(dataset) == bits(expected)
    ledgers = dataset.ledger, whole.ledger
    assert ledgers[0].used == ledgers[1].used
    masked = ({one.key: one.channels for one in ledger.omissions if one.used} for ledger in ledgers)
    assert next(masked) == next(masked)
