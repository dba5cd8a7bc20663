"""How large errors after the bias map are: as training sees them, and in years that the map was not fitted to.

On a twin experiment (or any archive like it), for each target on its own. For each training year all is fitted anew to
the other years and tried on that year: out of sample. In training mode the same forecasts must have the same squared
error, though everything was fitted only once; the fit to all years, which evaluation uses, has a smaller one on its own
cases.
Validation years are few, so that they are harder or easier than others: their error is given in units of the raw
ensemble's.

    python -m benchmarks.crossfit [--json] [--path data/twin]
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

TARGETS, LEAD = ("2t", "t@850", "z@500"), 48
TRAIN, VALIDATION = range(1998, 2014), range(2014, 2016)


def opened(archive: Archive, target: str, years: Iterable[int]) -> ForecastDataset:
    """Open the forecasts of one target that are valid in some years."""
    return ForecastDataset(archive, Task(target, [target], [target], [LEAD]), years, moments=True)


def fitted(data: ForecastDataset) -> Corrector:
    """Return a network that has learnt its error maps."""
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
    """Fit, refit without each year, compare."""
    parser = command_line(__doc__)
    parser.add_argument("--path", default="data/twin", help="folder of the twin experiment")
    options = parser.parse_args(arguments)
    path, ratios = options.path, {}
    archive = Archive([f"{path}/output.*"], [f"{path}/analysis.*"], [f"{path}/static"])
    for target in TARGETS:
        train, validation = opened(archive, target, TRAIN), opened(archive, target, VALIDATION)
        whole = fitted(train)
        without = [
            squared_errors(fitted(opened(archive, target, [y for y in TRAIN if y != year])), one, training=False)
            for year in TRAIN
            for one in [opened(archive, target, [year])]
        ]
        out = float(torch.cat(without).mean())
        inside, seen = (float(squared_errors(whole, train, training).mean()) for training in (False, True))
        raw, raw_validation = (float(squared_errors(whole, d, False, False).mean()) for d in (train, validation))
        new = float(squared_errors(whole, validation, False).mean())
        print(f"{target}: squared error in units of the raw ensemble's, and of that in left-out years")
        for name, value, whole_of in (
            ("left-out years", out, raw), ("as training sees it", seen, raw),
            ("the fit on its own cases", inside, raw), ("validation years", new, raw_validation),
        ):  # fmt: skip
            print(f"  {name:<26} {value / whole_of:.4f} {value / whole_of / (out / raw):.4f}", flush=True)
        ratios |= {f"{target}_training_vs_left_out": seen / out, f"{target}_own_vs_left_out": inside / out}
        ratios[f"{target}_training_vs_validation"] = (seen / raw) / (new / raw_validation)
    report("crossfit", ratios, options.json)


if __name__ == "__main__":
    main()
