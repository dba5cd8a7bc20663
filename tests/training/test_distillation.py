"""`train teacher=CORRECTOR`: the loss against the forecasts of a trained corrector, mixed with that of the truth."""

import copy
from dataclasses import replace

import pytest
import torch
from grib_parts import OPTIONS, write_archive
from ranks import run_on_ranks
from training_parts import GRID, NET, TASK, Tile

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import batches
from data_pipeline.dates import Dates
from data_pipeline.grid import Grid
from data_pipeline.task import Variable
from evaluation.forecasters.leak_audit import check_leaks
from models.corrector import Corrector
from models.parallel.mesh import Mesh, arrange_mesh
from models.provenance.training_dates import stated_fits
from training.optimization.loss import CRPS, EnergyScore, ThresholdWeightedCRPS
from training.optimization.teacher import Teacher
from training.step.correction_module import CorrectionModule

SPEC = NET | {"dropout": 0.0}
DATES = {"train_dates": [["1990-01-01", "1991-12-31"]], "val_dates": [["1992-01-01", "1992-12-31"]], "run": "old"}


def fitted(toy, spec=SPEC, seed=0, domain=GRID, std=0.1):
    """A fitted network with random weights; its forecasts differ from the raw ensemble by about a spread."""
    data = toy(TASK, GRID, 12)
    made = Corrector(TASK, GRID, spec, data.static, dict(DATES))
    made.fit(data)
    torch.manual_seed(seed)
    for parameter in made.model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    # Tiles lack the tables of cross-fitting, which only a fit on tiles makes: all modes use the whole fit.
    return made.eval().on(domain).double()


def module_of(toy, tmp_path, weight, loss=None, mesh=None, spec=SPEC, teacher_spec=SPEC):
    """A module in float64 whose teacher is another network, and a batch with missing truth."""
    mesh = mesh or Mesh.single()
    domain = mesh.domain(GRID)
    file = tmp_path / f"teacher{mesh.rank}"
    fitted(toy, teacher_spec, seed=1).float().save(file)
    teacher = Teacher(str(file), TASK, loss or CRPS(), weight)
    teacher.place(domain)
    teacher._corrector.double()
    batch = next(batches(Tile(toy, domain, 4, torch.float64), 4))
    student = CorrectionModule(fitted(toy, spec, domain=domain), loss=loss, mesh=mesh, teacher=teacher).double()
    return student, teacher, batch


def expected_crps(mu, sigma, m, s):
    """E CRPS(N(mu, sigma), Y) for Y of N(m, s), in closed form: E|X - Y| - E|X - X'| / 2."""

    def mean_distance(shift, spread):
        z = shift / spread
        normal = torch.distributions.Normal(torch.zeros_like(z), 1.0)
        return spread * (2 * normal.log_prob(z).exp() + z * (2 * normal.cdf(z) - 1))

    return mean_distance(mu - m, (sigma**2 + s**2).sqrt()) - sigma / torch.pi**0.5


# The loss.


def test_the_loss_is_the_expected_one_under_the_teachers_distribution(toy, tmp_path):
    """Both normal: the closed form of the expected CRPS and its gradient, over cells with truth."""
    student, teacher, batch = module_of(toy, tmp_path, 1.0)
    value, weight = student.training_loss(batch)
    sample = student._normalised(batch)
    ours, theirs = student.corrector.model(sample), teacher._corrector(batch)
    location, scale = student.corrector.normalizer.target_scaling
    expected = expected_crps(ours.mu, ours.sigma, (theirs.mu - location) / scale, theirs.sigma / scale)
    known = sample.target.isfinite() * student.area
    reference = (expected * known).sum()
    # Seven quantiles lack the tails, whose part of the loss hardly depends on the student: gradients are closer.
    torch.testing.assert_close(value, reference, rtol=0.02, atol=0)
    weights = list(student.corrector.model.parameters())
    found, wanted = (
        torch.cat([g.flatten() for g in torch.autograd.grad(each, weights, retain_graph=True)])
        for each in (value, reference)
    )
    assert (found - wanted).norm() < 0.005 * wanted.norm()
    torch.testing.assert_close(weight, known.sum(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss", [CRPS(), ThresholdWeightedCRPS(threshold=280.0)], ids=["crps", "threshold"])
def test_the_weight_mixes_both_losses(loss, toy, tmp_path):
    values = {}
    for weight in (0.0, 0.25, 1.0):
        student, _, batch = module_of(toy, tmp_path, weight, loss)
        values[weight] = student.training_loss(batch)[0]
    torch.testing.assert_close(values[0.0], student.weighted_loss(loss, batch)[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(values[0.25], 0.75 * values[0.0] + 0.25 * values[1.0], rtol=1e-12, atol=0)
    other = batch._replace(target=batch.target + 7.0)
    torch.testing.assert_close(student.training_loss(other)[0], values[1.0], rtol=1e-12, atol=0)


def test_the_teacher_is_no_part_of_the_module_and_without_its_forecast_the_truth_counts_alone(toy, tmp_path):
    student, teacher, batch = module_of(toy, tmp_path, 0.5)
    assert copy.deepcopy(student)._teacher is teacher
    names = {name for name, _ in student.named_parameters()}
    assert names == {f"corrector.model.{name}" for name, _ in student.corrector.model.named_parameters()}
    student.training_loss(batch)[0].backward()
    assert all(parameter.grad is None for parameter in teacher._corrector.parameters())
    before, own = student.training_loss(batch)[0], student.weighted_loss(CRPS(), batch)[0]
    quantiles = teacher.quantiles(batch)
    teacher.quantiles = lambda _: torch.full_like(quantiles, torch.nan)
    torch.testing.assert_close(student.training_loss(batch)[0], own, rtol=1e-12, atol=0)
    assert abs(before - own) > 1e-3 * own


def losses_on_rank(rank, shape, toy, folder):
    """Loss and gradients of a step on a mesh, the gradients summed over its ranks as the strategy does."""
    mesh = arrange_mesh(*shape)
    student, _, batch = module_of(toy, folder, 0.5, mesh=mesh)
    step = student.training_step(batch, 0)
    step["loss"].backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in student.corrector.model.parameters()])
    return (mesh.sum(step["loss"].detach().double()) / mesh.ranks).item(), (mesh.sum(gradients) / mesh.ranks).numpy()


def test_tiles_and_micro_batches_have_the_loss_of_the_globe(toy, tmp_path):
    student, _, batch = module_of(toy, tmp_path, 0.5)
    found = []
    for size in (None, 1):
        student.micro_batch = size
        student.zero_grad()
        step = student.training_step(batch, 0)
        step["loss"].backward()
        found.append(torch.cat([parameter.grad.flatten() for parameter in student.parameters()]))
    gradients, parts = found
    torch.testing.assert_close(parts, gradients, rtol=1e-9, atol=1e-12)
    for loss, found in run_on_ranks(2, losses_on_rank, (1, 2, 1), toy, tmp_path):
        assert loss == pytest.approx(step["loss"].item(), rel=1e-9)
        torch.testing.assert_close(torch.from_numpy(found), gradients, rtol=1e-8, atol=1e-12)


# What is refused.


def test_other_tasks_grids_losses_and_weights_are_refused(toy, tmp_path):
    fitted(toy).float().save(path := tmp_path / "teacher")
    for changes, loss, weight, sentence in (
        ({"inputs": TASK.targets}, CRPS(), 0.5, "this run has no msl among its inputs"),
        ({"lead_times": (24, 48)}, CRPS(), 0.5, "the teacher has no 24 among its lead times"),
        ({"targets": (Variable.parse("msl"),)}, CRPS(), 0.5, "predicts 2t; give task.targets the same"),
        ({}, EnergyScore(), 0.5, "loss EnergyScore scores all targets of a cell together"),
        ({}, CRPS(), 2, "teacher_weight must be a number from 0 to 1, got 2"),
    ):
        with pytest.raises(InputError, match=sentence):
            Teacher(str(path), replace(TASK, **changes), loss, weight)
    with pytest.raises(InputError, match="choose a teacher on the grid of the data"):
        Teacher(str(path), TASK, CRPS()).place(Mesh.single().domain(Grid.regular(9, 14)))


# By the command.

TRAIN = ("train", *OPTIONS, "path=.", "model=mlp", "model.width=4", "trainer.epochs=1", "trainer.emos_minutes=0")


def test_a_committee_teaches_one_network(tmp_path, command, monkeypatch):
    write_archive(tmp_path)
    files = [f"runs/{seed}/corrector.safetensors" for seed in (0, 1)]
    for seed in (0, 1):
        assert command(tmp_path, *TRAIN, f"trainer.seed={seed}", f"run_dir=runs/{seed}").code == 0
    assert command(tmp_path, "combine", f"correctors=[{','.join(files)}]", "output=both.safetensors").code == 0
    members, quantiles = set(), Teacher.quantiles
    monkeypatch.setattr(
        Teacher, "quantiles", lambda t, batch: members.add(batch.ensemble.shape[1]) or quantiles(t, batch)
    )
    ended = command(tmp_path, *TRAIN, "teacher=both.safetensors", "teacher_weight=0.75", "run_dir=runs/pupil")
    assert ended.code == 0, ended.stderr
    assert "teacher: both.safetensors, a Committee, has a share of 0.75 in the loss" in ended.stdout
    assert "warning" not in ended.stdout
    assert members == {4}, "a committee reads all members, although the MLP that learns from it needs two"
    made = Corrector.load(tmp_path / "runs/pupil/corrector.safetensors")
    assert made.provenance["teacher"]["weight"] == 0.75
    assert stated_fits(made.provenance)["distillation"].years == (2000, 2001, 2002)
    with pytest.raises(InputError, match="a date of the scored split"):
        check_leaks(made, tmp_path, Dates.of_years([2000]))
    plain = Corrector.load(tmp_path / files[0])
    different = [n for n, p in made.model.named_parameters() if not torch.equal(p, plain.model.get_parameter(n))]
    assert different
    for options, sentence in (
        (["~teacher", "+teacher=null", "teacher_weight=0.5"], "teacher_weight=0.5 needs a teacher"),
        (["model=emos"], "is fitted in closed form, with its own score; leave out teacher"),
    ):
        given = [each for each in TRAIN if not (options[0] == "model=emos" and each.startswith(("model", "trainer")))]
        ended = command(tmp_path, *given, "teacher=both.safetensors", "run_dir=runs/refused", *options)
        assert ended.code == 2
        assert sentence in ended.stderr
