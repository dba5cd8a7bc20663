"""The contract of every model, tested on all models of conf/model and on the models of another package."""

import copy
import functools

import pytest
import torch
from specs import EXTERNAL, QUICK, VARIANTS, quick_auto

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from data_pipeline.grid import Grid
from data_pipeline.grids.points import Points
from data_pipeline.sample import Sample
from data_pipeline.samples.pseudo_members import pseudo_members
from data_pipeline.task import Task
from models.construct import model_class
from models.corrector import Corrector, build_model, needed_task, reads_moments
from models.distribution import Ensemble
from models.laws import with_laws
from models.layers.gate import SphereGate
from models.layers.mixture import SpatialMixture
from models.layers.norms import BatchNorm2d
from models.outline import outline
from models.parallel.domain import Domain
from models.protocol import claims

TASK = Task("toy", ["sst", "2t", "msl"], ["2t"], [24, 48], ["lsm"])
GRID = Grid.regular(13, 16)
SPECS = QUICK | EXTERNAL | VARIANTS
NETWORKS = [name for name, spec in SPECS.items() if [*build_model(spec, needed_task(spec, TASK), GRID).parameters()]]

ANY_GROUPS = [name for name, spec in SPECS.items() if claims(model_class(spec["_target_"])).any_groups]


def test_a_task_with_other_lead_times_and_the_analysis(name, toy):
    """Each other lead time, and the analysis, is one more channel of every model."""
    further = {"other_leads": ("2t-24h", "10u+0h"), "analysis": ("2t",)}
    task = needed_task(SPECS[name], Task(**TASK.to_json() | further))
    data = toy(task, GRID, 24)
    assert data.samples[0].ensemble.shape[1] == (1 if task == needed_task(SPECS[name], TASK) else 6)
    torch.manual_seed(1)
    model = Corrector(task, GRID, SPECS[name], data.static)
    model.fit(data)
    with torch.no_grad():
        found = numbers(model.eval()(next(batches(data, 2))))
    assert found.shape == (2, 2, 1, *GRID.shape)
    assert torch.isfinite(found).all()


def claimed(name):
    """Return the claims of a model after its construction."""
    return claims(build_model(SPECS[name], needed_task(SPECS[name], TASK), GRID))


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with quick_auto():
        yield


@pytest.fixture(params=SPECS)
def name(request):
    return request.param


@functools.cache
def fit_corrector(name, toy, grid, count, task=TASK):
    """A corrector fitted to `count` samples."""
    torch.manual_seed(1)
    task = needed_task(SPECS[name], task)
    data = toy(task, grid, count)
    made = Corrector(task, grid, SPECS[name], data.static)
    made.fit(data)
    return made.eval()


def corrector(name, toy, grid=GRID, count=80, awake=True, task=TASK):
    """A fitted corrector; with `awake`, weights that start at zero are random, so that every layer has an effect."""
    made = copy.deepcopy(fit_corrector(name, toy, grid, count, task))
    if awake:
        torch.manual_seed(1)
        randomize_zero_weights(made.model)
    return made.bind(task)


def randomize_zero_weights(model):
    """Replace weights of zero by random numbers."""
    for name, parameter in model.named_parameters():
        if name.endswith("weight"):
            with torch.no_grad():
                parameter.copy_(torch.where(parameter == 0, 0.3 * torch.randn_like(parameter), parameter))


def batch(toy, grid=GRID, members=5):
    return next(batches(toy(TASK, grid, 4, members, seed=7), 4))


def numbers(distribution):
    return torch.stack([distribution.mean, distribution.std])


def test_any_number_of_members_in_any_order(name, toy):
    sample, members = batch(toy, members=7), 7
    with torch.no_grad():
        model = corrector(name, toy)
        assert torch.isfinite(numbers(model(batch(toy, members=2)))).all()
        found = numbers(model(sample))
        assert found.shape == (2, 4, 1, *GRID.shape)
        assert torch.isfinite(found).all()
        others = sample._replace(ensemble=sample.ensemble[:, [0, *range(members - 1, 0, -1)]])
        torch.testing.assert_close(numbers(model(others)), found, rtol=1e-4, atol=1e-4)
        all_of_them = numbers(model(sample._replace(ensemble=sample.ensemble.flip(1))))
        assert torch.allclose(all_of_them, found, rtol=1e-4, atol=1e-4) == (not claimed(name).first_member)


def test_networks_of_members_know_to_which_group_each_of_them_belongs(name, toy):
    """Their forecast is another one if other members count as the control; other models do not read who it is."""
    task = needed_task(SPECS[name], Task(**TASK.to_json(), groups={"control": 0, "perturbed": 1}))
    named = [k for k, channel in enumerate(task.channels) if str(channel) == "in_group(2t, 0, 0)"]
    assert len(named) == claims(model_class(SPECS[name]["_target_"])).reads_memberships
    for k in named:
        made, sample = corrector(name, toy, GRID, 24, task=task), next(batches(toy(task, GRID, 4), 4))
        others = sample.ensemble.clone()
        others[:, :, k] = others[:, :, k].roll(1, 1)
        with torch.no_grad():
            found, other = (numbers(made(each)) for each in (sample, sample._replace(ensemble=others)))
        assert not torch.allclose(found, other, rtol=1e-3)


@pytest.mark.parametrize("name", ANY_GROUPS, indirect=True)
def test_a_group_may_be_missing_if_claimed(name, toy):
    """The forecast is made from the members of the other group, which makes another forecast."""
    task = needed_task(SPECS[name], Task(**TASK.to_json(), groups={"first": 0, "second": 3}))
    made, sample = corrector(name, toy, GRID, 24, task=task), next(batches(toy(task, GRID, 4), 4))
    second = [k for k, channel in enumerate(task.channels) if str(channel).endswith("(2t, 3)")]
    mask = sample.mask.clone()
    mask[:, second] = False
    lacking = sample._replace(ensemble=sample.ensemble[:, :3], mask=mask)
    with torch.no_grad():
        found, whole = numbers(made(lacking)), numbers(made(sample))
    assert torch.isfinite(found).all()
    assert not torch.allclose(found, whole, rtol=1e-3) or name == "climatology"


GRIDS = [Grid.regular(8, 14), Grid((4, 3, 2, 1, 0), (0, 1, 2, 3, 4))]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_any_grid_works_if_claimed_and_is_refused_by_name_if_not(name, toy, grid):
    allowed = () if claimed(name).any_grid else InputError
    try:
        made = corrector(name, toy, grid, 24)
    except allowed as refused:
        sentence = str(refused)
    else:
        with torch.no_grad():
            assert numbers(made(batch(toy, grid))).shape[-2:] == grid.shape
        return
    assert str(grid) in sentence


def test_values_behind_the_mask_do_not_matter(name, toy):
    sample = batch(toy)
    mask = sample.mask.clone()
    mask[:, 0, :4, :7] = False
    land = ~mask[:, None].expand_as(sample.ensemble)
    with torch.no_grad():
        model = corrector(name, toy)
        found = numbers(model(sample._replace(mask=mask, ensemble=sample.ensemble.masked_fill(land, torch.nan))))
        other = numbers(model(sample._replace(mask=mask, ensemble=sample.ensemble.masked_fill(land, 1e9))))
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, other)


def test_a_cell_has_an_effect_on_others_unless_the_model_claims_cellwise(name, toy):
    sample, (row, column) = batch(toy), (6, 7)
    changed = sample.ensemble.clone()
    changed[..., row, column] = changed[..., row, column].flip(1) + 3
    with torch.no_grad():
        model = corrector(name, toy)
        found, expected = numbers(model(sample._replace(ensemble=changed))), numbers(model(sample))
    others = torch.ones(GRID.shape, dtype=torch.bool)
    others[row, column] = False
    # Climatology reads no forecast; every other model reads that of its cell.
    assert torch.equal(found[..., ~others], expected[..., ~others]) == (name == "climatology")
    assert torch.equal(found[..., others], expected[..., others]) == claimed(name).cellwise


def test_points_work_if_the_model_claims_cellwise_and_are_refused_by_name_if_not(name, toy):
    points = Points((47.3, 52.5, 48.6), (11.4, 9.7, 10.5), ids=("11120", "10338", "Dillingen"))
    if not claimed(name).cellwise:
        kind = type(build_model(SPECS[name], needed_task(SPECS[name], TASK), GRID)).__name__
        with pytest.raises(InputError, match=rf"model {kind} needs neighbouring cells .*3 stations.*model=emos"):
            build_model(SPECS[name], needed_task(SPECS[name], TASK), points)
        return
    with torch.no_grad():
        found = numbers(corrector(name, toy, points)(batch(toy, points)))
    assert found.shape == (2, 4, 1, 3, 1)
    assert torch.isfinite(found).all()


def with_two_pseudo_members(batch):
    """The same batch with two pseudo-members instead of all members."""
    pairs = [torch.from_numpy(pseudo_members(ensemble.numpy())) for ensemble in batch.ensemble]
    return batch._replace(ensemble=torch.stack(pairs))


def test_two_pseudo_members_suffice_only_for_models_that_claim_it(name, toy):
    sample = batch(toy, members=6)
    with torch.no_grad():
        model = corrector(name, toy)
        found, expected = (
            model(each).quantile(torch.tensor([0.02, 0.3, 0.9])) for each in (with_two_pseudo_members(sample), sample)
        )
    # The model `auto` needs the members to score the raw ensemble, and for forecasts where it is the raw ensemble.
    assert torch.allclose(found, expected, rtol=0, atol=1e-3) == (reads_moments(SPECS[name], TASK) or name == "auto")


def test_a_member_is_corrected_without_the_others_if_the_model_claims_any_size(name, toy):
    """The first two of six corrected members are equal to the corrected members of an ensemble of these two."""
    sample = batch(toy, members=6)
    # With a realistic spread, the effect of one member on another is far larger than rounding errors.
    mean = sample.ensemble.mean(1, keepdim=True)
    sample = sample._replace(ensemble=mean + 20 * (sample.ensemble - mean))
    with torch.no_grad():
        model = corrector(name, toy)
        six, two = model(sample), model(sample._replace(ensemble=sample.ensemble[:, :2]))
    if isinstance(six, Ensemble):
        found, expected = two.members, six.members[:2]
    else:
        found, expected = numbers(two), numbers(six)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-3) == claimed(name).any_size


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if needed_task(spec, TASK) != TASK])
def test_other_inputs_have_no_effect_if_the_model_claims_to_read_targets_only(name, toy):
    data, sample = toy(TASK, GRID, 80), batch(toy)
    others = [channel for channel in range(len(TASK.inputs)) if channel not in TASK.target_channels]
    changed = sample.ensemble.clone()
    changed[:, :, others] = 250 + 60 * torch.rand_like(changed[:, :, others])
    made = Corrector(TASK, GRID, SPECS[name], data.static)
    made.fit(data)
    with torch.no_grad():
        found, expected = (numbers(made.eval()(each)) for each in (sample._replace(ensemble=changed), sample))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_model_without_the_claim_refuses_tiles(name):
    task, domain = needed_task(SPECS[name], TASK), Domain.split(GRID, 1, 2)
    if claimed(name).tiles:
        build_model(SPECS[name], task, domain)
    else:
        with pytest.raises(InputError, match=r"works on whole fields .* and the mesh has 1 x 2 tiles; .*mesh=\[2,1\]"):
            build_model(SPECS[name], task, domain)


@pytest.mark.parametrize("name", ["climatology", "emos"])
def test_a_fit_to_moments_equals_a_fit_to_members(name, toy):
    task, sample = TASK.only_targets(), batch(toy)
    data = toy(task, GRID, 80)
    found = []
    for samples in (data.samples, [Sample(*(t[0] for t in with_two_pseudo_members(b))) for b in batches(data, 1)]):
        data.samples = samples
        made = Corrector(task, GRID, SPECS[name], data.static)
        made.fit(data, 80)
        with torch.no_grad():
            found.append(numbers(made.eval().bind(TASK)(sample)))
    assert len(data.samples[0].ensemble) == 2
    torch.testing.assert_close(*found, rtol=0, atol=1e-2)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_finite_differences(name, toy):
    """Gradients of the CRPS in float64, along one random direction of all weights."""
    model = build_model(SPECS[name], TASK, GRID).double().eval()
    for layer in model.modules():
        if isinstance(layer, BatchNorm2d):
            layer.train()  # removes the biases before this layer, whose gradients are then zero
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    sample = Sample(*(t.double() if t.is_floating_point() else t for t in batch(toy)))
    sample = sample._replace(ensemble=(sample.ensemble - 280) / 10, target=(sample.target - 280) / 10)
    # A gate that chooses experts has no derivative; its learning rule is tested with the layer.
    gates = [gate for layer in model.modules() if isinstance(layer, SpatialMixture) for gate in layer.gate.parameters()]
    weights = [weight for weight in model.parameters() if not any(weight is gate for gate in gates)]
    start, direction = [w.detach().clone() for w in weights], [torch.randn_like(w) for w in weights]

    def score(step):
        with torch.no_grad():
            for weight, one, way in zip(weights, start, direction, strict=True):
                weight.copy_(one + step * way)
        return model(sample).crps(sample.target).mean()

    slopes = torch.autograd.grad(score(0.0), weights)
    expected = sum((slope * way).sum() for slope, way in zip(slopes, direction, strict=True))
    h = 1e-8  # so small that hardly any ReLU changes sign
    with torch.no_grad():
        found = (score(h) - score(-h)) / (2 * h)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in EXTERNAL])
def test_a_rotated_globe_has_a_rotated_forecast(name, toy):
    """A third of a turn is 12 columns: whole patches of 3 columns also at a quarter of the resolution."""
    grid, turn = Grid.regular(13, 36), 12
    model = build_model(SPECS[name], TASK, grid).eval()
    randomize_zero_weights(model)
    sample = batch(toy, grid)
    sample = sample._replace(ensemble=(sample.ensemble - 280) / 10)
    turned = Sample(*(t.roll(turn, -1) if t.ndim > 2 else t for t in sample))
    with torch.no_grad():
        expected = numbers(model(sample)).roll(turn, -1)
        # Parameters of cells turn with the cells.
        for tensor in model.state_dict().values():
            if tensor.shape[-2:] == grid.shape:
                tensor.copy_(tensor.roll(turn, -1))
        for layer in model.modules():
            if isinstance(layer, SphereGate):
                layer._waves = layer._waves.roll(turn, -1)
        found = numbers(model(turned))
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_untrained_network_forecasts_the_raw_gaussian_ensemble(name, toy):
    """With too few cases for the error climate (`models.networks.baseline.CASES_OF_CLIMATE`)."""
    sample = batch(toy)
    with torch.no_grad():
        found = corrector(name, toy, count=9, awake=False)(sample)
    torch.testing.assert_close(found.mean, sample.ensemble[:, :, [1]].mean(1), rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(found.std, sample.ensemble[:, :, [1]].std(1), rtol=1e-3, atol=1e-3)


def test_sizes_of_a_model_are_known_before_memory_is_allocated(name):
    task = needed_task(SPECS[name], TASK)
    random = torch.get_rng_state()
    drawn = outline(lambda: build_model(SPECS[name], task, GRID))
    assert torch.equal(torch.get_rng_state(), random), "the outline must not draw random numbers"
    sizes = {key: (tensor.device.type, tensor.shape) for key, tensor in drawn.state_dict().items()}
    made = build_model(SPECS[name], task, GRID).state_dict()
    assert sizes == {key: ("meta", tensor.shape) for key, tensor in made.items()}


def test_a_corrector_survives_its_file(name, toy, tmp_path):
    made = copy.deepcopy(fit_corrector(name, toy, GRID, 80))
    made.provenance = {"members": 5}
    made.save(tmp_path / "corrector.safetensors")
    loaded = Corrector.load(tmp_path / "corrector.safetensors")
    task = needed_task(SPECS[name], TASK)
    assert (loaded.task, loaded.grid, loaded.provenance) == (task, GRID, made.provenance)
    assert loaded.spec == made.spec == with_laws(SPECS[name], task)
    with torch.no_grad():
        found, expected = (numbers(one.bind(TASK)(batch(toy))) for one in (loaded, made))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
