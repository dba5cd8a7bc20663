"""The twin atmosphere: initialisation, integration and perturbation of states.

`Atmosphere(NATURE)` generates the truth, `Atmosphere(FORECAST)` is the forecast model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from data_pipeline.synthetic.twin.climate import Climate
from data_pipeline.synthetic.twin.dynamics import QuasiGeostrophy
from data_pipeline.synthetic.twin.earth import Earth
from data_pipeline.synthetic.twin.model_parameters import DAY_LENGTH, Parameters
from data_pipeline.synthetic.twin.physics import Physics, saturation, to_surface
from data_pipeline.synthetic.twin.sphere import Sphere, resize
from data_pipeline.synthetic.twin.state import State

TRUNCATION = 21
"""Spectral truncation of nature and of the forecast model."""
STEPS_PER_DAY = 6
MAX_BATCH = 32
"""Largest batch of simulations; larger batches do not fit into the processor's cache."""
MIN_BATCH = 16
"""Smallest batch of simulations; narrower matrix products round differently, which changes the weather in a month."""


class Atmosphere:
    """An atmosphere with its own parameters. Methods take and return states of any batch size."""

    def __init__(
        self, parameters: Parameters, truncation: int = TRUNCATION, dtype: torch.dtype = torch.float32
    ) -> None:
        self.sphere = sphere = Sphere(truncation, dtype)
        self.earth = Earth(sphere)
        smooth_height = sphere.to_grid(sphere.to_spectrum(self.earth.height))
        self.flow = QuasiGeostrophy(sphere, parameters.orography * smooth_height, parameters.advection)
        self.climate = Climate(sphere, self.earth, parameters)
        self.physics = Physics(self.flow, self.earth, self.climate, parameters)

    def initial_state(self, noise: Tensor, sea_anomaly: Tensor, day: float) -> State:
        """Return states with the jets of equilibrium plus normal `noise` (2N, N, 1, B), for a month of spin-up."""
        sphere, degree2 = self.sphere, -self.sphere.laplacian
        waves = 2e-3 * noise * sphere.mask * ((degree2 > 10) & (degree2 < 200)) / (degree2 + 1) ** 0.75
        jets = 0.8 * self.climate.thermal_wind(day)
        psi = torch.cat([jets.sum(2, keepdim=True) + 1.5 * waves, jets[:, :, 1:] + waves, 0.5 * waves], 2)
        air = self.climate.air(day)
        tracers = sphere.to_spectrum(torch.stack([air, 0.6 * saturation(air)], 2))
        tracers = tracers.expand(-1, -1, -1, noise.shape[-1])
        skin = to_surface(air, self.earth.height).repeat(1, 1, noise.shape[-1])
        spectrum = torch.cat([self.flow.potential_vorticity(psi), tracers], 2)
        return State(spectrum, skin, torch.zeros_like(skin), sea_anomaly, day)

    def run(self, state: State, days: float) -> State:
        """Return the states `days` later."""
        return run_in_batches(lambda batch: self._run(batch, round(days * STEPS_PER_DAY)), state)

    def refine(self, state: State, sea_anomaly: Tensor) -> State:
        """Return the states of a coarser atmosphere at this truncation; the land starts in radiative equilibrium."""
        skin = self.climate.land(state.day).repeat(1, 1, state.batch)
        spectrum = resize(state.spectrum, self.sphere.truncation)
        return State(spectrum, skin, torch.zeros_like(skin), sea_anomaly, state.day)

    def perturb(self, state: State, noise: Tensor) -> State:
        """Return the states plus normal `noise` (2N, N, 6, B), scaled up where the wind is strong.

        Most noise is in the potential vorticity and similar on all levels, so that wind and height stay balanced.
        Temperature and moisture have independent noise.
        """
        return run_in_batches(self._perturb, state, noise)

    def _perturb(self, state: State, noise: Tensor) -> State:
        sphere, degree2 = self.sphere, -self.sphere.laplacian
        noise = noise * sphere.mask * (degree2 > 15)
        u, v = self.physics.wind(self.flow.streamfunction(state.spectrum[:, :, :3])[:, :, 1:2])
        uncertain = 0.3 + torch.sqrt(u * u + v * v) / 15
        psi = (0.6 * noise[:, :, :3] + noise[:, :, 3:4]) / (degree2 + 1) ** 0.75
        grid = sphere.to_grid(torch.cat([psi, noise[:, :, 4:] / (degree2 + 1) ** 0.35], 2))
        vapour = sphere.to_grid(state.spectrum[:, :, 4:])
        psi = sphere.to_spectrum(2.2e-4 * uncertain * grid[:, :, :3])
        warmth = 0.144 * uncertain * grid[:, :, 3:4]
        moisture = 0.08 * vapour * grid[:, :, 4:]
        tracers = sphere.to_spectrum(torch.cat([warmth, moisture], 2))
        change = torch.cat([self.flow.potential_vorticity(psi), tracers], 2)
        return replace(
            state,
            spectrum=state.spectrum + self.physics.diffuse(change, 1 / STEPS_PER_DAY),
            skin=state.skin + 0.8 * warmth[:, :, 0],
        )

    def _run(self, state: State, steps: int) -> State:
        days = 1 / STEPS_PER_DAY
        for _ in range(steps):
            state = replace(state, spectrum=self.flow.runge_kutta(state.spectrum, days * DAY_LENGTH))
            state = self.physics.step(state, days)
            state = replace(state, day=state.day + days)
        return state


def run_in_batches(work: Callable[..., State], state: State, *fields: Tensor) -> State:
    """Return `work(state, *fields)`, computed in batches of `MIN_BATCH` to `MAX_BATCH` simulations.

    The result of a simulation does not depend on the other simulations of its batch.
    """
    parts = []
    for positions in torch.arange(state.batch).tensor_split(math.ceil(state.batch / MAX_BATCH)):
        copies = math.ceil(MIN_BATCH / len(positions))
        filled = positions.repeat(copies)[: max(len(positions), MIN_BATCH)]
        part = work(state.take(filled), *(field[..., filled] for field in fields))
        parts.append(part.take(slice(0, len(positions))))
    return State.join(parts)
