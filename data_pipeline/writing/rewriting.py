"""Copy a GRIB file with other values in some of its messages, to write corrected forecasts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, NamedTuple

import eccodes
import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.files import atomic_path
from data_pipeline.common.identity import running_hash, sha256_of
from data_pipeline.common.progress import Progress
from data_pipeline.common.threads import BUDGET, BudgetedPool
from data_pipeline.formats.grib.cache import table_of
from data_pipeline.formats.grib.horizontal import Layout
from data_pipeline.formats.grib.keys import opened
from data_pipeline.formats.grib.kind import Kind
from data_pipeline.formats.grib.lattice import Lattice
from data_pipeline.formats.grib.names import MessageNames
from data_pipeline.formats.grib.scan import damaged_message, scan_messages
from data_pipeline.formats.grib.table import UNIX_EPOCH, Table
from data_pipeline.task import Variable
from data_pipeline.variables.meaning import INSTANT
from data_pipeline.writing.encode import MISSING, rank_of_key
from data_pipeline.writing.marks import SectionError
from data_pipeline.writing.regridder import MessageRegridder
from data_pipeline.writing.repack import missing_values, with_values

AHEAD = 16
"""Most messages that wait to be written; each holds a field in memory."""


class Message(NamedTuple):
    """Variable, start (UTC), lead time (hours), member and interval (minutes, see `Meaning`) of a message."""

    variable: Variable
    init_time: datetime
    lead_time: int
    number: int
    interval: int = INSTANT


class NewMessage(NamedTuple):
    """A message to add after an existing message, as a copy with other `keys` and another `field`.

    `holds` says what the added message must hold when it is read back; None for a statistic, which is not a member. The
    field (H, W) is in the units of the existing message. `header` is applied after `keys`, instead of `Edit.header`.
    """

    holds: Message | None
    keys: Mapping[str, str | int]
    field: np.ndarray
    header: Callable[[bytes], bytes] | None = None


@dataclass(frozen=True)
class Edit:
    """What `rewrite` does with one message."""

    field: np.ndarray | None = None
    """New values (H, W) in the message's units, north first; None keeps the old values."""
    after: tuple[NewMessage, ...] = ()
    """Messages to write after this one."""
    regridder: MessageRegridder | None = None
    """Brings the message to the grid of the new values, if its grid differs."""
    header: Callable[[bytes], bytes] | None = None
    """Function such as `HeaderMarks` that gives other headers to messages with new values and to added messages."""


Correction = Callable[[Message], Edit | None]
"""Function that returns the edit of a message; None copies the message."""


def rewrite(
    sources: str | Path | Sequence[Path],
    target: str | Path,
    correction: Correction,
    names: Mapping[str, str] | None = None,
    before_naming: Callable[[Path, str], None] | None = None,
    only_added: bool = False,
) -> int:
    """Copy all messages of the files `sources` to `target` with the edits of `correction`.

    Return the number of new fields in replaced and added messages, without statistics. A message without an edit is
    copied byte for byte. A message with a new field keeps all keys; it gets as many bits per value as the message of
    its variable with the most bits. Missing values stay missing. A message with several fields is
    written as one message per field. With a regridder, new fields are on its grid, and messages on other grids get this
    grid.

    The file is read back before it gets its name: it must hold all messages, each new field within the precision of its
    packing, and each added message as `NewMessage.holds` states. `names` are the user's names, as in `MessageNames`.
    `before_naming` is called with the temporary file and its SHA-256 before the file gets its name. With `only_added`,
    the file gets the added messages and no others.
    """
    target = Path(target)
    paths = [Path(sources)] if isinstance(sources, str | Path) else list(sources)
    if target.is_dir():
        raise InputError(f"{target} is a folder; name a file to write")
    for source in paths:
        if source.resolve() == target.resolve() or (target.exists() and source.exists() and source.samefile(target)):
            raise InputError(f"{target} is the file to read; name another file to write")
    tables = [table_of(source) for source in paths]
    with atomic_path(target) as partial:
        count = sum(len(table.records) for table in tables)
        with (
            partial.open("wb") as file, BudgetedPool(BUDGET.total) as pool,
            Progress("writing: message", count) as progress,
        ):  # fmt: skip
            writer = _EditedFile(file, pool, paths, MessageNames(names or {}), names, correction, only_added)
            for table in tables:
                for _ in writer.copy(table):
                    progress.step()
        messages_written = (0 if only_added else count) + len(writer.added) + writer.statistics
        with Progress(f"checking {target.name}"):
            _check_file(partial, target, messages_written, writer.digest.hexdigest())
        if writer.added and (lost := set(writer.added) - set(_messages(Table.of(partial), writer.own_names))):
            raise _cannot_hold(paths[0], min(lost))
        if before_naming:
            with Progress(f"comparing {target.name} with the input"):
                before_naming(partial, writer.digest.hexdigest())
    return writer.fields


class _EditedFile:
    """Writes the messages of tables with their edits to an open file; counts new fields and added messages.

    Threads of `pool` encode new fields while the next fields are computed. At most `AHEAD` messages wait.
    """

    def __init__(
        self,
        file: IO[bytes],
        pool: BudgetedPool,
        paths: Sequence[Path],
        own_names: MessageNames,
        names: Mapping[str, str] | None,
        correction: Correction,
        only_added: bool,
    ) -> None:
        self._file, self._pool, self._paths, self._names, self._only_added = file, pool, paths, names, only_added
        self._correction, self.own_names = correction, own_names
        self.fields, self.statistics, self.digest = 0, 0, running_hash()
        self.added: list[Message] = []
        self._bits: dict[Variable, int] = {}
        self._waiting: deque[list[bytes] | Future[list[bytes]]] = deque()

    def copy(self, table: Table) -> Iterator[None]:
        """Write all messages of a file; yield after each message."""
        with table.path.open("rb", buffering=0) as original:
            for record in table.records:
                old = table.message(original.fileno(), record)
                kind = table.kinds[record["kind"]]
                message = _message(self.own_names.variable(kind), kind, record)
                edit = self._correction(message) if message else None
                if message is None or edit is None:
                    self._waiting.append([] if self._only_added else [old])
                else:
                    self.fields += (edit.field is not None) + sum(addition.holds is not None for addition in edit.after)
                    self.added += [addition.holds for addition in edit.after if addition.holds]
                    self.statistics += sum(addition.holds is None for addition in edit.after)
                    bits = self._bits_of(message.variable) if edit.field is not None or edit.after else 0
                    made = self._pool.submit(
                        _edited, old, kind.layout, edit, message, bits, table.path, int(record["offset"])
                    )
                    self._waiting.append(made)
                self._write(AHEAD)
                yield
        self._write(0)

    def _write(self, ahead: int) -> None:
        """Write waiting messages in order until at most `ahead` are left."""
        while len(self._waiting) > ahead:
            first = self._waiting.popleft()
            made = first if isinstance(first, list) else first.result()[self._only_added :]
            for message in made:
                self.digest.update(message)
                self._file.write(message)

    def _bits_of(self, variable: Variable) -> int:
        if variable not in self._bits:
            self._bits[variable] = Lattice.of(self._paths, variable, self._names).bits
        return self._bits[variable]


def _edited(
    old: bytes, layout: Layout, edit: Edit, message: Message, bits: int, path: Path, offset: int
) -> list[bytes]:
    """Return the edited message `old`, from byte `offset` of a file, and the messages added after it."""
    try:
        found = [old]
        if edit.field is not None:
            new = edit.header(old) if edit.header else old
            found = [_replace(new, layout, edit.field, bits, message, edit.regridder)]
        for addition in edit.after:
            keyed = _with_keys(old, addition.keys, path, addition.holds or message)
            if header := addition.header or edit.header:
                keyed = header(keyed)
            if not (edit.regridder and edit.regridder.needs(layout)):
                keyed = _with_missing(keyed, layout, addition.field)
            found.append(_replace(keyed, layout, addition.field, bits, message, edit.regridder))
        return found
    except eccodes.CodesInternalError as error:
        raise damaged_message(path, offset, f"cannot be read or written by ecCodes ({error})") from None
    except SectionError as error:
        raise damaged_message(path, offset, error) from None


def messages(source: str | Path, names: Mapping[str, str] | None = None) -> Iterator[Message]:
    """Return the messages of a file that `rewrite` can replace, in file order."""
    return _messages(table_of(Path(source)), MessageNames(names or {}))


def _messages(table: Table, names: MessageNames) -> Iterator[Message]:
    variables = [names.variable(kind) for kind in table.kinds]
    for record in table.records:
        kind = int(record["kind"])
        if message := _message(variables[kind], table.kinds[kind], record):
            yield message


def _message(variable: Variable | None, kind: Kind, record: np.void) -> Message | None:
    """Return the contents of a message; None if its product, grid, level or step cannot be corrected."""
    if not variable or not kind.layout.readable or record["step"] < 0 or record["step"] % 60:
        return None
    start = UNIX_EPOCH + timedelta(seconds=int(record["init"]))
    return Message(variable, start, int(record["step"]) // 60, int(record["number"]), int(record["interval"]))


def _with_keys(old: bytes, keys: Mapping[str, str | int], source: Path, holds: Message) -> bytes:
    """Return the message `old` with other `keys`; an `InputError` for `holds` if ecCodes cannot set them."""
    try:
        with opened(old) as handle:
            for name in sorted(keys, key=rank_of_key):
                eccodes.codes_set(handle, name, keys[name])
            return eccodes.codes_get_message(handle)
    except eccodes.CodesInternalError:
        raise _cannot_hold(source, holds) from None


def _with_missing(old: bytes, layout: Layout, field: np.ndarray) -> bytes:
    """Return the message `old` with missing values where the new `field` has missing values."""
    if not (missing := np.isnan(field)).any():
        return old
    with opened(old) as handle:
        eccodes.codes_set(handle, "bitmapPresent", 1)
        eccodes.codes_set_double(handle, "missingValue", MISSING)
        eccodes.codes_set_double_array(handle, "values", layout.store(np.where(missing, MISSING, 0.0)))
        return eccodes.codes_get_message(handle)


def _cannot_hold(source: Path, message: Message) -> InputError:
    return InputError(
        f"a message like those of {source} cannot hold {message.variable} over {message.interval / 60:g} h at "
        f"+{message.lead_time} h; write the input as GRIB2 first, for instance with ecCodes' grib_set -s edition=2 "
        "IN OUT"
    )


def _replace(
    old: bytes, layout: Layout, field: np.ndarray, bits: int, message: Message, regridder: MessageRegridder | None
) -> bytes:
    """Return the message `old` with the values of `field`, packed in `bits` per value."""
    if regridder and regridder.needs(layout):
        old, layout, missing = regridder.regrid(old, layout)
        return with_values(old, layout, field, missing, bits, message)
    return with_values(old, layout, field, missing_values(old, layout), bits, message)


def _check_file(partial: Path, target: Path, count: int, digest: str) -> None:
    """Raise an error unless the file on disk holds exactly the written bytes and `count` messages."""
    if sha256_of(partial) != digest or sum(1 for _ in scan_messages(partial)) != count:
        raise RuntimeError(f"{target} differs from the written bytes when read back; it was not kept")
