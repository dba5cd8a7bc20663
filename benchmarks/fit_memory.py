"""Memory of the fits before training, for 50 and for 200 starts: it must not grow with the number of starts.

Each fit runs in a process of its own on 361 x 720 points: the normaliser (which reads all members), and the error
climate, EMOS, climatology and boosted EMOS (which read mean and spread). Samples are computed when they are read, so
only the memory of the fit can grow. Truth is known in every 61st row: cases need the memory of all cells, but the
regressions take less time. Boosted EMOS has 2 steps and 2 folds, which affects only its time.

    python -m benchmarks.fit_memory [--json] [--starts 50 200]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.common import HALF_DEGREE, command_line, memory_rise, report
from data_pipeline.protocols import ALL
from data_pipeline.sample import Sample
from data_pipeline.task import Task
from models.corrector import Corrector, needed_task

FIT_TASK = Task("fits", ["2t", "msl", "10u", "10v", "tcwv", "skt", "tcc", "tp"], ["2t"], [48])
TRUTH_ROW_STEP = 61
"""Truth is known in one of this many rows."""
MEMORY_LIMIT = 1.5e9
"""Bytes by which memory may rise."""
NETWORK_SPEC = {"_target_": "models.networks.mlp.MLP", "width": 1}
FITS: dict[str, tuple[dict, int]] = {
    "normaliser": ({"_target_": "models.published.ens10.ENS10UNet"}, 10),
    "error climate": (NETWORK_SPEC, 2),
    "EMOS": ({"_target_": "models.statistical.emos.EMOS"}, 2),
    "shared EMOS": ({"_target_": "models.statistical.emos.EMOS", "shared": True}, 2),
    "EMOS of each cell": ({"_target_": "models.statistical.emos.EMOS", "shared": False}, 2),
    "EMOS baseline": (NETWORK_SPEC | {"baseline": {}}, 2),
    "climatology": ({"_target_": "models.statistical.climatology.Climatology"}, 2),
    "boosted EMOS": ({"_target_": "models.statistical.boosted_emos.BoostedEMOS", "max_steps": 2, "folds": 2}, 2),
}
"""Model and number of members of each fit."""


class SyntheticForecasts(Dataset[Sample]):
    """`starts` forecasts spread over eight years, computed by shifting one random field, and cut to `rows`."""

    def __init__(self, task: Task, starts: int, members: int, rows: slice = ALL) -> None:
        self.task, self.starts, self.members, self.rows = task, starts, members, rows
        generator = torch.Generator().manual_seed(0)
        self.noise = torch.randn(*HALF_DEGREE.shape, generator=generator)[rows]
        self.static = self.noise.expand(len(task.static_names), -1, -1)

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        return self.noise.numel() * (5 * self.members * len(self.task.inputs) + 4)

    def times(self) -> tuple[Tensor, Tensor]:
        """Return initial times spread over eight years, and the lead times."""
        step = 8 * 365.25 * 86400 / self.starts
        return 10**9 + (torch.arange(self.starts) * step).long(), torch.full((self.starts,), 48)

    def band(self, rows: slice) -> SyntheticForecasts:
        """Return some rows of the same forecasts."""
        return SyntheticForecasts(self.task, self.starts, self.members, rows)

    def __len__(self) -> int:
        return self.starts

    def __getitem__(self, index: int) -> Sample:
        C, H, W = len(self.task.inputs), *self.noise.shape
        signal, departure, error = (self.noise.roll(step * index, 1) for step in (31, 17, 13))
        factors = torch.linspace(-1, 1, self.members * C).view(self.members, C, 1, 1)
        ensemble = torch.addcmul(280 + signal, factors, departure)
        truth = 281 + signal + 0.5 * error
        rows = torch.arange(HALF_DEGREE.shape[0])[self.rows]
        truth[rows % TRUTH_ROW_STEP > 0] = torch.nan
        init, lead = self.times()
        mask = torch.ones(C, H, W, dtype=torch.bool)
        return Sample(ensemble, mask, self.static, truth[None], init[index], lead[index])


def fit_model(name: str, starts: int) -> None:
    """Fit one of the models in `FITS`."""
    torch.set_num_threads(1)
    spec, members = FITS[name]
    task = needed_task(spec, FIT_TASK)
    data = SyntheticForecasts(task, starts, members)
    Corrector(task, HALF_DEGREE, spec, data.static).fit(data)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every fit with few and with many starts; print the rise of memory."""
    parser = command_line(__doc__)
    parser.add_argument("--starts", type=int, nargs=2, default=[50, 200], help="few and many starts")
    options = parser.parse_args(arguments)
    few, many = options.starts
    ratios = {}
    for name in FITS:
        rises = [memory_rise(fit_model, name, starts) for starts in (few, many)]
        print(f"{name:<14} {few} starts: {rises[0] / 1e6:6.0f} MB, {many} starts: {rises[1] / 1e6:6.0f} MB", flush=True)
        key = name.lower().replace(" ", "_")
        ratios |= {f"{key}_vs_limit": rises[1] / MEMORY_LIMIT, f"{key}_{many}_vs_{few}": rises[1] / max(rises[0], 1)}
    report("fit_memory", ratios, options.json)


if __name__ == "__main__":
    main()
