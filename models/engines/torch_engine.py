"""TorchEngine: corrects forecasts with a `Corrector` in PyTorch."""

from __future__ import annotations

import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from data_pipeline.common.identity import sha256_of
from data_pipeline.grids.points import Points
from data_pipeline.sample import Sample
from models.corrector import Corrector
from models.device import choose_device
from models.distribution import Distribution
from models.engines.engine import CorrectorDescription
from models.engines.forecast import RawForecast
from models.parallel.domain import Domain
from models.parallel.single_process import SingleProcess
from models.provenance.training_climate import TrainingClimate

if TYPE_CHECKING:
    import xarray as xr


class TorchEngine:
    """A corrector on this rank's tile of `domain`, computing on `device`; an `Engine`."""

    def __init__(
        self,
        corrector: Corrector,
        domain: Domain | None = None,
        device: torch.device | str = "cpu",
        name: str = "",
        path: Path | None = None,
    ) -> None:
        own = corrector.on(domain or Domain.of(corrector.grid))
        self._name, self._path = name, path
        self.domain, self._device = own.domain, torch.device(device)
        self.always, self.known = (tensor.numpy() for tensor in training_cells(own))
        self.corrector = own.to(self._device)
        self.description = CorrectorDescription(
            task=corrector.task,
            grid=corrector.grid,
            meanings=corrector.meanings,
            provenance=corrector.provenance,
            target_grid=corrector.target_grid,
            name=name,
            path=path,
            sha256=sha256_of(path) if path else "",
            envelope=corrector.envelope,
            noise=corrector.noise,
        )

    @classmethod
    def of(cls, corrector: Corrector, device: str) -> TorchEngine:
        """Return the engine of a corrector on a device: `cpu`, `gpu`, or `auto`."""
        chosen = choose_device(device, SingleProcess())
        own = next((tensor.device for tensor in corrector.state_dict().values()), chosen)
        # The engine moves its corrector, and corrects without dropout.
        same = own.type == chosen.type and not corrector.training
        return cls(corrector if same else copy.deepcopy(corrector).eval(), device=chosen)

    def at(self, domain: Domain, static: xr.Dataset | None = None) -> TorchEngine:
        """Return the engine at other stations."""
        assert isinstance(domain.grid, Points)
        moved = copy.deepcopy(self.corrector).cpu().on(Domain.of(self.corrector.grid)).at(domain.grid, static)
        return TorchEngine(moved, domain, self._device, self._name, self._path)

    @property
    def climate(self) -> TrainingClimate | None:
        """Return the training climate of the inputs on the whole grid; None for a model that reads physical values."""
        normalizers = self.corrector.fitted_normalizers
        return TrainingClimate.of(normalizers, self.description.task.target_channels) if normalizers else None

    @torch.no_grad()
    def predict(self, forecast: RawForecast) -> TorchPrediction:
        """Return the corrected distribution of a forecast on this rank's tile."""
        corrector, shape = self.corrector, forecast.raw.shape[1:]
        batch = Sample(
            ensemble=torch.from_numpy(forecast.ensemble),
            mask=torch.from_numpy(forecast.mask),
            static=self.domain.cut(corrector.static),
            target=torch.full(shape, torch.nan),
            init_time=torch.tensor(int(forecast.init_time.astype("datetime64[s]").astype(np.int64))),
            lead_time=torch.tensor(forecast.lead_time),
        )
        return TorchPrediction(corrector(Sample(*(tensor[None].to(self._device) for tensor in batch))))


class TorchPrediction:
    """A `Prediction` from the forecast `place` of a distribution over (B, T, h, w)."""

    def __init__(self, distribution: Distribution, place: int = 0, known: dict[bytes, Tensor] | None = None) -> None:
        self._distribution, self._place, self._known, mask = distribution, place, known, distribution.mask
        self.unchanged: np.ndarray | None = None
        if mask is not None:
            self.unchanged = np.broadcast_to(~mask.cpu().numpy(), distribution.mean.shape)[place]

    @classmethod
    def of_batch(cls, distribution: Distribution) -> list[TorchPrediction]:
        """Return the predictions of all forecasts of a batch, which compute quantiles together."""
        known: dict[bytes, Tensor] = {}
        return [cls(distribution, place, known) for place in range(len(distribution.mean))]

    @cached_property
    def members(self) -> np.ndarray | None:
        """(M, T, h, w) if the model itself forecasts members, else None."""
        members = self._distribution.core.as_members
        return None if members is None else _array(members[:, self._place])

    @torch.no_grad()
    def mean(self) -> np.ndarray:
        """Return the mean (T, h, w)."""
        return _array(self._distribution.mean[self._place])

    @torch.no_grad()
    def std(self) -> np.ndarray:
        """Return the standard deviation (T, h, w)."""
        return _array(self._distribution.std[self._place])

    @torch.no_grad()
    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Return the quantiles (K, T, h, w) at `levels` (K,) between 0 and 1."""
        at = torch.from_numpy(np.asarray(levels, np.float64)).to(self._distribution.mean.device)
        if self._known is None:
            return _array(self._distribution.quantile(at)[:, self._place])
        key = at.cpu().numpy().tobytes()
        if key not in self._known:
            self._known[key] = self._distribution.quantile(at)
        return _array(self._known[key][:, self._place]).copy()

    @torch.no_grad()
    def cdf(self, values: np.ndarray) -> np.ndarray:
        """Return the probabilities (K, T, h, w) of at most `values`, (K, T, h, w) or (K, T, 1, 1)."""
        like = self._distribution.mean
        return np.stack(
            [
                _array(self._distribution.cdf(torch.from_numpy(value).to(like)[None])[self._place])
                for value in np.asarray(values)
            ]
        )


def _array(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a numpy array in double precision."""
    return tensor.cpu().double().numpy()


def training_cells(corrector: Corrector) -> tuple[Tensor, Tensor]:
    """Return `always` (C, H, W) and `known` (T, H, W) of the normaliser on this rank's tile, on the CPU.

    For a committee, they are the smallest values of all its correctors.
    """
    normalizers = corrector.fitted_normalizers or [corrector.normalizer]
    return tuple(
        corrector.domain.cut(torch.stack([getattr(normalizer, name) for normalizer in normalizers]).amin(0)).cpu()
        for name in ("always", "known")
    )  # type: ignore[return-value]
