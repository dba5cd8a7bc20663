"""The options of a YAML file of conf/: name, default and meaning.

The meaning of an option is the comment on its line and on the comment lines that follow it. A comment after an empty
line, or before the first option, is about the options below it. Options below the line `# Rarely changed:`, up to the
next empty line, are shown by `--help all` only.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from data_pipeline.common.errors import InputError

HIDDEN = {"defaults", "hydra", "_target_", "_recursive_"}
"""Keys of Hydra, which are no options of users."""
RARE = "# Rarely changed:"


@dataclass(frozen=True)
class Option:
    """One option: dotted name within the file, default as YAML text, meaning, its class, and whether it is rare."""

    name: str
    default: str
    meaning: str
    owner: str | None
    rare: bool = False


@dataclass(frozen=True)
class OptionFile:
    """One YAML file: the comment at its head, its options in their order, its class, and the groups that it chooses."""

    path: Path
    about: str
    options: tuple[Option, ...]
    target: str | None
    groups: dict[str, str | None]


def read_option_file(path: Path) -> OptionFile:
    """Return the options of a file; an option without a comment has an empty meaning."""
    lines = path.read_text("utf-8").splitlines()
    root = yaml.compose(path.read_text("utf-8"))
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{path} holds no options; write KEY: VALUE")
    plain = yaml.safe_load(path.read_text("utf-8"))
    return OptionFile(
        path,
        _head(lines),
        tuple(_options(root, lines, "", plain.get("_target_"))),
        plain.get("_target_"),
        _groups(plain.get("defaults", [])),
    )


def _options(node: yaml.MappingNode, lines: list[str], prefix: str, owner: str | None) -> list[Option]:
    """Return the options below a mapping: the members of an inner mapping in block style, else the value itself."""
    found = []
    for key, value in node.value:
        if key.value in HIDDEN:
            continue
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and not value.flow_style and value.value:
            inner = {k.value: v.value for k, v in value.value if isinstance(v, yaml.ScalarNode)}
            found += _options(value, lines, f"{name}.", inner.get("_target_"))
        else:
            start, end = value.start_mark, value.end_mark
            if isinstance(value, yaml.SequenceNode) and not value.flow_style:  # ends at the next key
                default, last = "\n".join(lines[start.line : end.line]), key.start_mark.line
                meaning = _comment(lines, last, key.end_mark.column)
            else:
                default = "\n".join(lines[start.line : end.line + 1])[start.column :]
                default = default[: len(default) - (len(lines[end.line]) - end.column)]
                meaning = _comment(lines, end.line, end.column)
            found.append(Option(name, " ".join(default.split()), meaning, owner, _is_rare(lines[: start.line])))
    return found


def _is_rare(above: list[str]) -> bool:
    """Return whether the block of lines that ends here has the line `RARE`."""
    return any(line.strip() == RARE for line in itertools.takewhile(str.strip, reversed(above)))


def _comment(lines: list[str], line: int, column: int) -> str:
    """Return the comment behind a value, joined with the comment lines that follow it."""
    behind = re.fullmatch(r":?\s*#\s?(.*)", lines[line][column:])
    words = [behind[1].strip()] if behind else []
    for text in lines[line + 1 :] if behind else []:
        if not (continued := re.fullmatch(r"\s*#\s?(.*)", text)):
            break
        words.append(continued[1].strip())
    return " ".join(words)


def _head(lines: list[str]) -> str:
    """Return the comment before the first option."""
    words = []
    for line in lines:
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            words.append(line[1:].strip())
    return " ".join(words)


def _groups(defaults: list[Any]) -> dict[str, str | None]:
    """Return the groups of options that a file chooses from, with the default choice of each."""
    chosen = {}
    for entry in defaults:
        for group, choice in entry.items() if isinstance(entry, dict) else ():
            if not group.startswith("override "):
                chosen[group] = choice
    return chosen


def read_group(folder: Path) -> list[OptionFile]:
    """Return the files of a group of options, such as conf/model.

    An option without a comment has the meaning of the same option of the same class in another file of the group.
    """
    files = [_of_group(path) for path in sorted(folder.rglob("*.yaml"))]
    known: dict[tuple[str, str | None], str] = {}
    for file in files:
        for option in file.options:
            if option.meaning:
                known.setdefault((option.name, option.owner), option.meaning)

    def completed(option: Option) -> Option:
        return replace(option, meaning=option.meaning or known.get((option.name, option.owner), ""))

    return [replace(file, options=tuple(map(completed, file.options))) for file in files]


def _of_group(path: Path) -> OptionFile:
    """Return a file of a group, with the options of the files that it starts from."""
    file = read_option_file(path)
    for entry in yaml.safe_load(path.read_text("utf-8")).get("defaults", []):
        if isinstance(entry, str) and (start := path.parent / f"{entry}.yaml").is_file():
            base, own = _of_group(start), {option.name: option for option in file.options}
            options = [
                _changed(option, own.pop(option.name, option))
                for option in base.options
                if not any(name.startswith(f"{option.name}.") for name in own)  # a mapping in place of a value
            ]
            options += [replace(option, owner=option.owner or base.target) for option in own.values()]
            file = replace(file, target=file.target or base.target, options=tuple(options))
    return file


def _changed(option: Option, own: Option) -> Option:
    """Return an option with the default of another file, and with its meaning if the file has one."""
    return replace(option, default=own.default, meaning=own.meaning or option.meaning)
