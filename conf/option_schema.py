"""The JSON schema of a file of options, with which editors complete names and underline wrong ones and wrong values.

`deepweather VERB --help schema` prints the schema. The type of an option is the type of the argument that it sets.
"""

from __future__ import annotations

import importlib
import re
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from conf.command_line import SHORT, UNSET, parse_value
from conf.help_text import files_of
from conf.option_files import Option, read_option_file

SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null"}
"""JSON's names of types."""
INTERPOLATION = {"type": "string", "pattern": r"\$\{"}
"""A value that is taken from another option."""


def option_schema(verb: str) -> dict[str, Any]:
    """Return the schema of the options of `deepweather VERB`."""
    own = read_option_file(Path(__file__).parent / f"{verb}.yaml")
    found = {one.name: _described(one) for one in own.options}
    for place, default in own.groups.items():
        group, _, prefix = place.partition("@")
        files = files_of(group)
        choices = [*files, None] if default is None else [*files]
        found[group] = {"enum": choices, "default": default, "description": f"a file of conf/{group}"}
        for name, file in files.items() if group != "experiment" else ():
            for option in file.options:
                key, made = f"{prefix or group}.{option.name}", _described(option)
                if name != default:
                    made.pop("default", None)
                found[key] = _merged(found[key], made) if key in found else made
    found |= {name: found[f"data.{name}"] for name in SHORT if f"data.{name}" in found}
    mappings = [name for name, one in found.items() if {"type": "object"} in one.get("anyOf", [])]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"options of deepweather {verb}",
        "type": "object",
        "properties": found,
        # Members of a mapping, options that no file has, and options of Hydra.
        "patternProperties": {rf"^{re.escape(name)}\.": {} for name in mappings} | {r"^[+~]|^hydra[./]": {}},
        "additionalProperties": False,
    }


def _described(option: Option) -> dict[str, Any]:
    """Return meaning, default and type of an option."""
    try:
        default = parse_value(option.default)  # YAML alone reads 1e-3 as text
    except ValueError:
        default = yaml.safe_load(option.default)
    found: dict[str, Any] = {"description": option.meaning} if option.meaning else {}
    if default != UNSET and "${" not in option.default:
        found["default"] = default
    hint = _hints(option.owner).get(option.name.rpartition(".")[2]) if option.owner else None
    if hint is None and isinstance(default, bool):
        hint = bool
    parts = None if hint is None else _schemas(hint)
    return found if parts is None else {**found, "anyOf": [*parts, INTERPOLATION]}


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the description of an option that several files of a group have: each of their types is right."""
    found = {**other, **one}
    if "anyOf" in one and "anyOf" in other:
        return {**found, "anyOf": one["anyOf"] + [part for part in other["anyOf"] if part not in one["anyOf"]]}
    found.pop("anyOf", None)
    return found


@cache
def _hints(owner: str) -> Mapping[str, Any]:
    """Return the types of the arguments of a class or function; {} where they cannot be had."""
    module, _, name = owner.rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)
        return get_type_hints(vars(made)["__init__"] if isinstance(made, type) else made)
    except (ImportError, AttributeError, KeyError, NameError, TypeError):
        return {}


def _schemas(hint: Any) -> list[dict[str, Any]] | None:
    """Return the schemas of a type, one of which must hold; None if any value may be right."""
    origin = get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        parts = [_schemas(one) for one in get_args(hint)]
        return None if None in parts else [schema for part in parts if part is not None for schema in part]
    if origin is Literal:
        return [{"enum": list(get_args(hint))}]
    if origin in SCALARS:
        return [{"type": SCALARS[origin]}]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return [{"type": "object"}]
    if isinstance(origin, type) and issubclass(origin, Sequence | set | frozenset):
        return [{"type": "array"}]
    return None
