"""Statistics that `deepweather prepare` made for a run: the option `statistics` of the verb `train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.dataset import ForecastDataset
from data_pipeline.dates import Dates
from data_pipeline.statistics import STATISTICS
from data_pipeline.statistics.normalization import SAMPLE_KINDS, NormalizationData, normalization_of
from data_pipeline.statistics.statistic_file import load_for_run, provenance_of, remedy_for
from models import protocol
from models.construct import model_class
from training.optimization.eecrps import EECRPS
from training.optimization.loss import Loss


class RunStatistics:
    """The statistics in the files of `folder`; none if `folder` is None. A file is used if the run needs it."""

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._files = {
            name: path for name in STATISTICS if self.folder and (path := self.folder / f"{name}.nc").is_file()
        }
        if self.folder and not self._files:
            names = " or ".join(f"{name}.nc" for name in STATISTICS)
            raise InputError(
                f"statistics: {folder} holds no {names}; make them with deepweather prepare statistics=[...]"
            )

    def complete(self, loss: Loss) -> Loss:
        """Return the loss, with the climate of the folder if it needs one and names none."""
        if isinstance(loss, EECRPS) and loss.climate is None and "efi" in self._files:
            return replace(loss, climate=str(self._files["efi"]))
        return loss

    def describe(self, options: Mapping[str, Any], loss: Loss) -> dict[str, Any]:
        """Return the options of a run, with the provenance of each statistic beside its path.

        The options identify a run, and the same path may later hold another statistic.
        """
        found = dict(options)
        if self.folder:
            found["statistics"] = {str(path): provenance_of(path) for path in self._files.values()}
        if isinstance(loss, EECRPS) and loss.climate is not None:
            found["climate"] = f"{loss.climate} {provenance_of(loss.climate)}"
        return found

    def check_use(self, spec: Mapping[str, Any], loss: Loss, initial_weights: object) -> None:
        """Raise an `InputError` if the run cannot use a statistic of the folder."""
        if not self.folder:
            return
        uses_efi = isinstance(loss, EECRPS) and loss.climate == str(self._files.get("efi"))
        if "normalization" not in self._files:
            if not uses_efi:
                raise InputError(
                    f"statistics: {self.folder} holds efi.nc only, which needs loss=eecrps without loss.climate; "
                    "leave out statistics, or add normalization.nc with deepweather prepare"
                )
            return
        name = spec["_target_"]
        if initial_weights is not None:
            why = "initial_weights brings its own normalisation"
        elif spec.get("power", 1) != 1:
            why = f"model.power={spec['power']} changes the values that are normalised (model.power=1 does not)"
        elif protocol.claims(model_class(name)).physical:
            why = f"model {name} gets physical values, which are not normalised"
        else:
            return
        path = self._files["normalization"]
        raise InputError(f"statistics: {path} cannot be used, because {why}; leave out statistics")

    def normalization(
        self, train: ForecastDataset, dates: Dates, fingerprint: str, moments: bool
    ) -> NormalizationData | None:
        """Return the folder's normalisation, None if it has none; refuse one made of other samples than `train`."""
        if (path := self._files.get("normalization")) is None:
            return None
        file, remedy = load_for_run(path, "normalization", dates, fingerprint, train.grid), remedy_for("normalization")
        channels, targets = ([str(one) for one in names] for names in (train.task.channels, train.task.targets))
        for axis, wanted in (("channel", channels), ("target", targets)):
            if absent := [name for name in wanted if name not in file[axis].values.tolist()]:
                raise InputError(f"{path} is made without the {axis} {absent[0]} of the task; {remedy}")
        found = normalization_of(file, channels, targets, SAMPLE_KINDS[moments])
        if found.members != train.members:
            raise InputError(
                f"{path} is made of {found.members} members, this run uses {train.members}; make it with deepweather "
                f"prepare 'statistics=[normalization]' normalization.max_members={train.members}"
            )
        starts, leads = (times.numpy() for times in train.times())
        if not (np.array_equal(found.starts, starts) and np.array_equal(found.lead_times, leads)):
            there, here = (",".join(map(str, np.unique(times))) for times in (found.lead_times, leads))
            raise InputError(
                f"{path} is made of {len(found.starts)} forecasts at {there} h, this run trains on {len(starts)} at "
                f"{here} h; {remedy}"
            )
        return found
