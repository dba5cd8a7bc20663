"""Steps and time until the U-Net of `twin_joint_unet` has the validation CRPS of the former U-Nets.

The experiment `twin_unet` trains the former U-Net of each task. Each of these networks reads eleven fields, corrects
one target and starts at the raw ensemble. All runs have the epochs of their experiment and one thread. After every
epoch the CRPS of each target is measured, 48 h ahead on the validation years, weighted by area. A former run is
compared at its best epoch. Time is the CPU time of the training thread, without validation. The run of
`twin_joint_unet` learns all three targets at once, and its time is compared with the time of each former run alone.
Prepare the data first:

    deepweather prepare data=twin
    deepweather prepare data=twin task=joint_tendencies store=stores/joint moments=true
    python -m benchmarks.time_to_skill [--json] [--path data/twin] [--store stores/joint]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from benchmarks.common import command_line, report
from data_pipeline.sample import Sample, verifiable

TASKS = {"2t": "t2m", "t@850": "t850", "z@500": "z500"}
"""The former run of each target."""
LEAD = 48


class Curve(pl.Callback):
    """Writes step, seconds of training and CRPS of each target after every validation to the JSON file `path`."""

    def __init__(self, path: str) -> None:
        self._path, self._seconds, self._began = Path(path), 0.0, 0.0
        self._sums: dict[str, float] = {}
        self._weight = 0.0
        self._points: list[dict[str, Any]] = []

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Sample, batch_idx: int) -> None:
        """Start the clock."""
        self._began = time.thread_time()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: Any, outputs: object, batch: Sample, batch_idx: int
    ) -> None:
        """Add the time of a step."""
        self._seconds += time.thread_time() - self._began

    def on_validation_epoch_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Reset the sums."""
        self._sums, self._weight = dict.fromkeys(map(str, module.corrector.task.targets), 0.0), 0.0

    @torch.no_grad()
    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        module: Any,
        outputs: object,
        batch: Sample,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add the CRPS of a batch."""
        corrector = module.corrector
        truth = verifiable(batch, corrector.task.target_channels)
        crps = corrector(batch).crps(truth)[batch.lead_time == LEAD].double()
        weights = torch.tensor(corrector.grid.weights, dtype=torch.float64)[:, None].expand(crps.shape[-2:])
        for name, own in zip(self._sums, crps.movedim(1, 0), strict=True):
            self._sums[name] += float((own * weights).sum())
        self._weight += float(weights.sum()) * len(crps)

    def on_validation_epoch_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Write the curve so far."""
        point = {name: total / self._weight for name, total in self._sums.items()}
        self._points.append({"step": trainer.global_step, "seconds": self._seconds, "crps": point})
        self._path.write_text(json.dumps(self._points))


def train(folder: Path, name: str, *options: str) -> list[dict[str, Any]]:
    """Train an experiment and return its curve."""
    curve = folder / f"{name}.json"
    command = [
        sys.executable, "-m", "scripts.deepweather", "train", *options,
        "trainer.emos_minutes=0", f"run_dir={folder / name}",
        f"trainer.callbacks=[{{_target_: benchmarks.time_to_skill.Curve, path: {curve}}}]",
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    points: list[dict[str, Any]] = json.loads(curve.read_text())
    return points


def reached(curve: list[dict[str, Any]], target: str, crps: float) -> dict[str, Any] | None:
    """Return the first point of a curve with this CRPS or less.

    >>> points = [{"step": k, "crps": {"2t": 1 / k}} for k in (1, 2, 4)]
    >>> reached(points, "2t", 0.5)["step"], reached(points, "2t", 0.1)
    (2, None)
    """
    return next((point for point in curve if point["crps"][target] <= crps), None)


def main() -> None:
    """Train all four networks, print the table and the ratios."""
    parser = command_line(__doc__)
    parser.add_argument("--path", default="data/twin", help="folder of the twin's data")
    parser.add_argument("--store", default="stores/joint", help="store of task=joint_tendencies with moments")
    arguments = parser.parse_args()
    data, ratios = f"data.path={arguments.path}", {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        joint = train(folder, "joint", "experiment=twin_joint_unet", data, f"store={arguments.store}")
        for target, task in TASKS.items():
            former = min(
                train(folder, task, "experiment=twin_unet", f"task={task}", data),
                key=lambda point: float(point["crps"][target]),
            )
            found = reached(joint, target, former["crps"][target])
            final = joint[-1]["crps"][target]
            print(
                f"{target}: CRPS {former['crps'][target]:.4g} after {former['step']} steps, {former['seconds']:.0f} s"
            )
            if found is None:
                print(f"    twin_joint_unet ends at {final:.4g}")
                ratios |= {f"steps_{task}": float("inf"), f"time_{task}": float("inf")}
                continue
            print(
                f"    twin_joint_unet has it after {found['step']} steps, {found['seconds']:.0f} s; ends at {final:.4g}"
            )
            ratios[f"steps_{task}"] = found["step"] / former["step"]
            ratios[f"time_{task}"] = found["seconds"] / former["seconds"]
    report("time_to_skill", ratios, arguments.json)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
