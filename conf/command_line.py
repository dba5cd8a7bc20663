"""Read the options of a verb without groups from its YAML file and the command line, in the grammar of Hydra.

`read_options` understands `KEY=VALUE` with scalars, text, lists and mappings. It raises `NeedsHydraError` for the rest
of the grammar (hydra.cc/docs/advanced/override_grammar/basic): flags, `+KEY`, `~KEY`, interpolations, functions,
sweeps, options that are given twice, and values that Hydra refuses. A property test compares it with Hydra.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from data_pipeline.common.errors import InputError

SHORT = ("path", "store")
"""Options of `data` that can be given without the prefix `data.`."""
UNSET = "???"
"""Value of an option that must be given."""

_INTEGER = r"(?:0|[1-9](?:_?[0-9])*)"
_POINT = rf"(?:{_INTEGER}?\.[0-9](?:_?[0-9])*|{_INTEGER}\.)"
_EXPONENT = rf"(?:(?:{_POINT}|{_INTEGER})[eE][+-]?[0-9](?:_?[0-9])*)"
_TOKENS = {
    name: re.compile(pattern)
    for name, pattern in {
        "parenthesis": r"[ \t]*\([ \t]*|[ \t]*\)",
        "comma": r"[ \t]*,[ \t]*",
        "[": r"\[[ \t]*",
        "]": r"[ \t]*\]",
        "{": r"\{[ \t]*",
        "}": r"[ \t]*\}",
        "colon": r"[ \t]*:[ \t]*",
        "equal": r"[ \t]*=[ \t]*",
        "float": rf"[+-]?(?:{_EXPONENT}|{_POINT}|[Ii][Nn][Ff]|[Nn][Aa][Nn])",
        "integer": rf"[+-]?{_INTEGER}",
        "boolean": r"[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]",
        "null": r"[Nn][Uu][Ll][Ll]",
        "character": r"[/\-\\+.$%*@?|]",
        "word": r"[a-zA-Z_][a-zA-Z0-9_-]*",
        "escape": r"(?:\\[\\()\[\]{}:=, \t])+",
        "space": r"[ \t]+",
        "quoted": r"\"[^\"\\]*\"|'[^'\\]*'",
    }.items()
}
"""The lexer of Hydra's values. The longest match is taken; of equally long matches, the first."""
_END = ("", "")
_CLOSING = ("comma", "]", "}", "")
_SCALARS: dict[str, Callable[[str], Any]] = {
    "integer": int,
    "float": float,
    "boolean": lambda text: text.lower() == "true",
    "null": lambda text: None,
    "quoted": lambda text: text[1:-1],
    "escape": lambda text: text[1::2],
}

Token = tuple[str, str]


class NeedsHydraError(Exception):
    """An argument that only Hydra can read, or that Hydra refuses."""


def read_options(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the options of `conf/NAME.yaml` with the values of the command line.

    Raises `InputError` for an unknown option and for one without a value, and `NeedsHydraError`.
    """
    given = [_assignment(word) for word in words]
    options, words_of = default_options(name), dict(zip((key for key, _ in given), words, strict=True))
    for key, value in given:
        default = options.get(key)
        mixed = isinstance(default, list) and isinstance(value, dict)
        if isinstance(default, dict) or mixed or len(words_of) < len(words):
            raise NeedsHydraError(words_of[key])  # Hydra may join the values, or refuse to
    for key, value in given:
        if key not in options:
            raise InputError(unknown_option(key, key, list(options)))
        options[key] = value
    for key, value in options.items():
        if value == UNSET:
            raise InputError(f"option {key} has no value; give it as {key}=...")
    return options


def has_groups(name: str) -> bool:
    """Whether the options of `conf/NAME.yaml` have groups, such as `data=twin`, which only Hydra reads."""
    defaults = yaml.safe_load(_path(name).read_text())["defaults"]
    return any(isinstance(each, dict) and not next(iter(each)).startswith("override hydra/") for each in defaults)


def default_options(name: str) -> dict[str, Any]:
    """Return the options of `conf/NAME.yaml`, without Hydra's own options."""
    values = yaml.safe_load(_path(name).read_text())
    return {key: value for key, value in values.items() if key not in ("defaults", "hydra")}


def unknown_option(key: str, last: str, known: Sequence[str]) -> str:
    """Return the sentence about an option `key`, whose last part is not in `known`."""
    if not known:
        return f"there is no option {key}; to add it write +{key}=..."
    guess = difflib.get_close_matches(last, known, n=1)
    hint = f"did you mean {key[: -len(last)]}{guess[0]}?" if guess else f"there is: {', '.join(known)}"
    return f"there is no option {key}; {hint}"


def _path(name: str) -> Path:
    return Path(__file__).parent / f"{name}.yaml"


def _assignment(word: str) -> tuple[str, Any]:
    """Return key and value of a word KEY=VALUE."""
    found = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_-]*)=[ \t]*(.*)", word, re.DOTALL)
    # `${` makes a text an interpolation, also within quotes; `???` anywhere makes it a missing value.
    if not found or "${" in word or UNSET in word:
        raise NeedsHydraError(word)
    try:
        return found[1], parse_value(found[2])
    except (ValueError, RecursionError):
        raise NeedsHydraError(word) from None


def format_value(value: str | int | Sequence[str]) -> str:
    """Return a text, a number, or a list of texts as a value of the command line in Hydra's grammar.

    >>> format_value(["2018.grib", "a b.grib", "2018"])
    "[2018.grib,'a b.grib','2018']"
    """
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        return f"[{','.join(map(format_value, value))}]"
    try:
        plain = parse_value(value) == value and not re.search(r"\\|\$\{|^['\"]", value)
    except (ValueError, RecursionError):
        plain = False
    if plain and value:
        return value
    # Backslashes are special before a quote, before the end of the text, and before an interpolation.
    text = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + "\\" * bool(found[2]) + found[2], value)
    return "'" + re.sub(r"(\\*)\$\{", r"\1\1\\${", text) + "'"


def parse_value(text: str) -> Any:
    """Return the value that Hydra reads from `text`; raise `ValueError` if only Hydra can read or refuse it."""
    if not text:
        return ""
    tokens = [*_tokens(text), _END]
    value, rest = _element(tokens, 0)
    if tokens[rest] != _END:
        raise ValueError("there is more after the value")
    return value


def _tokens(text: str) -> list[Token]:
    found, at = [], 0
    while at < len(text):
        matches = [(kind, match[0]) for kind, pattern in _TOKENS.items() if (match := pattern.match(text, at))]
        if not matches:
            raise ValueError("a character must be quoted")
        kind, token = max(matches, key=lambda match: len(match[1]))
        found.append((kind, token))
        at += len(token)
    return found


def _element(tokens: Sequence[Token], at: int) -> tuple[Any, int]:
    """Return the value that begins at a token, and the position after it."""
    kind = tokens[at][0]
    if kind == "[":
        return _sequence(tokens, at + 1, "]", _element)
    if kind == "{":
        pairs, rest = _sequence(tokens, at + 1, "}", _pair)
        return dict(pairs), rest
    return _primitive(tokens, at, _CLOSING)


def _sequence(
    tokens: Sequence[Token], at: int, end: str, read: Callable[[Sequence[Token], int], tuple[Any, int]]
) -> tuple[list[Any], int]:
    found: list[Any] = []
    if tokens[at][0] == end:
        return found, at + 1
    while True:
        value, at = read(tokens, at)
        found.append(value)
        if tokens[at][0] == end:
            return found, at + 1
        if tokens[at][0] != "comma":
            raise ValueError("a comma is missing")
        at += 1


def _pair(tokens: Sequence[Token], at: int) -> tuple[tuple[Any, Any], int]:
    key, at = _primitive(tokens, at, ("colon", *_CLOSING))
    if tokens[at][0] != "colon" or key is None or any(kind == "quoted" for kind, _ in tokens[at - 1 : at]):
        raise ValueError("a key must be a plain word or number")
    value, at = _element(tokens, at + 1)
    return (key, value), at


def _primitive(tokens: Sequence[Token], at: int, end: Sequence[str]) -> tuple[Any, int]:
    """Return a scalar or text: a single token, or several side by side, without spaces at both ends."""
    start = at
    while tokens[at][0] not in end:
        if tokens[at][0] in ("parenthesis", "equal", "[", "{", "]", "}"):
            raise ValueError("a character must be quoted")
        at += 1
    parts = list(tokens[start:at])
    if len(parts) > 1 and any(kind == "quoted" for kind, _ in parts):
        raise ValueError("a quoted text stands beside others")
    if parts and parts[0][0] == "space":
        parts = parts[1:]
    if parts and parts[-1][0] == "space":
        parts = parts[:-1]
    if not parts:
        raise ValueError("a value is missing")
    if len(parts) == 1:
        kind, text = parts[0]
        return _SCALARS.get(kind, str)(text), at
    return "".join(text[1::2] if kind == "escape" else text for kind, text in parts), at
