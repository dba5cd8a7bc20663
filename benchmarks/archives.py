"""The default against simple references and single models on many archives: does `model=auto` ever lose?

PYTHONPATH=tests python -m benchmarks.archives SAMPLES runs/archives [--twin data/twin] [--only NAME ...]

SAMPLES is a folder of real files (tests/station_files.py and tests/monsoon.py read them). Each model is trained with
defaults on the training years, with `fit`; the table has its CRPS in the test years, fair where it returns members.
A default loses at a lead time if its CRPS is above the best of raw, climatology and EMOS by more than one standard
error of the difference, over start dates. `archives.json` has all numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_write
from data_pipeline.dataset import ForecastDataset, batches
from data_pipeline.dates import Dates, parse_span
from data_pipeline.formats.open import open_analysis, open_ensemble
from data_pipeline.sample import verifiable
from data_pipeline.sources.array_source import ArraySource
from data_pipeline.task import Task
from training.fit import fit

REFERENCES = ("raw", "climatology", "emos")
DEFAULT = "auto"
SINGLE: dict[str, Any] = {
    "boosted_emos": "boosted_emos", "shared boosted": {"model": "boosted_emos", "shared": True},
    "shared emos": {"model": "emos", "shared": True}, "mlp": "mlp",
}  # fmt: skip


@dataclass(frozen=True)
class Archive:
    """Ensemble and truth, with the task and the periods of training, validation and test."""

    ensemble: xr.Dataset
    truth: xr.Dataset
    task: Task
    train: list[Any]
    test: list[Any]
    val: list[Any] | None = None
    gap_days: int | None = None

    @property
    def names(self) -> dict[str, str]:
        """The variable of the task under its name in the data sets."""
        (variable,) = self.truth.data_vars
        return {str(variable): str(self.task.targets[0])}

    def fit(self, model: Any) -> Any:
        """Return the corrector of a model with its defaults."""
        return fit(
            model, self.ensemble, self.truth, task=self.task, missing="mask", names=self.names, train=self.train,
            val=self.val, test=self.test, gap_days=self.gap_days,
        )  # fmt: skip

    def scores(self, corrector: Any) -> dict[int, np.ndarray]:
        """Return for each lead time the CRPS of every forecast of the test period, fair where there are members."""
        source = ArraySource(self.ensemble, self.truth, None, self.names, "mask")
        dates = Dates((parse_span("test", self.test),))
        data = ForecastDataset(source, corrector.task, dates)
        area = torch.from_numpy(data.grid.weights)[:, None]
        found: dict[int, dict[int, float]] = {lead: {} for lead in corrector.task.lead_times}
        for batch in batches(data, 16):
            with torch.inference_mode():
                crps = corrector(batch).crps(verifiable(batch, corrector.task.target_channels), fair=True).double()
            weight = torch.where(crps.isfinite(), area, 0)
            means = (crps.nan_to_num() * weight).sum((1, 2, 3)) / weight.sum((1, 2, 3))
            for start, lead, mean in zip(
                batch.init_time.tolist(), batch.lead_time.tolist(), means.tolist(), strict=True
            ):
                if math.isfinite(mean):
                    found[lead][start] = mean
        return {lead: np.array([means[start] for start in sorted(means)]) for lead, means in found.items()}


def at_station(
    reader: str, variable: str, leads: list[int], train: list[Any], test: list[Any], val: list[Any] | None = None,
    *, samples: Path,
) -> Archive:  # fmt: skip
    """Return the target of an archive of tests/station_files.py, temperatures in K."""
    import station_files  # type: ignore[import-not-found]

    files = getattr(station_files, reader)(samples)
    members = files.fields[files.target]
    celsius = files.units[files.target] == "degC"
    about, offset = {"units": "K" if celsius else files.units[files.target]}, 273.15 * celsius
    places = {"latitude": ("point", files.latitudes), "longitude": ("point", files.longitudes)}
    axes = {"init_time": files.starts.astype("M8[ns]"), "lead_time": files.leads, "number": np.arange(members.shape[2])}
    truth = np.where(abs(files.truth) < 1e6, files.truth, np.nan) + offset
    return Archive(
        xr.Dataset({"truth": ((*axes, "point"), (members + offset).astype("f4"), about)}, axes | places),
        xr.Dataset(
            {"truth": (("time", "point"), truth.astype("f4"), about)}, {"time": files.times.astype("M8[ns]")} | places
        ),
        task_of(reader, [variable], [variable], leads), train, test, val,
    )  # fmt: skip


def monsoon(*, samples: Path) -> Archive:
    """Return the monsoon's rain of tests/monsoon.py: twenty years to train, ten to test, one start a year."""
    from monsoon import Monsoon  # type: ignore[import-not-found]

    data = Monsoon(samples)
    starts = np.array([f"{1991 + year}-05-01" for year in range(30)], "M8[ns]")
    shape = data.grid.shape
    members, truth = np.full((30, 1, 10, *shape), np.nan, "f4"), np.full((30, *shape), np.nan, "f4")
    land = data.land.numpy()
    members[:, 0, :, land] = data.members.permute(2, 1, 0).numpy()
    truth[:, land] = data.truth.numpy()
    space = {"latitude": list(data.grid.latitudes), "longitude": list(data.grid.longitudes)}
    dims = ("init_time", "lead_time", "number", "latitude", "longitude")
    times = starts + np.timedelta64(3672, "h")
    return Archive(
        xr.Dataset(
            {"truth": (dims, members, {"units": "mm"})},
            {"init_time": starts, "lead_time": [3672], "number": np.arange(10), **space},
        ),
        xr.Dataset({"truth": (("time", *dims[3:]), truth, {"units": "mm"})}, {"time": times, **space}),
        task_of("monsoon", ["tp:2928h"], ["tp:2928h"], [3672]), [1991, 2010], [2011, 2020], gap_days=0,
    )  # fmt: skip


def improver(*, samples: Path) -> Archive:
    """Return IMPROVER's temperature: two days to train, one to test, 40,000 projected cells."""
    folder = samples / "nc_improver_emos_temperature"
    ensemble = open_ensemble(str(folder / "history" / "*.nc"), ["2t"])
    truth = open_analysis(str(folder / "truth" / "*.nc"), ["2t"])
    task = task_of("improver", ["2t"], ["2t"], [12])
    return Archive(ensemble, truth, task, ["2017-06-02", "2017-06-03"], ["2017-06-04", "2017-06-04"], gap_days=0)


def twin(years: int, *, samples: Path) -> Archive:
    """Return the twin's 2 m temperature with so many training years, at 24 and 48 h."""
    folder = Path("data/twin")
    task = task_of("twin", ["2t"], ["2t"], [24, 48])
    ensemble = open_ensemble(str(folder / "output.sfc.*"), ["2t"], [24, 48])
    truth = open_analysis(str(folder / "analysis.sfc.*"), ["2t"])
    return Archive(ensemble, truth, task, [2014 - years, 2013], [2016, 2017], [2014, 2015], gap_days=0)


def task_of(name: str, inputs: list[str], targets: list[str], lead_times: list[int]) -> Task:
    """Return a task without static fields."""
    options: dict[str, Any] = {"name": name, "inputs": inputs, "targets": targets, "lead_times": lead_times}
    return Task(**options)


ARCHIVES: dict[str, Callable[..., Archive]] = {
    "Dillingen": partial(at_station, "dillingen", "2t", [24], [2016, 2018], [2020, 2020], [2019, 2019]),
    "Hannover": partial(at_station, "hannover", "2t", [24, 48, 72, 96, 120], [2015, 2018], [2020, 2020], [2019, 2019]),
    "Innsbruck": partial(
        at_station, "innsbruck", "tp:72h", [192], ["2000-01-01", "2004-11-30"], ["2005-01-01", "2013-12-31"]
    ),
    "monsoon": monsoon,
    "IMPROVER": improver,
    **{f"twin, {years} years": partial(twin, years) for years in (2, 4, 8, 16)},
}


def compared(archive: Archive, single: Mapping[str, Any]) -> dict[str, Any]:
    """Return CRPS by lead time of all models, seconds of their fits, and where the default loses."""
    scores, seconds, refused = {}, {}, {}
    for name, model in {**dict(zip(REFERENCES, REFERENCES, strict=True)), DEFAULT: DEFAULT, **single}.items():
        began = time.monotonic()
        try:
            corrector = archive.fit(model)
        except InputError as error:
            refused[name] = str(error)
            continue
        seconds[name] = time.monotonic() - began
        scores[name] = archive.scores(corrector)
    means = {name: {lead: float(values.mean()) for lead, values in found.items()} for name, found in scores.items()}
    losses = {}
    for lead in archive.task.lead_times:
        best = min((name for name in REFERENCES if name in means), key=lambda name: means[name][lead])
        difference = scores[DEFAULT][lead] - scores[best][lead]
        deviation = float(difference.std(ddof=1) / math.sqrt(len(difference))) if len(difference) > 1 else math.nan
        losses[lead] = {"best": best, "difference": float(difference.mean()), "standard_error": deviation}
    return {"crps": means, "seconds": seconds, "refused": refused, "against_best": losses}


def lines_of(name: str, found: Mapping[str, Any]) -> list[str]:
    """Return the rows of the table of one archive."""
    rows = []
    for lead, against in found["against_best"].items():
        crps = {model: values[lead] for model, values in found["crps"].items()}
        singles = {model: value for model, value in crps.items() if model in SINGLE}
        best = min(singles, key=lambda model: singles[model]) if singles else None
        cells = [f"{crps[model]:.4g}" if model in crps else "refused" for model in (*REFERENCES, DEFAULT)]
        cells.append("–" if best is None else f"{crps[best]:.4g} ({best})")
        ratio = against["difference"] / against["standard_error"]
        cells.append(f"{ratio:+.1f} vs {against['best']}" if math.isfinite(ratio) else "one start")
        rows.append(f"| {name}, {lead} h | " + " | ".join(cells) + " |")
    return rows


def main() -> None:
    """Compare the models on all archives, and print and write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("samples", type=Path)
    options.add_argument("output", type=Path)
    options.add_argument("--only", nargs="*", default=[*ARCHIVES])
    given = options.parse_args()
    file = given.output / "archives.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for name in given.only:
        results[name] = json.loads(json.dumps(compared(ARCHIVES[name](samples=given.samples), SINGLE)))
        with atomic_write(file, "w") as stream:
            json.dump(results, stream, indent=1)
    print("| archive | raw | climatology | EMOS | default | best single model | default − best, in standard errors |")
    print("|---|---|---|---|---|---|---|")
    for name, found in results.items():
        print("\n".join(lines_of(name, found)))


if __name__ == "__main__":
    main()
