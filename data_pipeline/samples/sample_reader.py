"""Read one sample: convert fields of a data source to tensors, in memory that is reused."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from data_pipeline.dates import epoch_seconds
from data_pipeline.grid import Grid
from data_pipeline.protocols import ALL, DataSource, Fields
from data_pipeline.sample import Sample
from data_pipeline.samples.inputs import static_values
from data_pipeline.samples.pseudo_members import complete_cells, read_moments
from data_pipeline.task import Task


def read_sample(
    ensemble: Fields,
    static: Tensor,
    target: Tensor,
    init: int,
    lead: int,
    rows: slice = ALL,
    columns: slice = ALL,
    members: Sequence[int] | None = None,
    moments: bool = False,
    buffers: Buffers | None = None,
) -> Sample:
    """Read one forecast at the positions `init` and `lead` of `ensemble`, with its truth `target`.

    `static` holds the static fields of the tile. With `moments`, two pseudo-members replace the `members`. `buffers`,
    if given, provides the memory.
    """
    wanted = ensemble.cells[init, lead] if members is None else ensemble.cells[init, lead, list(members)]
    values = (buffers or Buffers()).empty((2 if moments else len(wanted), *wanted.shape[1:], *static.shape[1:]))
    if moments:
        read_moments(ensemble.reader, wanted, values, (rows, columns))
    else:
        ensemble.read(wanted, values, (rows, columns))
    return Sample(
        ensemble=torch.from_numpy(values),
        # Both pseudo-members are missing in the same cells, so one of them is enough for the mask.
        mask=torch.from_numpy(complete_cells(values[:1] if moments else values)),
        static=static,
        target=target,
        init_time=torch.tensor(int(epoch_seconds(ensemble.init_times[init]))),
        lead_time=torch.tensor(int(ensemble.lead_times[lead])),
    )


def static_fields(grid: Grid, task: Task, source: DataSource) -> Tensor:
    """Return the static channels of a task, (S, H, W); see `inputs.static_values`."""
    return torch.from_numpy(static_values(grid, task, source))


class _Memory(np.ndarray):
    """Memory of a buffer.

    It has a separate type, because a NumPy view refers to the first array of the view's type. So all views refer to the
    array `base` in `Buffers.empty`, not to this memory.
    """


class Buffers:
    """Float32 arrays whose memory is reused when neither the array nor a view of it is referenced any more.

    The operating system clears new memory page by page, which takes about as long as reading a field. At most
    `max_free` unused buffers are kept. The class is thread-safe.
    """

    def __init__(self, max_free: int = 2) -> None:
        self._max_free = max_free
        self._free: deque[_Memory] = deque(maxlen=max_free)

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an uninitialised array of `shape`."""
        size = int(np.prod(shape))
        try:
            memory = self._free.pop()
        except IndexError:
            memory = None
        if memory is None or memory.size != size:
            memory = _Memory(size, np.float32)
        # All views of the returned array refer to `base`. When `base` is collected, the memory is no longer in use.
        base = memory.view(np.ndarray)
        weakref.finalize(base, self._free.append, memory).atexit = False
        return base.reshape(shape)

    def __reduce__(self) -> tuple[type[Buffers], tuple[int]]:
        """Return the limit only, so that pickling leaves out the memory."""
        return Buffers, (self._max_free,)
