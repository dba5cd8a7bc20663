"""The law of all methods, in `correct` and `evaluate`, on tiles and the globe; and each template by brute force."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from predictions import raw_forecast
from scipy.linalg import sqrtm
from scipy.stats import norm

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.protocols import WHOLE
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.distribution import Normal
from models.engines.torch_engine import TorchPrediction
from models.members.coupled_members import CellNames
from models.members.coupling import written_members
from models.members.members import change_of_ecc_q, corrected_members
from models.members.methods import METHODS, Situation, gca
from models.members.noise import noise_template
from models.members.options import CorrectionOptions, check_correlates
from models.members.past import Past
from models.parallel.domain import Domain
from models.provenance.noise import Noise

GRID, LEADS, M = Grid.regular(4, 6), (24, 48), 7
TASK = Task("two", ["10u", "10v"], ["10u", "10v"], LEADS)
START = np.datetime64("2016-01-03T00", "s")
RNG = np.random.default_rng(0)
MU, SIGMA = (
    torch.from_numpy(RNG.normal(size=(2, 2, *GRID.shape))),
    torch.from_numpy(RNG.uniform(1, 2, (2, 2, *GRID.shape))),
)


class Weather:
    """Random fields (start, lead, member, target, H, W), with correlated lead times; `Fields` of them."""

    grid, variables = GRID, TASK.targets

    def __init__(self, starts, leads, members, seed):
        self.init_times, self.lead_times, self.numbers = starts, leads, tuple(range(members))
        size = len(starts), len(leads), members, 2
        self.values = np.random.default_rng(seed).normal(size=(*size, *GRID.shape)).cumsum(1) + 50 * (members == 1)
        self.cells = np.arange(np.prod(size)).reshape(size)

    def read(self, wanted, out, window=WHOLE):
        flat = self.values.reshape(-1, *GRID.shape)
        out[...] = flat[wanted][..., window[0], :][..., window[1]]


DAYS = np.arange("2009-01-01", "2016-12-30", dtype="datetime64[D]").astype("datetime64[s]")
CURRENT = Weather(DAYS[DAYS == START], LEADS, M, 1)
PAST = Past(Weather(DAYS, (0,), 1, 2), LEADS, "the past", Weather(DAYS[::20], LEADS, 3, 3))


FIELDS = tuple((str(target), lead) for lead in LEADS for target in TASK.targets)
ERRORS = RNG.integers(-60, 60, (30, 4, *GRID.shape), np.int8)
NOISE = Noise(ERRORS, FIELDS, tuple(range(30)), 0.6, 0.5)


def forecast(lead, domain):
    raw = CURRENT.values[0, LEADS.index(lead)][..., domain.tile[0], :][..., domain.tile[1]]
    return raw_forecast(raw, lead, START)


def prediction(lead, domain):
    k = LEADS.index(lead)
    return TorchPrediction(Normal(domain.cut(MU[k : k + 1]), domain.cut(SIGMA[k : k + 1])))


def made(method, lead=24, domain=None, unchanged=None, **further):
    """Return the members that `correct` makes."""
    domain = domain or Domain.of(GRID)
    options = CorrectionOptions(members=method, **further)

    def corrected(make, of, *rest):
        predicted, raw = prediction(of, domain), forecast(of, domain)
        predicted.unchanged = unchanged
        return make(predicted, raw, TASK.targets, raw.mask, domain, options, *rest)

    return corrected(corrected_members, lead, PAST, CURRENT, lambda of: corrected(change_of_ecc_q, of), NOISE)


def batch():
    ensemble = torch.from_numpy(CURRENT.values[0])
    start = torch.tensor([int(START.astype(np.int64))] * 2)
    mask = torch.ones(2, 2, *GRID.shape, dtype=torch.bool)
    return Sample(
        ensemble, mask, torch.zeros(2, 0, *GRID.shape), torch.zeros(2, 2, *GRID.shape), start, torch.tensor(LEADS)
    )


def ranks(fields):
    return fields.argsort(0).argsort(0)


@pytest.mark.parametrize("method", METHODS)
def test_margins_tiles_kept_cells_and_evaluate(method):
    for lead in LEADS:
        members = made(method, lead)
        np.testing.assert_array_equal(members, made(method, lead))
        if METHODS[method].values == "levels":
            np.testing.assert_array_equal(np.sort(members, 0), made("quantiles", lead))
        for rank in range(4):
            domain = Domain.split(GRID, 2, 2, rank)
            np.testing.assert_array_equal(made(method, lead, domain), domain.cut(members))
        of_batch = written_members(
            Normal(MU, SIGMA), batch(), TASK, GRID, CorrectionOptions(members=method), PAST, CURRENT, NOISE
        )
        np.testing.assert_array_equal(of_batch.members[:, LEADS.index(lead)], members)
        kept = np.zeros((2, *GRID.shape), bool)
        kept[0, 1:3] = True
        found, raw = made(method, lead, unchanged=kept), CURRENT.values[0, LEADS.index(lead)]
        np.testing.assert_array_equal(found[:, kept], (np.sort(raw, 0) if method == "quantiles" else raw)[:, kept])
        np.testing.assert_array_equal(found[:, ~kept], members[:, ~kept])
    for count in (3, 20):
        if method != "member-by-member" or count < M:
            assert np.isfinite(made(method, member_count=count)).all()
            assert len(made(method, member_count=count)) == count


def test_ecc_q_is_the_published_definition():
    """The k-th lowest member gets the quantile at its level: `EMOS_sample[rank(ensemble)]` of Lerch et al. 2020."""
    raw = CURRENT.values[0, 0]
    for cell in np.ndindex(2, *GRID.shape):
        rank = [sum(other <= own for other in raw[:, *cell]) for own in raw[:, *cell]]
        mu, sigma = MU[0][cell].item(), SIGMA[0][cell].item()
        for levels, level in (("hazen", (np.array(rank) - 0.5) / M), ("weibull", np.array(rank) / (M + 1))):
            expected = norm(mu, sigma).ppf(level)
            np.testing.assert_allclose(
                made("ecc-q", quantile_levels=levels)[:, *cell], expected, rtol=1e-12, atol=1e-12
            )


def test_decc_is_the_published_definition():
    """In one cell: R of past errors with `np.corrcoef`, its root with `sqrtm`, raw + root · change, ECC."""
    starts = PAST.forecasts.init_times
    assert PAST._forecast.tolist() == starts.tolist()
    at = [np.searchsorted(DAYS, starts + np.timedelta64(lead, "h")) for lead in LEADS]
    change = np.stack([made("ecc-q", lead) - CURRENT.values[0, k] for k, lead in enumerate(LEADS)])
    for t, y, x in np.ndindex(2, *GRID.shape):
        errors = [
            PAST.analyses.values[at[k], 0, 0, t, y, x] - PAST.forecasts.values[:, k, :, t, y, x].mean(1) for k in (0, 1)
        ]
        root = sqrtm(np.corrcoef(errors)).real
        for k, lead in enumerate(LEADS):
            template = CURRENT.values[0, k, :, t, y, x] + root[k] @ change[:, :, t, y, x]
            np.testing.assert_array_equal(ranks(made("decc", lead)[:, t, y, x]), ranks(template))


def test_similar_starts_by_brute_force():
    season = PAST._in_season(START, PAST.forecasts.init_times)
    area, values = GRID.weights[:, None], PAST.forecasts.values
    places = [PAST.forecasts.init_times.tolist().index(one) for one in season.tolist()]
    distances = []
    for place in places:
        total = 0
        for k, t in np.ndindex(2, 2):
            own, other = CURRENT.values[0, k, :, t], values[place, k, :, t]
            scale = (np.sqrt(area) * values[places][:, k, :, t].mean(1).std(0)).mean()
            total += (area * (own.mean(0) - other.mean(0)) ** 2).sum() / scale**2
            total += (area * (own.std(0, ddof=1) - other.std(0, ddof=1)) ** 2).sum() / scale**2
        distances.append(total)
    expected = season[np.argsort(distances)[:M]]
    assert PAST.similar_starts(START, M, CURRENT).tolist() == expected.tolist()
    analyses = PAST.analyses.values[np.searchsorted(DAYS, expected + np.timedelta64(48, "h")), 0, 0]
    np.testing.assert_array_equal(ranks(made("simschaake", 48)), ranks(analyses))


def test_draws_of_gca_have_the_correlation_of_the_analyses():
    """2000 draws, in cells, targets and lead times together, against `np.corrcoef` of the analyses."""
    starts, draws = PAST.starts(START, M, 200), []
    weather = [PAST.analyses.values[np.searchsorted(DAYS, starts + np.timedelta64(lead, "h")), 0, 0] for lead in LEADS]
    for lead in LEADS:
        names = CellNames(0, int(START.astype(np.int64)), lead, Domain.of(GRID))
        draws.append(gca(Situation(forecast(lead, Domain.of(GRID)), names, 2000, PAST)))
    found, expected = (
        np.corrcoef(np.concatenate([one.reshape(len(one), -1) for one in both], 1).T) for both in (draws, weather)
    )
    assert abs(found - expected).max() < 5 / np.sqrt(2000)
    assert abs(expected[: expected.shape[0] // 2, expected.shape[0] // 2 :]).max() > 0.2  # something is there to find


@pytest.mark.parametrize("weight", [0.0, 0.6])
def test_draws_of_noise_have_the_correlation_of_the_errors(weight):
    """4000 draws in cells, targets and lead times together, against sums over errors and raw normal scores."""
    noise, start, domain = replace(NOISE, more=weight), int(START.astype(np.int64)), Domain.of(GRID)
    raw = {lead: CURRENT.values[0, LEADS.index(lead)] for lead in LEADS}
    draws = [noise_template(noise, raw[lead], TASK.targets, CellNames(0, start, lead, domain), 4000) for lead in LEADS]
    found = np.corrcoef(np.concatenate([one.reshape(4000, -1) for one in draws], 1).T)
    scores = norm.ppf((np.stack([ranks(raw[lead]) for lead in LEADS], 1).reshape(M, -1) + 0.5) / M)
    errors = ERRORS.reshape(30, -1) / 25
    expected = (1 - weight**2) * errors.T @ errors / 30 + weight**2 * scores.T @ scores / M
    deviation = np.sqrt(np.diag(expected))
    assert abs(found - expected / deviation / deviation[:, None]).max() < 5 / np.sqrt(4000)


def test_what_is_not_at_hand_is_refused_with_a_way_out():
    for name, method in METHODS.items():
        if method.reads:
            with pytest.raises(InputError, match=f"members={name} needs past analyses; give .* history=FILES"):
                CorrectionOptions(members=name).check(SimpleNamespace(task=TASK, noise=None, name="net"))
        elif method.fitted:
            with pytest.raises(InputError, match=f"members={name}: net has no noise.* run .* noise=true"):
                CorrectionOptions(members=name).check(SimpleNamespace(task=TASK, noise=None, name="net"))
        else:
            with pytest.raises(InputError, match=f"members={name} reads no past forecasts; remove reforecasts"):
                CorrectionOptions(members=name, reforecasts=("a",))
    short = Weather(CURRENT.init_times, LEADS[:1], M, 1)
    with pytest.raises(InputError, match=r"none at \+48 h; add them, or choose members=schaake"):
        PAST.similar_starts(START, M, short)
    with pytest.raises(
        InputError, match="members=decc correlates lead times, and one has a single one; set members=ecc-q"
    ):
        check_correlates("decc", Task("one", ["10u"], ["10u"], [24]))
    few = Past(PAST.analyses, LEADS, "the past", first_rows(PAST.forecasts, 10))
    with pytest.raises(InputError, match=r"needs 20 past forecasts .* got 10; add .* or choose members=ecc-q"):
        few.error_root(Domain.of(GRID))


def first_rows(fields, count):
    return SimpleNamespace(**{**vars(fields), "init_times": fields.init_times[:count], "cells": fields.cells[:count]})
