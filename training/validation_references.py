"""References of a validation beside the raw ensemble: climatology and EMOS, fitted on the training dates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.messages import say
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.protocols import DataSource
from data_pipeline.sample import Sample, select_channels
from data_pipeline.task import Task
from models.corrector import REFERENCES, Corrector, narrow, needed_task, reads_moments
from models.distribution import Distribution
from models.parallel.exchange import assemble
from models.parallel.mesh import Mesh
from models.protocol import claims
from models.reference_emos import SPEC, fit_emos
from training.run.trainer_options import TrainerOptions

WORSE = 1.001
"""Ratio of validation scores above which a model is called worse than a reference; rounding differs by less."""
SHOWN_LEADS = 10
"""Number of lead times up to which each has its own ratio in the message."""
NAMES = {"raw": "the raw ensemble", "climatology": "climatology", "emos": "EMOS"}


class ReferenceInUnits(nn.Module):
    """Forecasts of the corrector `reference` in the units of the model of `corrector`, from batches in these units.

    Both normalisers must take the same powers of the targets, unless the model gets physical values.
    """

    own_scale: Tensor
    own_location: Tensor
    reference_scale: Tensor
    reference_location: Tensor

    def __init__(self, reference: Corrector, corrector: Corrector) -> None:
        super().__init__()
        self._from, self._to, self.reference = corrector.task, reference.task, reference
        self._physical = claims(corrector.model).physical
        self._targets = list(reference.task.target_channels)
        for name, each in (("own", corrector), ("reference", reference)):
            location, scale = each.normalizer.target_scaling
            self.register_buffer(f"{name}_location", location.clone())
            self.register_buffer(f"{name}_scale", scale.clone())

    def forward(self, sample: Sample) -> Distribution:
        """Return the distribution (B, T, H, W)."""
        sample = narrow(sample, self._from, self._to)
        if self._physical:
            return self.reference(sample)
        ensemble, mask = sample.ensemble.clone(), select_channels(sample.mask, self._targets, 1)[:, None]
        members = select_channels(ensemble, self._targets, 2) * self.own_scale + self.own_location
        members = torch.where(mask, (members - self.reference_location) / self.reference_scale, 0)
        for target, channel in enumerate(self._targets):
            ensemble[:, :, channel] = members[:, :, target]
        forecast: Distribution = self.reference.model(sample._replace(ensemble=ensemble))
        shift = (self.reference_location - self.own_location) / self.own_scale
        return forecast.affine(shift, self.reference_scale / self.own_scale)


def fitted_references(
    source: DataSource, task: Task, dates: Dates, members: int | None, corrector: Corrector, options: TrainerOptions,
    mesh: Mesh,
) -> dict[str, ReferenceInUnits]:  # fmt: skip
    """Return climatology and EMOS, fitted on the training dates, in the units of `corrector`.

    A reference that cannot be fitted is left out, and so is one that is the corrector itself; a line says why. The fit
    of EMOS is the same as in `evaluate`, which later reads it from the cache.
    """
    domain = corrector.domain
    powers = None if claims(corrector.model).physical else corrector.normalizer.powers

    def fit_climatology() -> Corrector:
        spec = REFERENCES["climatology"] | ({} if powers is None or set(powers) == {1} else {"power": powers})
        own = needed_task(spec, task)
        rows, columns = domain.tile
        data = ForecastDataset(
            source, own, dates, members=members, moments=reads_moments(spec, own), rows=rows, columns=columns
        )
        reference = Corrector(own, domain, spec, assemble(data.static, domain), meanings=data.meanings)
        reference.fit(data, options.batch_size)
        return reference

    def fit_own_emos() -> Corrector:
        return fit_emos(source, task, dates, members, domain, mesh, options.emos_minutes, powers=powers).on(domain)

    fits: dict[str, Callable[[], Corrector]] = {"climatology": fit_climatology}
    fits |= {"emos": fit_own_emos} if options.emos_minutes else {}
    found = {}
    for name, fit in fits.items():
        if corrector.spec["_target_"] in (REFERENCES.get(name) or SPEC)["_target_"]:
            continue
        try:
            found[name] = ReferenceInUnits(fit(), corrector).eval()
        except InterruptedRunError:
            raise
        except InputError as error:
            # A mark for comparison never ends a run.
            say(f"the validation is not compared with {name}: {error}")
    return found


def compare_lead_times(by_lead: Mapping[str, Mapping[int, float]]) -> tuple[str, str]:
    """Return a line that compares the CRPS of a `model` with the best reference at each lead time, and a warning.

    `by_lead` has the CRPS by lead time (hours) of the `model` and of each reference. The warning names the lead times
    at which the model is worse than a reference; "" if there are none.

    >>> compare_lead_times({"model": {24: 0.8, 48: 0.9}, "raw": {24: 1.0, 48: 1.2}, "emos": {24: 1.0, 48: 0.75}})[0]
    'CRPS as a share of the best reference: 0.800 at 24 h (raw), 1.200 at 48 h (emos)'
    """
    references = {name: scores for name, scores in by_lead.items() if name != "model"}
    shares, worse = dict[int, str](), dict[str, list[int]]()
    ratios = {}
    for lead, own in by_lead["model"].items():
        known = {name: scores[lead] for name, scores in references.items() if lead in scores}
        best = min(known, key=lambda name: known[name])
        ratios[lead] = own / known[best] if known[best] else 1.0
        shares[lead] = f"{ratios[lead]:.3f} at {lead} h ({best})"
        for name, score in known.items():
            if own > WORSE * score:
                worse.setdefault(name, []).append(lead)
    leads: Sequence[int] = list(shares)
    joint = ", "
    if len(leads) > SHOWN_LEADS:
        leads, joint = [min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)], " to "
    line = f"CRPS as a share of the best reference: {joint.join(shares[lead] for lead in leads)}"
    if not worse:
        return line, ""
    named = " and ".join(f"than {NAMES[name]} at {', '.join(map(str, leads))} h" for name, leads in worse.items())
    return line, (
        f"the model is worse {named} on the validation dates; give it more training cases, or fewer coefficients"
    )
