"""Squared error after the bias map: in training mode, and in years to which the map was not fitted.

The data are a twin experiment (or any archive like it); each target is fitted separately. For every training year the
maps are fitted anew to the other years and applied to that year: out of sample. In training mode, where everything is
fitted only once, the same forecasts must have the same squared error. The maps fitted to all years, which evaluation
uses, have a smaller error on the years of the fit. Errors of the few validation years are divided by those of the raw
ensemble, because single years are easier or harder than others.

    python -m benchmarks.crossfit_error [--json] [--path data/twin]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from benchmarks.common import command_line, report
from data_pipeline.archive import Archive
from data_pipeline.dataset import ForecastDataset
from data_pipeline.protocols import ALL
from data_pipeline.task import Task
from models.corrector import Corrector, in_batches

TARGETS, LEAD_TIME = ("2t", "t@850", "z@500"), 48
TRAINING_YEARS, VALIDATION_YEARS = range(1998, 2014), range(2014, 2016)


def open_target(archive: Archive, target: str, years: Iterable[int]) -> ForecastDataset:
    """Open the forecasts of one target that are valid in `years`."""
    return ForecastDataset(archive, Task(target, [target], [target], [LEAD_TIME]), years, moments=True)


def fit_error_maps(data: ForecastDataset) -> Corrector:
    """Return a network whose error maps are fitted to `data`."""
    corrector = Corrector(data.task, data.grid, {"_target_": "models.networks.mlp.MLP", "width": 1}, data.static)
    corrector.fit(data)
    return corrector


@torch.no_grad()
def squared_errors(corrector: Corrector, data: ForecastDataset, training: bool, corrected: bool = True) -> torch.Tensor:
    """Return the area-weighted squared error of each forecast (N,), in K² or m⁴ s⁻⁴, after the bias map or before."""
    corrector.train(training)
    area, found = torch.tensor(data.grid.weights)[:, None], []
    for batch in in_batches(data, ALL, 16):
        sample = corrector.normalizer(batch)
        error = sample.target - sample.ensemble.mean(1)
        if corrected:
            error = error - corrector.model.features.errors(sample)[:, :1]  # type: ignore[union-attr, operator]
        found.append((error.double().square() * area).mean((1, 2, 3)))
    return torch.cat(found) * float(corrector.normalizer.scale) ** 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit to all years, fit without each year, compare."""
    parser = command_line(__doc__)
    parser.add_argument("--path", default="data/twin", help="folder of the twin experiment")
    options = parser.parse_args(arguments)
    path, ratios = options.path, {}
    archive = Archive([f"{path}/output.*"], [f"{path}/analysis.*"], [f"{path}/static"])
    for target in TARGETS:
        train, validation = (open_target(archive, target, years) for years in (TRAINING_YEARS, VALIDATION_YEARS))
        all_years = fit_error_maps(train)
        left_out = []
        for year in TRAINING_YEARS:
            others = open_target(archive, target, [y for y in TRAINING_YEARS if y != year])
            held_out = open_target(archive, target, [year])
            left_out.append(squared_errors(fit_error_maps(others), held_out, training=False))
        out = float(torch.cat(left_out).mean())
        inside, seen = (float(squared_errors(all_years, train, training).mean()) for training in (False, True))
        raw, raw_validation = (float(squared_errors(all_years, d, False, False).mean()) for d in (train, validation))
        new = float(squared_errors(all_years, validation, False).mean())
        print(f"{target}: squared error divided by that of the raw ensemble, and by that in left-out years")
        for name, value, reference in (
            ("left-out years", out, raw), ("as training sees it", seen, raw),
            ("the fit on its own cases", inside, raw), ("validation years", new, raw_validation),
        ):  # fmt: skip
            print(f"  {name:<26} {value / reference:.4f} {value / reference / (out / raw):.4f}", flush=True)
        ratios |= {f"{target}_training_vs_left_out": seen / out, f"{target}_own_vs_left_out": inside / out}
        ratios[f"{target}_training_vs_validation"] = (seen / raw) / (new / raw_validation)
    report("crossfit_error", ratios, options.json)


if __name__ == "__main__":
    main()
