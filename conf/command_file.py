"""Files of options: `deepweather VERB FILE.yaml` reads each `KEY: VALUE` as the word `KEY=VALUE` of the command line.

Plain text is read as on the command line, where `1e-3` is a number; text in quotes stays text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from conf.command_line import format_value, parse_value
from data_pipeline.common.errors import InputError


def words_of_files(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return words in which the name of a YAML file is replaced by its options, and the place of each of these.

    A word with the key of an option takes its place. Words without a key, such as the verb behind `submit`, begin
    options of their own. Raises `InputError` for a file that cannot be read, or that holds a key twice.
    """
    found: list[str] = []
    places: dict[str, str] = {}
    begin = 0
    for number, word in enumerate(words):
        if word.startswith("-") or "=" in word or not word.endswith((".yaml", ".yml")):
            found.append(word)
            begin = begin if word.startswith("-") or "=" in word else number + 1
            continue
        end = next((k for k in range(number + 1, len(words)) if not re.match(r"-|.*=|.*\.ya?ml$", words[k])), None)
        given = {one.lstrip("+~").partition("=")[0] for one in words[begin:end] if "=" in one}
        for key, value, line in read_command_file(Path(word)):
            if key not in given:
                found.append(f"{key}={value}")
                places[key] = f"{word}, line {line}"
    return found, places


def read_command_file(path: Path) -> list[tuple[str, str, int]]:
    """Return keys, values in the grammar of the command line, and lines of a file of options."""
    try:
        root = yaml.compose(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; name a YAML file, or write KEY=VALUE") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path} is no YAML: {error}; write one KEY: VALUE in each line") from None
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{path} holds no options; write one KEY: VALUE in each line")
    found: dict[str, tuple[str, str, int]] = {}
    for key, value in root.value:
        if key.value in found:
            raise InputError(f"{path}, line {key.start_mark.line + 1}: {key.value} is given twice; remove one")
        found[key.value] = key.value, _value(value), key.start_mark.line + 1
    return list(found.values())


def _value(node: yaml.Node) -> str:
    """Return a value in the grammar of the command line."""
    if isinstance(node, yaml.SequenceNode):
        return f"[{','.join(map(_value, node.value))}]"
    if isinstance(node, yaml.MappingNode):
        return "{" + ",".join(f"{key.value}:{_value(value)}" for key, value in node.value) + "}"
    text = str(node.value)
    if node.style:
        return format_value(text)
    if text in ("", "~"):
        return "null"
    try:
        if "${" not in text:
            parse_value(text)
    except (ValueError, RecursionError):
        return format_value(text)
    return text
