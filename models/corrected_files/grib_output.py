"""GRIB output: the messages of the inputs with corrected members in place of the raw ones."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import remove_abandoned_files
from data_pipeline.formats.grib.cache import table_of
from data_pipeline.formats.grib.lattice import Lattice
from data_pipeline.formats.grib.names import MessageNames
from data_pipeline.formats.system_files import SystemFiles, added_number
from data_pipeline.writing import (
    Edit,
    HeaderMarks,
    Message,
    MessageRegridder,
    NewMessage,
    StatisticHeader,
    read_back,
    rewrite,
)
from models.corrected_files.field_spool import FieldSpool
from models.corrected_files.sidecar import WrittenFile, sidecar_path
from models.corrected_files.target_messages import TargetMessages
from models.correction.corrected import Corrected
from models.correction.pipeline import CorrectionPipelines


def write_grib(
    pipelines: CorrectionPipelines,
    forecasts: Sequence[Path],
    outputs: Sequence[Path],
    names: Mapping[str, str] | None = None,
) -> tuple[list[WrittenFile], list[str]]:
    """Copy the messages of `forecasts` to one output, or of each file to its own output, with corrected members.

    If only products are made, an output has these and no other messages. Return the outputs, a sentence for each input
    grid that differs from the corrector's, and a sentence about new messages. Files that a killed run left beside the
    outputs are removed.
    """
    for folder in {output.parent for output in outputs}:
        if folder.is_dir():
            remove_abandoned_files(folder)
    with ExitStack() as spools:
        editors: list[PipelineEditor] = []
        for number in range(len(pipelines)):
            spool = spools.enter_context(FieldSpool(outputs[0]))
            editors.append(PipelineEditor(pipelines, number, forecasts, names, spool, editors))

        def correction(added: int, message: Message) -> Edit | None:
            edits = (editor.edit(message, added) for editor in editors)
            return next((edit for edit in edits if edit is not None), None)

        if isinstance(forecasts, SystemFiles) and len(outputs) < len(forecasts):
            raise InputError(
                f"{outputs[0]} would hold members of several systems with equal numbers; name a folder as output, so "
                "that each input gets a corrected file of its name"
            )
        groups = [tuple(forecasts)] if len(outputs) == 1 else [(path,) for path in forecasts]
        written = []
        for group, output in zip(groups, outputs, strict=True):
            audit: dict[str, Any] = {}
            check = partial(_check, audit, output, group, pipelines, names)
            edit = partial(correction, added_number(forecasts, group[0]))
            count = rewrite(group, output, edit, names, check, pipelines[0].options.only_products)
            written.append(WrittenFile(output, group, count, audit))
    return written, [sentence for editor in editors for sentence in editor.sentences()]


def _check(
    audit: dict[str, Any],
    output: Path,
    inputs: Sequence[Path],
    pipelines: CorrectionPipelines,
    names: Mapping[str, str] | None,
    unfinished: Path,
    sha256: str,
) -> None:
    """Put SHA-256 and `read_back` of an unfinished output into `audit`; raise unless it has all messages.

    An output of products alone is compared with no input, and must not be empty.
    """
    audit.update(sha256=sha256)
    if pipelines[0].options.only_products:
        pipelines.refuse_nothing(output)
        if not unfinished.stat().st_size:
            raise InputError(
                f"{output} would have no products: each follows the first member of its forecast, which is in another "
                "input; name one file as output"
            )
    else:
        variables = [variable for pipeline in pipelines for variable in pipeline.engine.description.task.targets]
        audit.update(read_back(unfinished, inputs, variables, names))
        if not audit["headers"]:
            raise RuntimeError(f"{output} lacks messages of the input when read back; it was not kept")
    sidecar_path(output).unlink(missing_ok=True)  # it describes the older file


class PipelineEditor:
    """Makes the edits of messages that one pipeline corrects; `editors` holds the editors of all pipelines."""

    def __init__(
        self,
        pipelines: CorrectionPipelines,
        number: int,
        forecasts: Sequence[Path],
        names: Mapping[str, str] | None,
        spool: FieldSpool,
        editors: Sequence[PipelineEditor],
    ) -> None:
        pipeline, self._spool, self._editors = pipelines[number], spool, editors
        description = pipeline.engine.description
        self._pipelines, self._number, self._task = pipelines, number, description.task
        self._targets = TargetMessages.of(description.task, pipeline.raw.meanings, forecasts, names)
        # If members were packed one by one, two that differ by less than a packing step could change their order.
        self._lattices = [Lattice.of(forecasts, variable, names) for variable in self._targets.variables]
        self._added: set[Hashable] = set()
        self._new_targets: set[str] = set()
        self._header = HeaderMarks(pipeline.options.template, pipeline.options.mark, pipeline.options.keys)
        self._raw: set[Hashable] = set()
        """Forecasts that keep the fields of the raw ensemble: their messages are not marked as corrected."""
        self._regridder = MessageRegridder(description.target_grid) if description.target_grid else None
        self._only_products = pipeline.options.only_products
        self._statistics: dict[Hashable, list[tuple[StatisticHeader, np.ndarray]]] = {}
        """Products by target and forecast, kept until the first message of the target and forecast is written."""
        self._corrected: set[Hashable] = set()
        """Forecasts that were corrected."""
        if pipeline.options.keys:
            self._check_keys(forecasts, names)

    def edit(self, message: Message, added: int = 0) -> Edit | None:
        """Return the edit of a message; None if this pipeline does not correct it.

        `added` is the difference between the number of the corrected member and that in the message.
        """
        found = self._targets.mode_of(message)
        if found is None:
            return None
        target, mode = found
        key = target, message.init_time, message.lead_time, message.number + added
        if key in self._added:
            return Edit()
        if key not in self._spool and not (self._only_products and key[1:3] in self._corrected):
            self._correct(message)
        if self._only_products:
            keys = self._targets.new_keys(target, message) if mode == "add" else {}
            return Edit(after=self._take_statistics(key, keys), regridder=self._regridder)
        field = self._spool.take(key)
        header = None if key[1:3] in self._raw else self._header
        if mode == "replace":
            statistics = self._take_statistics(key, {})
            return Edit(field, after=statistics, regridder=self._regridder, header=header)
        self._added.add(key)
        self._new_targets.add(str(self._task.targets[target]))
        keys = self._targets.new_keys(target, message)
        new = NewMessage(self._targets.new_message(target, message), keys, field)
        return Edit(after=(new, *self._take_statistics(key, keys)), regridder=self._regridder, header=header)

    def _take_statistics(self, key: tuple[Hashable, ...], keys: Mapping[str, str | int]) -> tuple[NewMessage, ...]:
        """Return the messages of a forecast's products, which follow its first message; members have these `keys`."""
        found = self._statistics.pop(key[:3], ())
        return tuple(NewMessage(None, keys, field, partial(self._header.of_product, header)) for header, field in found)

    def _correct(self, message: Message) -> None:
        """Put all corrected fields of the message's forecast into the spools of all pipelines that correct it."""
        start = np.datetime64(message.init_time.replace(tzinfo=None), "s")
        for editor in self._editors:
            editor._spool.make_room()
        for number, corrected in self._pipelines.request_all(start, message.lead_time).items():
            self._editors[number].keep(corrected, message)

    def _check_keys(self, forecasts: Sequence[Path], names: Mapping[str, str] | None) -> None:
        """Set the option `keys` in one message of each kind that is corrected, before anything is computed."""
        own_names = MessageNames(names or {})
        for path in forecasts:
            table = table_of(path)
            with path.open("rb", buffering=0) as file:
                for record in table.records[np.unique(table.records["kind"], return_index=True)[1]]:
                    if own_names.variable(table.kinds[record["kind"]]) in self._targets.variables:
                        self._header(table.message(file.fileno(), record))

    def keep(self, corrected: Corrected, message: Message) -> None:
        """Put the corrected fields of the message's forecast into the spool."""
        assert corrected.members is not None
        self._corrected.add((message.init_time, message.lead_time))
        if corrected.method == "raw":
            self._raw.add((message.init_time, message.lead_time))
        fields: dict[Hashable, np.ndarray] = {}
        for k, (lattice, factor) in enumerate(zip(self._lattices, self._targets.factors, strict=True)):
            members = corrected.members[:, k]
            if factor != 1:
                members /= factor
            rounded = lattice.round(members, out=members)
            for number, field in zip(corrected.numbers, rounded, strict=True):
                fields[k, message.init_time, message.lead_time, number] = field
        self._spool.add(fields)
        for product, field in corrected.products:
            if self._regridder and np.isnan(field).any():
                raise InputError(
                    f"{product.text} of {self._task.targets[product.target]} has missing values, which are not written "
                    "on another grid than the input's; leave out products"
                )
            place = product.target, message.init_time, message.lead_time
            factor, conversion = self._targets.factors[product.target], self._lattices[product.target].conversion
            product, values = product.stored(field, factor, conversion)
            values = 100 * values if product.threshold else values  # in per cent
            header = StatisticHeader(product, corrected.raw_members, corrected.climate)
            self._statistics.setdefault(place, []).append((header, values))

    def sentences(self) -> list[str]:
        """Return sentences about input grids that differ from the corrector's, and about new messages."""
        notes = self._regridder.sentences() if self._regridder else []
        if self._added:
            notes.append(
                f"{len(self._added)} of the corrected messages are new ({', '.join(sorted(self._new_targets))}): each "
                "follows a message that it is made from, which is copied unchanged"
            )
        return notes
