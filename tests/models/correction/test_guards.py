"""Guards of `correct`: forecasts that do not resemble the training, through the command."""

from itertools import product

import numpy as np
import pytest
import torch
import xarray as xr
from correction_runs import correct, random_corrector, read_messages, read_sidecar, write_members
from grib_parts import GRID

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.combine import combine
from models.correction.guards import Guard
from models.corrector import Corrector
from models.engines.torch_engine import TorchEngine
from models.parallel.domain import Domain
from models.provenance.envelope import ChannelRange, ChannelSummary, Envelope, untrained_sentence

# `runpy` warns because the command runs a module that this file has imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")
TASK = Task("toy", ["2t", "msl"], ["2t"], [24])
EMOS = {"_target_": "models.statistical.emos.EMOS", "shared": False}
MLP = {"_target_": "models.networks.mlp.MLP", "width": 4, "depth": 1}
MEMBERS, YEAR = 10, 365
MEANS, SPREADS = {"2t": 280.0, "msl": 101300.0}, {"2t": 8.0, "msl": 800.0}


def fields(start, members=MEMBERS):
    """Return 2t and msl (members, 2, H, W): a pattern that all share, an annual cycle, and the members' differences."""
    random, day = np.random.default_rng(start), start
    found = np.empty((members, 2, *GRID.shape))
    for k, name in enumerate(MEANS):
        pattern = np.linspace(-1, 1, GRID.shape[0])[:, None] + 0.3 * random.standard_normal(GRID.shape)
        cycle = 0.5 * np.cos(2 * np.pi * day / YEAR)
        own = 0.2 * random.standard_normal((members, *GRID.shape))
        found[:, k] = MEANS[name] + SPREADS[name] * (pattern + cycle + own)
    return found


class Archive(torch.utils.data.Dataset):
    """Daily forecasts of a year, from 00 UTC, with truths near the ensemble mean."""

    def __len__(self):
        return YEAR // 3

    def __getitem__(self, day):
        day *= 3
        ensemble = torch.from_numpy(fields(day)).float()
        start = np.datetime64("2019-01-01", "s") + np.timedelta64(day, "D")
        noise = torch.randn(1, *GRID.shape, generator=torch.Generator().manual_seed(day))
        return Sample(
            ensemble, torch.ones(2, *GRID.shape, dtype=torch.bool), torch.zeros(3, *GRID.shape),
            ensemble[:, :1].mean(0) + 1 + noise, torch.tensor(start.astype(np.int64)), torch.tensor(24),
        )  # fmt: skip


def write(path, change=lambda values: values, members=MEMBERS, time=0, day=20200110, twice=False, drop=None):
    """Write the forecast of a day; `change` alters its fields (members, 2, H, W)."""
    found = change(fields(9, members))
    every = product(range(2), range(1, members + 1))
    chosen = {(name_of(k), day, 24, n): found[n - 1, k] for k, n in every if (name_of(k), n) != drop}
    write_members(path, chosen, dataTime=time, numberOfForecastsInEnsemble=members)
    if twice:
        content = path.read_bytes()
        size = len(content) // len(chosen)
        path.write_bytes(content[: 3 * size] + content[2 * size :])
    return path


def name_of(channel):
    return [*MEANS][channel]


def values(path, name="2t"):
    return np.array([field for (found,), field in read_messages(path, "shortName") if found == name])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guards")
    torch.manual_seed(0)
    for name, spec in (("network", MLP), ("emos", EMOS)):
        task = TASK if name == "network" else TASK.only_targets()
        corrector = Corrector(task, GRID, spec, torch.zeros(3, *GRID.shape), {"members": MEMBERS, "run": name})
        corrector.fit(Archive() if name == "network" else Narrow())
        corrector.save(folder / name)
    write(folder / "good")
    return folder


class Narrow(Archive):
    def __getitem__(self, day):
        sample = super().__getitem__(day)
        return sample._replace(ensemble=sample.ensemble[:, :1], mask=sample.mask[:1])


def celsius(found):
    found[:, 0] -= 273.15
    return found


def hectopascal(found):
    found[:, 1] /= 100
    return found


def copied(found):
    found[4] = found[6]
    return found


def one_wrong_cell(found):
    found[:, 0, 2, 3] = 500
    return found


CASES = {
    "celsius": ({"change": celsius}, "2t has the mean"),
    "hectopascal": ({"change": hectopascal}, "msl has the mean"),
    "noon": ({"time": 1200}, "it starts at 12 UTC, and the corrector was trained on starts at 00 UTC"),
    "five": ({"members": 5}, "it has 5 members, and the corrector was trained on 10"),
    "one": ({"members": 1}, "it has 1 member, and the corrector was trained on 10"),
    "twice": ({"twice": True}, "holds 1 message more than once, such as 2t of 2020-01-10T00:00 +24 h, member 3"),
    "copied": ({"change": copied}, "its members 5 and 7 are equal in all cells of all targets"),
    "cell": ({"change": one_wrong_cell}, "2t has values from"),
    "gap": ({"drop": ("msl", 4)}, "gap lacks msl at init_time 2020-01-10T00:00, lead_time 24, number 4"),
}  # fmt: skip
FATAL = ("celsius", "hectopascal", "gap")


def run(command, folder, source, *options):
    return command(folder, "correct", "corrector=network", f"input={source}", f"output={source}.out", *options)


def test_no_corrector_corrects_its_own_output(folder, command):
    """The output is known by its sidecar; a raw forecast of the same name, or another corrector, is no problem."""
    write(folder / "once")
    ended = run(command, folder, "once")
    assert ended.code == 0, ended.stderr
    again = run(command, folder, "once.out")
    assert (again.code, (folder / "once.out.out").exists()) == (2, False)
    assert "once.out was corrected by network already, says once.out.json" in again.stderr
    assert command(folder, "correct", "corrector=emos", "input=once.out", "output=other").code == 0
    write(folder / "once.out")
    ended = run(command, folder, "once.out")
    assert ended.code == 0, ended.stderr


@pytest.mark.parametrize("case", CASES)
def test_each_fault_is_an_error_unless_the_raw_ensemble_may_be_written(case, folder):
    change, sentence = CASES[case]
    source, output, network = write(folder / case, **change), folder / f"{case}.out", Corrector.load(folder / "network")
    for on_problem in ("error", "raw") if case in FATAL else ("error",):
        with pytest.raises(InputError) as error:
            correct(network, source, output, on_problem=on_problem)
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)
        assert not output.exists()
    if case in FATAL:
        return
    done = correct(network, source, output, on_problem="raw")
    assert sentence in "".join(done.notes)
    assert done.problems
    raw, found = values(source), values(output)
    if case == "twice":  # the corrector itself; both copies alike
        assert abs(found - raw).max() > 0.1
        np.testing.assert_array_equal(found[2], found[3])
    else:
        assert "1 of 1 forecast replaced by a fallback: 1 by the raw ensemble" in "".join(done.notes)
        np.testing.assert_allclose(found, raw, rtol=0, atol=np.ptp(raw) * 2**-14)


def test_emos_is_the_fallback_where_it_has_seen_such_a_forecast(folder, command):
    """The other input is wrong, which EMOS does not read; a wrong target has the raw ensemble as its fallback."""
    options = ("on_problem=emos", "fallback=emos")

    def low(found):
        found[:, 1, 2, 3] = 0
        return found

    write(folder / "low", low)
    ended = run(command, folder, "low", *options)
    assert (ended.code, ended.stderr) == (4, "")
    assert "1 of 1 forecast replaced by a fallback: 1 by EMOS" in ended.stdout
    alone = command(folder, "correct", "corrector=emos", "input=good", "output=alone")
    assert (alone.code, alone.stderr) == (0, "")
    np.testing.assert_allclose(values(folder / "low.out"), values(folder / "alone"), rtol=0, atol=2e-3)
    write(folder / "five", members=5)
    ended = run(command, folder, "five", *options)
    assert ended.code == 4
    assert "1 by the raw ensemble" in ended.stdout
    assert "does not resemble the training of the fallback either" in ended.stdout


def test_forecasts_at_times_without_training_are_corrected_if_asked_and_counted(folder, command, tmp_path):
    """The values are those of the same corrector without the guard; other faults stay errors."""
    corrector = Corrector.load(folder / "network")
    corrector.envelope = None
    corrector.save(tmp_path / "network")
    write(tmp_path / "noon", time=1200)
    assert run(command, tmp_path, "noon").code == 0
    free = values(tmp_path / "noon.out")
    write(folder / "noon", time=1200)
    assert "train on such times, or set untrained_times=correct" in run(command, folder, "noon").stderr
    ended = run(command, folder, "noon", "untrained_times=correct")
    assert (ended.code, ended.stderr) == (0, "")
    sentence = untrained_sentence(
        "network", 1, 1, "it starts at 12 UTC, and the corrector was trained on starts at 00 UTC"
    )
    assert sentence in ended.stdout.splitlines()
    np.testing.assert_array_equal(values(folder / "noon.out"), free)
    record = read_sidecar(folder / "noon.out")
    assert record["options"]["untrained_times"] == "correct"
    assert sentence in record["warnings"]
    write(folder / "noon-celsius", celsius, time=1200)
    assert run(command, folder, "noon-celsius", "untrained_times=correct").code == 2
    ended = command(folder, "correct", "corrector=network", "input=noon", "output=noon.nc", "untrained_times=correct")
    assert ended.code == 0
    with xr.open_dataset(folder / "noon.nc") as found:
        assert found.deepweather_untrained_times == "1 of 1 forecasts of toy are at times without training"


def test_wrong_options_are_errors(folder, command):
    for options, sentence in (
        (("explain=maps",), "explain must be true or false"),
        (("untrained_times=maybe",), "untrained_times must be one of problem, correct, got"),
        (("on_problem=ignore",), "on_problem must be one of error, emos, raw, got 'ignore'"),
        (("on_problem=emos",), "on_problem=emos needs fallback=FILE"),
        (("fallback=emos",), "fallback belongs to on_problem=emos, got on_problem=error; remove fallback"),
        (("on_problem=emos", "fallback={other: emos}"), "fallback names other, which is no corrector of this run"),
        (("on_problem=emos", "fallback=good"), "good is GRIB, not a corrector"),
    ):
        ended = run(command, folder, "good", *options)
        assert ended.code == 2
        assert ended.stderr.startswith(f"error: {sentence}")


def test_a_forecast_like_those_of_the_training_is_corrected_without_a_note(folder):
    for members in (8, 10, 20):  # a few late members, or more than in training, do no harm
        source = write(folder / "fine", members=members)
        assert correct(Corrector.load(folder / "network"), source, folder / "fine.out").notes == []


def test_the_envelope_holds_extremes_of_the_ensemble_mean(folder):
    """By brute force over the whole archive; the file gives the same envelope."""
    envelope = Corrector.load(folder / "network").envelope
    means = np.array([Archive()[k].ensemble.double().mean(0).numpy() for k in range(len(Archive()))])
    for k, name in enumerate(MEANS):
        one = envelope.channels[name]
        np.testing.assert_allclose([one.low, one.high], [means[:, k].min(), means[:, k].max()], rtol=1e-6)
        area = np.average(means[:, k].mean(-1), axis=1, weights=GRID.weights)
        np.testing.assert_allclose(
            [min(m[3] for m in one.months.values()), max(m[4] for m in one.months.values())],
            [area.min(), area.max()], rtol=2e-6,
        )  # fmt: skip
        np.testing.assert_allclose(one.greatest_spread, 0.2 * SPREADS[name], rtol=0.15)
    assert (envelope.hours, envelope.members, envelope.months) == ((0,), (MEMBERS,), tuple(range(1, 13)))
    assert Envelope.from_json(envelope.to_json()) == envelope


@pytest.mark.parametrize("month", range(1, 13))
def test_a_season_is_the_month_and_its_two_neighbours(month):
    """Count, mean, standard deviation and extremes of all samples of the three months together."""
    random, absent = np.random.default_rng(month), (month + 5) % 12 + 1
    means = {m: random.normal(m, m, random.integers(1, 9)) for m in range(1, 13) if m != absent}
    rows = {m: (len(own), own.mean(), own.std(), own.min(), own.max()) for m, own in means.items()}
    near = np.concatenate([means[m] for m in ((month + 10) % 12 + 1, month, month % 12 + 1)])
    season = ChannelRange(0, 1, 0, 1, rows).season(month)
    np.testing.assert_allclose(season, (len(near), near.mean(), near.std(), near.min(), near.max()))
    assert ChannelRange(0, 1, 0, 1, {absent: (1, 0, 0, 0, 0)}).season(month) is None


FALLBACKS = {
    "targets": Task("other", ["2t", "msl"], ["msl"], [24]),
    "lead times": Task("other", ["2t"], ["2t"], [48]),
    "inputs": Task("other", ["2t", "10u"], ["2t"], [24]),
    "grid": Grid.regular(9, 15),
    None: Task("other", ["2t"], ["2t"], [24, 48]),
}


@pytest.mark.parametrize("other", FALLBACKS)
def test_a_fallback_corrects_every_forecast_of_the_corrector(other):
    given = FALLBACKS[other]
    task, grid = (given, GRID) if isinstance(given, Task) else (TASK, given)
    own, fallback = (
        TorchEngine(random_corrector(each, MLP, where), Domain.of(where), torch.device("cpu"), "one")
        for each, where in ((TASK, GRID), (task, grid))
    )
    guard = Guard("emos", fallback)
    if other is None:
        guard.check_fallback(own.description)
        return
    with pytest.raises(InputError, match=f"has other {other} than the corrector; train it on the same task and grid"):
        guard.check_fallback(own.description)


def test_a_month_outside_the_training_and_a_season_too_warm_are_problems(folder):
    envelope = Corrector.load(folder / "network").envelope
    summer = Envelope(envelope.channels, envelope.hours, (6, 7, 8), envelope.members)
    start, found = np.datetime64("2020-02-01T00", "s"), {}
    assert [p.sentence for p in summer.problems(found, start, 24, MEMBERS)] == [
        "it is valid in February, and the corrector was trained on June, July, August"
    ]
    one = envelope.channels["2t"]
    july = ChannelSummary(one.low, one.high, 276.0, 1.6)  # 4 K below the mean: as in July, not as in January
    assert not envelope.problems({"2t": july}, np.datetime64("2020-07-10", "s"), 24, MEMBERS)
    (problem,) = envelope.problems({"2t": july}, np.datetime64("2020-01-10", "s"), 24, MEMBERS)
    assert "at this time of the year" in problem.sentence


def test_a_committee_has_the_envelope_of_its_correctors(folder, tmp_path):
    corrector = Corrector.load(folder / "network")
    corrector.provenance["run"] = "other"
    corrector.envelope = Envelope(corrector.envelope.channels, (0, 12), (1, 2, 12), (MEMBERS,))
    corrector.save(tmp_path / "other")
    both = combine([folder / "network", tmp_path / "other"]).envelope
    assert (both.hours, both.months) == ((0,), (1, 2, 12))
    corrector.envelope = None
    corrector.save(tmp_path / "other")
    assert combine([folder / "network", tmp_path / "other"]).envelope is None
