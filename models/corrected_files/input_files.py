"""The files that `correct` reads and writes: their formats, and the cycles of a folder or a pattern.

If `output` is a file, all inputs are one data set. If `output` is a folder, each input gets a corrected file of its
name there, and files that share a start belong together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np

from data_pipeline.common.errors import InputError
from data_pipeline.common.file_format import (
    EMPTY_FORMAT,
    GRIB_FORMAT,
    HDF5_FORMAT,
    NETCDF_FORMAT,
    REFERENCE_FORMAT,
    UNKNOWN_FORMAT,
    ZARR_FORMAT,
    file_format,
    wrong_format,
)
from data_pipeline.common.files import expand_paths, is_zarr_folder
from data_pipeline.formats.cycles import group_by_start
from data_pipeline.formats.registry import format_of
from data_pipeline.formats.system_files import SystemFiles
from data_pipeline.formats.table.table_file import STATIONS, TABLE_FORMATS, is_table

FileType = Literal["grib", "netcdf", "table", "zarr"]
ENDINGS: dict[FileType, tuple[str, ...]] = {
    "grib": (".grib", ".grib1", ".grib2", ".grb", ".grb1", ".grb2", ".gb", ".gb2"),
    "netcdf": (".nc", ".nc4", ".cdf", ".netcdf"),
    "table": (".csv", ".parquet"),
    "zarr": (".zarr",),
}
"""File name endings of each format. An output whose name has no such ending gets the format of the input."""
OTHER_FORMATS = (
    ".h5", ".hdf", ".hdf5", ".npy", ".npz", ".safetensors", ".zip", ".gz", ".bz2", ".xz", ".zst",
    ".tar", ".json",
)  # fmt: skip
"""File name endings of formats that are not written."""
_NAMES = {"grib": "GRIB", "netcdf": "NetCDF", "table": "a table", "zarr": "a Zarr store"}
_STORE_ENDINGS = (".zarr", ".icechunk", ".json", ".parq", ".zip")
"""File name endings of inputs that are read as Zarr."""
_SHOWN = 3
"""Number of files that a message names; it only counts further files."""


@dataclass(frozen=True)
class Cycle:
    """Files that belong together, all of one format, and the files to write.

    `outputs` has one file, or one for each input. `problem` says why the files cannot be corrected; it is empty unless
    one of them cannot be read at all.
    """

    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    output_type: FileType = "grib"
    problem: str = ""

    def __str__(self) -> str:
        return name_files(self.inputs)


@dataclass(frozen=True)
class InputFiles:
    """The files of the option `input`, in order; `left_out` are files of a folder or a pattern in other formats."""

    paths: tuple[Path, ...]
    left_out: tuple[Path, ...] = ()
    systems: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    """The files of each forecast system, if the option names systems."""

    def numbered(self, paths: Sequence[Path], systems: Sequence[str]) -> Sequence[Path]:
        """Return some of the files with numbers of members of their own; `systems` are all that a corrector knows."""
        if not self.systems:
            return paths
        some = {name: [path for path in own if path in paths] for name, own in self.systems.items()}
        found = SystemFiles.of({name: own for name, own in some.items() if own}, "input", systems or [*some])
        return cast("Sequence[Path]", found)

    @classmethod
    def find(cls, value: object) -> InputFiles:
        """Return the files of the option: a file, a folder, a pattern, a list of them, or such lists by system.

        Files of a folder or a pattern that are neither GRIB nor NetCDF are left out, and so are tables, unless there
        are only tables. A file named by itself must be GRIB, NetCDF or a table. A folder that is a Zarr store is one
        input. Other folders in a folder are not searched; files whose name starts with a dot are never read.
        """
        if isinstance(value, Mapping):
            parts = {str(name): cls.find(own) for name, own in value.items()}
            paths, left_out = (
                sum((getattr(one, name) for one in parts.values()), ()) for name in ("paths", "left_out")
            )
            return cls(paths, left_out, {name: one.paths for name, one in parts.items()})
        values = value if isinstance(value, list) else [value]
        if not values:
            raise InputError("input is an empty list; name at least one file")
        found: dict[Path, bool] = {}
        for each in values:
            if not isinstance(each, str) or not each:
                raise InputError(
                    f"input must be a file, a folder, a pattern, or a list of them, got {each!r}; write a number as "
                    f"./{each}"
                )
            path = Path(each).expanduser()
            is_store = path.is_dir() and file_format(path) is ZARR_FORMAT
            if path.is_dir() and not is_store:
                found |= dict.fromkeys(_files_of(path), False) | found
            elif path.is_file() or is_store:
                if found.get(path):
                    raise InputError(f"input names {path} twice; name each file once")
                found[path] = True
            else:
                found |= dict.fromkeys(_matches(each), False) | found
        paths, left_out = list[Path](), list[Path]()
        for path, named in found.items():
            known = is_forecast_file(path)
            if named and not known and not is_table(path):
                raise wrong_format(path, "GRIB or NetCDF")
            (paths if known or named else left_out).append(path)
        if not paths:
            paths = [path for path in left_out if is_table(path) and path.stem != STATIONS]
            left_out = [path for path in left_out if path not in paths]
        if not paths:
            raise InputError(
                f"none of the {len(left_out)} files of input={value} is GRIB or NetCDF: {name_files(left_out)}; check "
                "the path"
            )
        return cls(tuple(paths), tuple(left_out))

    @property
    def note(self) -> str:
        """A sentence about the files that are left out; empty if there are none."""
        if not self.left_out:
            return ""
        verb = "file is" if len(self.left_out) == 1 else "files are"
        return f"{len(self.left_out)} input {verb} left out, neither GRIB nor NetCDF: {name_files(self.left_out)}"


def is_forecast_file(path: Path) -> bool:
    """Whether a file is GRIB or NetCDF by its first bytes, a Zarr store, or empty.

    An empty file is a forecast that failed.
    """
    found = file_format(path)
    if found is UNKNOWN_FORMAT:
        return path.suffix.lower() in (*ENDINGS["grib"], *ENDINGS["netcdf"])
    return found in (GRIB_FORMAT, NETCDF_FORMAT, HDF5_FORMAT, ZARR_FORMAT, REFERENCE_FORMAT, EMPTY_FORMAT)


def type_of(path: Path) -> FileType:
    """Return the format of an input."""
    found = file_format(path)
    if found in (EMPTY_FORMAT, UNKNOWN_FORMAT):
        raise wrong_format(path, "GRIB or NetCDF")
    if found in (ZARR_FORMAT, REFERENCE_FORMAT):
        return "zarr"
    if found in TABLE_FORMATS:
        return "table"
    return "grib" if found is GRIB_FORMAT else "netcdf"


def is_folder(output: str) -> bool:
    """Whether the option `output` names a folder of files: it exists, or its name ends in a slash, but not in .zarr."""
    path = Path(output).expanduser()
    return path.suffix.lower() not in ENDINGS["zarr"] and (output.endswith(("/", os.sep)) or path.is_dir())


def find_cycles(
    files: InputFiles, output: object, wanted: FileType | None = None, names: Mapping[str, str] | None = None
) -> list[Cycle]:
    """Return the cycles to correct, in the order of their first files.

    `wanted` is the option `format`: a key of `ENDINGS`, or None for the format of the output's name, else of the input.
    """
    if not isinstance(output, str) or not output:
        raise InputError(f"output must be the path of one file or folder, got {output!r}; write a number as ./{output}")
    if wanted not in (None, *ENDINGS):
        raise InputError(f"format must be grib, netcdf, table, zarr or null, got {wanted!r}")
    if is_folder(output):
        return _cycles_of_folder(files, Path(output).expanduser(), wanted, names)
    path = Path(output).expanduser()
    types = {type_of(each): each for each in reversed(files.paths)}
    if len(types) > 1:
        (one, first), (other, second), *_ = types.items()
        raise InputError(
            f"{second} is {_NAMES[other]} and {first} is {_NAMES[one]}; files that are corrected together have one "
            "format, so convert one of them, or name a folder as output"
        )
    (own,) = types
    refuse_same_file(path, files.paths)
    return [Cycle(files.paths, (path,), _output_type(path, own, wanted))]


def _cycles_of_folder(
    files: InputFiles, folder: Path, wanted: FileType | None, names: Mapping[str, str] | None
) -> list[Cycle]:
    cycles: list[tuple[int, Cycle]] = []
    readable: dict[FileType, list[tuple[int, Path, np.ndarray]]] = {own: [] for own in get_args(FileType)}
    outputs: dict[Path, Path] = {}
    for number, path in enumerate(files.paths):
        try:
            own = type_of(path)
            readable[own].append((number, path, format_of(path).starts(path, names)))
        except InputError as error:
            cycles.append((number, Cycle((path,), (), problem=str(error))))
    for own, found in readable.items():
        for group in group_by_start([starts for _, _, starts in found]):
            members = tuple(found[k][1] for k in group)
            written: FileType = wanted or ("netcdf" if own == "zarr" else own)
            named = members if written == own != "zarr" else members[:1]  # a new file holds the fields of all
            targets = tuple(folder / _output_name(path, own, written) for path in named)
            for path, target in zip(named, targets, strict=True):
                if other := outputs.get(target):
                    raise InputError(
                        f"{other} and {path} would both be written to {target}; correct them into different folders"
                    )
                outputs[target] = path
                refuse_same_file(target, files.paths)
            cycles.append((found[group[0]][0], Cycle(members, targets, written)))
    return [cycle for _, cycle in sorted(cycles, key=lambda pair: pair[0])]


def _output_name(path: Path, own: FileType, wanted: FileType) -> str:
    """Return the name of an input's corrected file; a change of format changes the ending."""
    if wanted == own != "zarr":
        return path.name
    endings = _STORE_ENDINGS if own == "zarr" else ENDINGS[own]
    stem = path.stem if path.suffix.lower() in endings else path.name
    return f"{stem}{ENDINGS[wanted][0]}"


def _output_type(path: Path, own: FileType, wanted: FileType | None) -> FileType:
    """Return the format to write to `path`."""
    ending = path.suffix.lower()
    named = next((name for name, endings in ENDINGS.items() if ending in endings), None)
    if ending in OTHER_FORMATS:
        raise InputError(
            f"output={path} ends in {path.suffix}, but correct writes GRIB, NetCDF and Zarr; choose another name, such "
            f"as {path.with_suffix('.grib')}"
        )
    if wanted and named and wanted != named:
        raise InputError(
            f"output={path} ends in {path.suffix}, the name of {_NAMES[named]}, but format={wanted}; remove format, or "
            f"choose another name, such as {path.with_suffix(ENDINGS[wanted][0])}"
        )
    chosen = wanted or named or ("netcdf" if own == "zarr" else own)
    if chosen == "table" and own != "table":
        raise InputError(
            f"{path} would be a table, which is written from a table only, and the input is {_NAMES[own]}; choose "
            f"another name, such as {path.with_suffix('.nc')}"
        )
    return chosen


def refuse_same_file(output: Path, inputs: Sequence[Path]) -> None:
    """Raise `InputError` if an output is one of the inputs."""
    for path in inputs:
        if output.resolve() == path.resolve() or (output.exists() and output.samefile(path)):
            raise InputError(f"{output} is the file to read; name another file or folder to write")


def name_files(paths: Sequence[Path]) -> str:
    """Return the names of a few files, and the number of others."""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN + 1 else ""
    return ", ".join(str(path) for path in (paths[:_SHOWN] if more else paths)) + more


def _files_of(folder: Path) -> list[Path]:
    """Return the files and Zarr stores of a folder, sorted by name, without hidden files and index files (`.idx`)."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"cannot read the folder {folder} ({error.strerror})") from None
    files = [
        path
        for path in entries
        if (path.is_file() or is_zarr_folder(path)) and not path.name.startswith(".") and path.suffix != ".idx"
    ]
    if not files:
        raise InputError(f"the folder {folder} has no files; check input")
    return files


def _matches(pattern: str) -> list[Path]:
    return [path for path in expand_paths(pattern) if not path.name.startswith(".")]
