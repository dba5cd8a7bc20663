"""The verb `correct`: a GRIB forecast in, the same file with corrected members out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig

from conf import verb
from data_pipeline.dataset import read_sample
from data_pipeline.errors import InputError
from data_pipeline.grib import Lattice, Message, ensemble_fields, rewrite
from models.corrector import Corrector, forecast


@verb("correct")
def main(cfg: DictConfig) -> None:
    """Read, correct, write, say what was done."""
    corrector = Corrector.load(cfg.corrector)
    count = correct(corrector, Path(cfg.input), Path(cfg.output))
    names = ", ".join(map(str, corrector.task.targets))
    leads = ", ".join(f"+{lead}" for lead in corrector.task.lead_times)
    print(f"{cfg.output}: {count} messages corrected ({names} at {leads} h), all others copied as they were")


def correct(corrector: Corrector, source: Path, target: Path) -> int:
    """Write `source` to `target` with the corrected members in place of the raw ones; return how many."""
    task = corrector.task
    forecasts = ensemble_fields(source, task.inputs, task.lead_times)
    if not corrector.grid.matches(forecasts.grid):
        raise InputError(
            f"{source} has {forecasts.grid}, the corrector was made for {corrector.grid}; it needs that grid"
        )
    raw = ensemble_fields(source, task.targets, task.lead_times)
    starts = forecasts.init_times.tolist()
    # Members packed one by one could change places where they are closer than a step of the packing.
    lattices = [Lattice.of(source, variable) for variable in task.targets]
    corrected: dict[Message, np.ndarray] = {}

    def correction(message: Message) -> np.ndarray | None:
        if message.variable not in task.targets or message.lead_time not in task.lead_times:
            return None
        if message not in corrected:
            i, j = starts.index(message.init_time), task.lead_times.index(message.lead_time)
            # In single precision, members that the file tells apart may be equal and lose their order.
            exact = np.empty((len(raw.numbers), len(task.targets), *raw.grid.shape), np.float64)
            raw.read(i, j, exact)
            sample = read_sample(forecasts, task, corrector.static, i, j)
            members = forecast(corrector, sample, torch.from_numpy(exact)).numpy()
            for k, (variable, lattice) in enumerate(zip(task.targets, lattices, strict=True)):
                for number, field in zip(raw.numbers, lattice.round(members[:, k]), strict=True):
                    corrected[message._replace(variable=variable, number=number)] = field
        # Each message is asked for once; a forecast is held only until its last member is written.
        return corrected.pop(message)

    return rewrite(source, target, correction)


if __name__ == "__main__":
    main()
