"""Variables know their law: options that are missing or null follow from the targets, and a file keeps them."""

import pytest
import torch

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.task import Task, Variable
from data_pipeline.variables import parameters
from data_pipeline.variables.parameters import PARAMETERS, Law
from models.corrector import Corrector, needed_task
from models.distribution import FAMILIES, Normal, PowerTransformed
from models.laws import describe_laws, is_bounded, with_laws
from models.normalizer import SMALLEST_POWER

GRID = Grid.regular(5, 6)
BOTH = Task("both", ["2t", "tp"], ["2t", "tp"], [24, 48])
EMOS = {"_target_": "models.statistical.emos.EMOS", "shared": False}
SPECS = {
    "emos": EMOS,
    "monthly emos": EMOS | {"window_days": 90, "seasonal": False},
    "boosted_emos": {"_target_": "models.statistical.boosted_emos.BoostedEMOS", "max_steps": 5, "folds": 2},
    "mlp": {"_target_": "models.networks.mlp.MLP", "width": 8},
    "mlp from emos": {"_target_": "models.networks.mlp.MLP", "width": 8, "baseline": {"shared": True}},
}


def fitted(spec, task, data):
    torch.manual_seed(0)
    corrector = Corrector(task, GRID, spec, data.static)
    corrector.fit(data)
    return corrector.eval()


def only(batch, target):
    """The batch of a task with one of the inputs and targets of `BOTH`."""
    one = slice(target, target + 1)
    return batch._replace(ensemble=batch.ensemble[:, :, one], mask=batch.mask[:, one], target=batch.target[:, one])


class OneTarget(torch.utils.data.Dataset):
    """Samples of a task with one of the inputs and targets of `BOTH`."""

    def __init__(self, data, target):
        self.data, self.target, self.static = data, target, data.static

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        sample, one = self.data[index], slice(self.target, self.target + 1)
        return sample._replace(ensemble=sample.ensemble[:, one], mask=sample.mask[one], target=sample.target[one])


def test_every_variable_has_a_family_that_exists_and_its_bound():
    for name, known in PARAMETERS.items():
        assert known.law.family in FAMILIES, name
        assert SMALLEST_POWER <= known.law.power <= 1, name
        needs_bound = is_bounded(known.law.family) or known.law.power < 1
        assert not needs_bound or known.bounds[0] == 0, name
        # A temperature is never near its bound; all other variables with one have a family with one.
        assert is_bounded(known.law.family) == Variable(name).near_bound, name


def test_options_follow_from_the_targets():
    def found(name, *targets, **options):
        task = Task("x", list(targets), list(targets), [24])
        spec = with_laws(SPECS[name] | options, task)
        assert with_laws(spec, task) == spec
        return {key: spec[key] for key in ("family", "head", "power", "lower", "scale") if key in spec}

    rain = {"family": "censored_logistic", "power": 0.5, "lower": 0.0, "scale": "log"}
    normal = {"family": "normal", "power": 1.0, "lower": None, "scale": "quadratic"}
    assert found("emos", "tp:24h") == found("emos", "sf") == rain
    assert found("emos", "2t", "t@850") == found("emos", "unknown") == normal
    assert found("emos", "10si") == {"family": "censored_normal", "power": 1.0, "lower": 0.0, "scale": "quadratic"}
    assert found("emos", "2t", "tp") == {name: [normal[name], rain[name]] for name in rain}
    assert found("boosted_emos", "tp") == {name: value for name, value in rain.items() if name != "scale"}
    assert found("mlp", "tp", head=None) == {"head": "censored_logistic", "power": 0.5}
    assert found("mlp", "tp", head="bernstein", power=1) == {"head": "bernstein", "power": 1}
    assert found("emos", "tp", family="normal", power=None) == normal | {"power": 0.5, "scale": "log"}
    assert with_laws(SPECS["mlp from emos"], BOTH)["baseline"]["family"] == ["normal", "censored_logistic"]
    raw = {"_target_": "models.statistical.raw.Raw"}
    assert with_laws(raw, BOTH) == raw
    assert describe_laws(with_laws(EMOS, BOTH), BOTH) == "2t: normal; tp: censored_logistic of the power 0.5"
    with pytest.raises(InputError, match=r"model\.power must be one value, or a list for the 2 targets, got \[0\.5\]"):
        with_laws(EMOS | {"power": [0.5]}, BOTH)


def test_a_bounded_family_needs_the_bound_of_a_variable_without_one():
    for family in ("censored_normal", "truncated_normal", "censored_shifted_gamma"):
        task = Task("x", ["msl"], ["msl"], [24])
        with pytest.raises(InputError, match=rf"family={family} needs lower, the lower bound of the target"):
            Corrector(task, GRID, EMOS | {"family": family}, torch.zeros(3, *GRID.shape))


@pytest.mark.parametrize("name", ["emos", "monthly emos"])
def test_targets_of_different_laws_are_corrected_as_if_they_were_alone(name, toy):
    data = toy(BOTH, GRID, 160)
    batch = next(batches(data, 6))
    found = fitted(SPECS[name], BOTH, data)(batch)
    for target, variable in enumerate(BOTH.targets):
        alone = Task("alone", [variable], [variable], BOTH.lead_times)
        expected = fitted(SPECS[name], alone, OneTarget(data, target))(only(batch, target))
        for number in ("mean", "std"):
            torch.testing.assert_close(getattr(found, number)[:, [target]], getattr(expected, number))
    assert isinstance(found.of_target(0), Normal)
    assert isinstance(found.of_target(1), PowerTransformed)
    assert found.crps(batch.target)[batch.target.isfinite()].isfinite().all()


@pytest.mark.parametrize("name", SPECS)
def test_files_keep_their_laws_when_the_table_changes(name, toy, tmp_path, monkeypatch):
    data = toy(BOTH, GRID, 40)
    corrector, batch = fitted(SPECS[name], needed_task(SPECS[name], BOTH), data), next(batches(data, 4))
    corrector.save(tmp_path / "one.safetensors")
    monkeypatch.setitem(parameters.PARAMETERS, "tp", PARAMETERS["tp"]._replace(law=Law()))
    monkeypatch.setitem(parameters.PARAMETERS, "2t", PARAMETERS["2t"]._replace(law=Law("logistic")))
    again = Corrector.load(tmp_path / "one.safetensors")
    assert torch.equal(again(batch).mean, corrector(batch).mean)
    assert torch.equal(again(batch).std, corrector(batch).std)
