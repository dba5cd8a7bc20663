"""The verb `correct`: missing values, and errors for inputs that cannot be corrected."""

import json
from itertools import product

import eccodes
import netCDF4
import numpy as np
import pytest
import standin_device
import torch
from correction_runs import EMOS, correct, random_corrector, read_messages, read_values, write_members
from grib_parts import GRID, KEYS
from ranks import run_on_ranks
from safetensors import safe_open
from safetensors.torch import save_file

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from data_pipeline.task import Task, Variable
from data_pipeline.variables.meaning import Meaning
from data_pipeline.writing import Encoder
from models import correct as verb
from models.combine import combine
from models.corrected_files.correct_files import CorrectionSummary
from models.corrector import Corrector, needed_task
from models.normalizer import Normalizer

# `runpy` warns because the command runs a module that this file has imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")

TASK = Task("toy", ["2t", "msl"], ["2t"], [24])
STARTS, MEMBERS, NUMBERS = (20200101, 20200102), 4, range(1, 5)
PATCH = (slice(2, 4), slice(3, 6))


def forecast(path, holes=()):
    """Write forecasts of 2t and msl; `holes` are (start, variable, member) without values in the patch."""
    random, fields = np.random.default_rng(3), {}
    for start, name, number in product(STARTS, ("2t", "msl"), NUMBERS):
        field = 280 + 8 * random.standard_normal(GRID.shape)
        if (start, name, number) in holes:
            field[PATCH] = np.nan
        fields[name, start, 24, number] = field
    return write_members(path, fields)


def values(path):
    """(start, variable, member, H, W), NaN where missing."""
    return read_values(path).reshape(len(STARTS), 2, MEMBERS, *GRID.shape)


def make_corrector(spec, task=TASK):
    return random_corrector(needed_task(spec, task), spec)


UNET = {"_target_": "models.networks.unet.UNet", "width": 4, "depth": 1}


def test_members_are_unchanged_where_a_member_is_missing(tmp_path):
    whole, holed = forecast(tmp_path / "whole"), forecast(tmp_path / "holed", [(STARTS[0], "2t", 2)])
    without = correct(make_corrector(EMOS), whole, tmp_path / "one")
    done = correct(make_corrector(EMOS), holed, tmp_path / "two")
    assert (without.messages, without.notes) == (8, [])
    assert done.messages == 8
    assert done.notes == [
        "2t: 6 cells of 1 forecast lack the value of some member: their members are unchanged; the model read the mean "
        "of the training years there"
    ]
    raw, expected, found = (values(tmp_path / name) for name in ("holed", "one", "two"))
    step = 2**-9  # of the packing
    patch = (0, 0, slice(None), *PATCH)
    np.testing.assert_allclose(found[patch], raw[patch], rtol=0, atol=step)
    assert np.isnan(found[patch]).sum() == 6
    expected[patch] = raw[patch]
    np.testing.assert_allclose(found, expected, rtol=0, atol=step)
    assert abs(expected - raw)[~np.isnan(raw)].mean() > 100 * step


def test_a_gap_in_an_input_that_all_training_samples_have_is_reported(tmp_path):
    source = forecast(tmp_path / "input", [(start, "msl", 3) for start in STARTS])
    corrector = make_corrector(UNET)
    message = "msl: 12 cells of 2 forecasts lack the value of some member, but no training sample does; the model read"
    assert correct(corrector, source, tmp_path / "out").notes[0].startswith(message)
    corrector.normalizer.always[1][PATCH] = 0
    assert not correct(corrector, source, tmp_path / "out").notes
    assert np.isfinite(values(tmp_path / "out")[:, 0]).all()


def test_a_committee_reports_gaps_that_none_of_its_correctors_has_seen(tmp_path):
    """Cells without training values keep the raw ensemble."""
    parts = [make_corrector(UNET) for _ in range(2)]
    parts[0].normalizer.always[1, 2, 3] = 0
    for number, part in enumerate(parts):
        part.normalizer.known[0, 7, 7 + number] = 0
        part.provenance["run"] = number
        part.save(tmp_path / f"{number}")
    source = forecast(tmp_path / "input", [(STARTS[0], "msl", 3)])
    notes = correct(combine([tmp_path / "0", tmp_path / "1"]), source, tmp_path / "both").notes
    assert [note[:24] for note in notes] == ["msl: 5 cells of 1 foreca", "2t: 4 cells of 2 forecas"]
    assert notes[1].endswith("have no value in any training sample; the correction there is the raw ensemble")
    alone = correct(Corrector.load(tmp_path / "0"), source, tmp_path / "one").notes
    assert alone[1].startswith("2t: 2 cells of 2 forecasts have no value in any training sample")
    raw, found = values(source)[:, 0], values(tmp_path / "one")[:, 0]
    np.testing.assert_allclose(found[..., 7, 7], raw[..., 7, 7], rtol=0, atol=2**-9)


def test_the_normaliser_stores_where_inputs_always_have_values(toy):
    data = toy(TASK, GRID, 5)
    data.samples[2].mask[1, 4, 7] = False
    normalizer = Normalizer(TASK, GRID)
    assert not normalizer.always.any()
    normalizer.fit(batches(data, 2))
    assert normalizer.always[1, 4, 7] == 0
    assert normalizer.always.sum() == 2 * 9 * 14 - 1


def test_a_forecast_without_a_value_is_an_error(tmp_path):
    corrector = make_corrector({"_target_": "models.statistical.climatology.Climatology"})
    corrector.model.coefficients.fill_(1)[..., 2, 3] = torch.nan
    sentence = "the corrected forecast of 2020-01-01T12:00:00 .24 h has no value in 1 of 126 cells where the input"
    with pytest.raises(InputError, match=sentence):
        correct(corrector, forecast(tmp_path / "input"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["input"]


def corrected_on_standin(rank, folder):
    standin_device.install()
    for name, spec in (("emos", EMOS), ("unet", UNET)):
        correct(make_corrector(spec), folder / "input", folder / f"{name} there", device=standin_device.NAME)


def test_a_file_corrected_on_another_device_is_that_of_the_cpu(tmp_path):
    forecast(tmp_path / "input")
    run_on_ranks(1, corrected_on_standin, tmp_path, fresh=True)
    for name, spec in (("emos", EMOS), ("unet", UNET)):
        correct(make_corrector(spec), tmp_path / "input", tmp_path / name)
        here, there = values(tmp_path / name), values(tmp_path / f"{name} there")
        # Sums have another order, because only on CPUs layers have their channels last in memory: a value may be
        # rounded to the next number of its packing, whose step is 2^-10 K here.
        np.testing.assert_allclose(there, here, rtol=0, atol=1.1 * 2**-10)


def test_the_verb_passes_the_device(folder, command, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "models.device.choose_device",
        lambda option, processes: asked.append((option, processes.ranks)) or torch.device("meta"),
    )
    monkeypatch.setattr(
        verb,
        "correct_files",
        lambda engines, *_, **__: asked.append(engines[0]._device) or CorrectionSummary(0, ["2t: a note"]),
    )
    main = verb.main  # `command` would import the module again
    monkeypatch.setattr("sys.argv", ["correct", "corrector=right", "input=forecast", "output=never", "device=gpu"])
    monkeypatch.chdir(folder)
    main()
    assert asked == [("gpu", 1), torch.device("meta")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a valid corrector and forecast, and files with one error each."""
    folder = tmp_path_factory.mktemp("wrong")
    corrector = make_corrector(EMOS)
    corrector.save(folder / "right")
    forecast(folder / "forecast")
    with safe_open(folder / "right", framework="pt") as file:
        tensors, text = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()["deepweather"]  # noqa: SIM118
    description = json.loads(text)

    def leave(name, text, tensors=tensors):
        save_file(tensors, folder / name, metadata={"deepweather": text})

    leave("bad-task", json.dumps(description | {"task": description["task"] | {"lead_times": [48, 24]}}))
    leave("bad-grid", json.dumps(description | {"grid": description["grid"] | {"latitudes": [0, 1]}}))
    leave("no-static", text, {name: tensor for name, tensor in tensors.items() if name != "static"})
    leave("small-static", text, tensors | {"static": torch.zeros(3, 2, 2)})
    leave("future", json.dumps(description | {"format": 99}))
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_text("once upon a time\n" * 100)
    (folder / "cut").write_bytes((folder / "forecast").read_bytes()[:-100])
    (folder / "folder").mkdir()
    with netCDF4.Dataset(folder / "forecast.nc", "w") as file:
        file.createDimension("x", 1)
    return folder


WRONG = {
    "input=[forecast,forecast]": "input names forecast twice; name each file once",
    "input=[]": "input is an empty list; name at least one file",
    "input=7": "input must be a file, a folder, a pattern, or a list of them, got 7; write a number as ./7",
    "input=missing": "there is no file missing; check the path",
    "input=folder": "the folder folder has no files; check input",
    "input=forecast.nc": "forecast.nc has no variable on latitudes and longitudes; it has coordinates only",
    "input=empty": "empty is empty; fetch the file again",
    "input=text": "text is text, not GRIB or NetCDF; name a file of fields",
    "input=cut": "cut",
    "input=right": "right is safetensors, not GRIB or NetCDF; name it where a corrector is read",
    "output=out.npz": "output=out.npz ends in .npz, but correct writes GRIB, NetCDF and Zarr; choose another name",
    "format=bufr": "format must be grib, netcdf, table, zarr or null, got 'bufr'",
    "output=forecast": "forecast is the file to read; name another file or folder to write",
    "output=text/out": "cannot write text/out (",
    "output=20200101": "output must be the path of one file or folder, got 20200101; write a number as ./20200101",
    "corrector=missing": "there is no corrector missing; train one with `deepweather train`",
    "corrector=[]": "corrector is empty; name the file of a corrector",
    "corrector=[right,right]": "corrector names a file twice; name each corrector once",
    "corrector={one:right,two:right}": "the correctors one and two both correct 2t at +24 h; name one of them",
    "corrector=20200101": "corrector must be the path of one file, got 20200101; write a number as ./20200101",
    "corrector=forecast": "forecast is GRIB, not a corrector (safetensors); name it where GRIB is read",
    "corrector=bad-task": "bad-task: task toy: lead_times must be increasing whole hours, got [48, 24]",
    "corrector=bad-grid": "bad-grid: latitudes must decrease strictly (north first), got [0.0, 1.0]",
    "corrector=no-static": "no-static must hold static fields of shape 3x9x14, it has none; train the corrector again",
    "corrector=small-static": "small-static must hold static fields of shape 3x9x14, it has 3x2x2",
    "corrector=future": "future has format 99, this version reads 2; train the corrector again",
    "quantile_levels=median": "quantile_levels must be one of hazen, weibull, got 'median'",
    "seed=-1": "seed must be a whole number from 0 to",
    "device=tpu": "device must be one of auto, cpu, gpu, got 'tpu'",
    "analysis=forecast": "the corrector reads no analysis; remove analysis=forecast",
}


@pytest.mark.parametrize("option", WRONG)
def test_an_error_is_one_sentence(option, folder, command):
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    options = {"corrector": "right", "input": "forecast", "output": "never"}
    name, _, value = option.partition("=")
    ended = command(folder, "correct", *(f"{key}={each}" for key, each in (options | {name: value}).items()))
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {WRONG[option]}")
    assert ended.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert not list((folder / "folder").iterdir())


def test_a_missing_output_folder_is_created(folder, command, tmp_path):
    ended = command(folder, "correct", "corrector=right", "input=forecast", f"output={tmp_path}/new/of/20200101")
    assert (ended.code, ended.stderr) == (0, "")
    assert "20200101: 8 messages corrected (2t at +24 h), all others copied unchanged\n" in ended.stdout
    assert "does not state the ranges of its training data" in ended.stdout
    assert (tmp_path / "new/of/20200101").exists()


CLOUDS = Task("clouds", ["tcc"], ["tcc"], [24])


def test_the_output_has_the_units_of_the_input(tmp_path):
    """The same forecast as a fraction and in per cent; EMOS moves clear and overcast members, within the bounds."""
    corrector, found = random_corrector(CLOUDS, size=0.3, location=0, scale=1), []
    for parameter, factor, unit in ((164, 1, "(0 - 1)"), (228164, 100, "%")):
        random = np.random.default_rng(4)
        clear = {
            (parameter, start, 24, number): factor * random.uniform(0, 1, GRID.shape).round()
            for start, number in product(STARTS, NUMBERS)
        }
        source = write_members(tmp_path / f"{parameter}", clear, bitsPerValue=24)
        assert correct(corrector, source, tmp_path / "out").messages == len(STARTS) * MEMBERS
        assert {units for (units,), _ in read_messages(tmp_path / "out", "units")} == {unit}
        found.append(read_values(tmp_path / "out") / factor)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=2**-19)  # a step of each packing
    assert found[0].min() == 0 and found[0].max() == 1  # noqa: PT018
    assert ((found[0] > 0.01) & (found[0] < 0.99)).mean() > 0.1


def test_the_input_may_have_other_names(tmp_path):
    source = forecast(tmp_path / "input")
    expected = correct(make_corrector(EMOS), source, tmp_path / "one")
    renamed = make_corrector(EMOS, Task("toy", ["skt", "msl"], ["skt"], [24]))
    assert correct(renamed, source, tmp_path / "two", names={"2t": "skt"}).messages == expected.messages == 8
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def rain(path, accumulated=True, leads=(24, 48)):
    """Write rain of members, in m: since the start of the forecast, or of 24 hours."""
    random = np.random.default_rng(5)
    encoder = Encoder(GRID, **KEYS, type="pf", stream="enfo", numberOfForecastsInEnsemble=MEMBERS)
    with path.open("wb") as file:
        for start in STARTS:
            for number in range(1, MEMBERS + 1):
                for lead in leads:
                    message = encoder.encode(
                        0.01 * (lead if accumulated else 24) * random.uniform(0.5, 0.6, GRID.shape), shortName="tp",
                        dataDate=start, endStep=lead, perturbationNumber=number,
                    )  # fmt: skip
                    octets = (1, lead, 0, 0) if accumulated else (1, lead - 24, lead, 4)
                    file.write(message[:25] + bytes(octets) + message[29:])
    return path


def fields(path, **wanted):
    """Return the values of the messages with these ecCodes keys, by start and member."""
    found = {}
    for (*keys, start, number), field in read_messages(path, *wanted, "dataDate", "perturbationNumber"):
        if keys == [*wanted.values()]:
            assert (start, number) not in found
            found[start, number] = field.reshape(GRID.shape)
    return found


def as_grib2(source, target):
    """Copy amounts since the start as GRIB2."""
    with source.open("rb") as old, target.open("wb") as new:
        while (handle := eccodes.codes_grib_new_from_file(old)) is not None:
            lead = eccodes.codes_get(handle, "endStep")
            eccodes.codes_set(handle, "edition", 2)
            for name, value in (("stepType", "accum"), ("startStep", 0), ("endStep", lead)):
                eccodes.codes_set(handle, name, value)
            new.write(eccodes.codes_get_message(handle))
            eccodes.codes_release(handle)


@pytest.mark.parametrize("edition", [1, 2])
def test_rain_of_a_period_is_written_after_the_amounts_that_it_is_made_from(tmp_path, edition):
    """The new messages have the values that a file of 24-hour amounts gets."""
    task = Task("rain", ["tp:24h"], ["tp:24h"], [48])
    since_start, corrector = rain(tmp_path / "since"), make_corrector(EMOS, task)
    steps_before = ("24", "48") if edition == 1 else ("0-24", "0-48")
    if edition == 2:
        as_grib2(since_start, tmp_path / "since2")
        since_start = tmp_path / "since2"
    done = correct(corrector, since_start, tmp_path / "out")
    count = len(STARTS) * MEMBERS
    assert done.messages == count
    assert done.notes[0].startswith(f"{count} of the corrected messages are new (tp:24h): each follows a message")
    for steps in steps_before:  # copied unchanged
        before, after = (fields(path, shortName="tp", stepRange=steps) for path in (since_start, tmp_path / "out"))
        assert before.keys() == after.keys()
        assert all((before[key] == after[key]).all() for key in before)
    first, second = (fields(since_start, stepRange=steps) for steps in steps_before)
    amounts = {("tp", date, 48, number): second[date, number] - first[date, number] for date, number in second}
    write_members(tmp_path / "direct", amounts, bitsPerValue=24, stepType="accum", startStep=24)
    assert correct(corrector, tmp_path / "direct", tmp_path / "out2").messages == count
    new, expected = (fields(tmp_path / name, shortName="tp", stepRange="24-48") for name in ("out", "out2"))
    assert len(new) == count
    assert new.keys() == expected.keys()
    for key, field in expected.items():
        np.testing.assert_allclose(new[key], field, rtol=0, atol=np.ptp(field) * 2**-14)
        assert (abs(new[key] - (second[key] - first[key])) > 1e-4).any()


def test_a_target_that_the_input_holds_at_one_lead_time_only_is_added_at_the_other(tmp_path):
    task = Task("rain", ["tp:24h"], ["tp:24h"], [24, 48])
    correct(make_corrector(EMOS, task), rain(tmp_path / "since"), tmp_path / "out")
    before, after = (fields(tmp_path / name, stepRange="24") for name in ("since", "out"))
    assert all((before[key] != after[key]).any() for key in before)  # the amounts of the first 24 hours are the target
    assert len(fields(tmp_path / "out", stepRange="24-48")) == len(before)


def test_geopotential_is_written_as_the_height_that_the_input_has(tmp_path):
    task = Task("height", ["z@500"], ["z@500"], [24])
    corrector = make_corrector(EMOS, task)
    heights = 28.5 + np.random.default_rng(0).standard_normal((MEMBERS, *GRID.shape))
    for name, factor in (("gh", 1.0), ("z", 9.80665)):
        members = {
            (name, STARTS[0], 24, number): factor * field for number, field in zip(NUMBERS, heights, strict=True)
        }
        write_members(tmp_path / name, members, typeOfLevel="isobaricInhPa", level=500, bitsPerValue=24)
        assert correct(corrector, tmp_path / name, tmp_path / f"{name}.out").messages == MEMBERS
    found, expected = (fields(tmp_path / f"{name}.out", shortName=name) for name in ("gh", "z"))
    for key, field in expected.items():
        np.testing.assert_allclose(9.80665 * found[key], field, rtol=0, atol=1e-3)


def test_a_forecast_over_another_interval_than_in_training_is_refused(tmp_path):
    task = Task("rain", ["tp"], ["tp"], [48])
    corrector = make_corrector(EMOS, task)
    corrector.meanings = (Meaning(Variable("tp"), "m", (1440,)),)
    sentence = "the corrector was trained on tp at lead time 48 h over 24 h, not 48 h as in"
    with pytest.raises(InputError, match=sentence):
        correct(corrector, rain(tmp_path / "since"), tmp_path / "out")
    assert correct(corrector, rain(tmp_path / "direct", accumulated=False), tmp_path / "out").messages == 8


def test_an_interval_that_grib1_cannot_state_is_refused(tmp_path):
    """GRIB1 has one octet each for the hours of begin and end."""
    rates = 1e-4 * np.random.default_rng(0).uniform(0.5, 0.6, (MEMBERS, *GRID.shape))
    amounts = {("tp", STARTS[0], lead, n): lead * rates[n - 1] for lead, n in product((301, 325), NUMBERS)}
    write_members(tmp_path / "input", amounts)
    corrector = make_corrector(EMOS, Task("rain", ["tp:24h"], ["tp:24h"], [325]))
    with pytest.raises(InputError, match=r"a message like those of .*input cannot hold tp over 24 h at \+325 h; write"):
        correct(corrector, tmp_path / "input", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wind_speed_is_added_after_a_component(tmp_path):
    random = np.random.default_rng(0)
    wind = {(name, STARTS[0], 24, n): random.normal(0, 6, GRID.shape) for name in ("10u", "10v") for n in NUMBERS}
    write_members(tmp_path / "input", wind)
    corrector = make_corrector(EMOS, Task("wind", ["10si"], ["10si"], [24]))
    done = correct(corrector, tmp_path / "input", tmp_path / "out")
    assert done.messages == MEMBERS
    assert "new (10si)" in done.notes[0]
    assert len(fields(tmp_path / "out", shortName="10si", stepRange="24")) == MEMBERS
    for name in ("10u", "10v"):
        before, after = (fields(tmp_path / file, shortName=name) for file in ("input", "out"))
        assert all((before[key] == after[key]).all() for key in before)


def test_two_targets_made_from_the_same_messages_are_refused(tmp_path):
    """One of them would stay uncorrected."""
    task = Task("rain", ["tp:24h", "tp"], ["tp:24h", "tp"], [48])
    with pytest.raises(
        InputError, match="tp:24h and tp would be written with the same messages, those of tp; train one"
    ):
        correct(make_corrector(EMOS, task), rain(tmp_path / "since"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
