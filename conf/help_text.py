"""The help of a verb: its options and those of its groups, with defaults and meanings, from the files of conf/."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from conf.option_files import Option, OptionFile, read_group, read_option_file
from data_pipeline.common.errors import InputError
from data_pipeline.common.packages import conf_folders

_FOLDER = Path(__file__).parent


def help_text(verb: str, words: Sequence[str] = ()) -> str:
    """Return the help of `deepweather VERB`; `words` such as `model=mlp` choose the files whose options it lists.

    Options that are rarely changed are listed with the word `all`. With the word `schema`, it is a JSON schema.
    """
    if "schema" in words:
        from conf.option_schema import option_schema

        return json.dumps(option_schema(verb), indent=1)
    own = read_option_file(_FOLDER / f"{verb}.yaml")
    lines = [f"usage: {own.about}", "", "Options, KEY=VALUE, with their defaults (??? must be given):", ""]
    listed = list(own.options)
    lines += _options(own.options, rare="all" in words)
    given = dict(word.split("=", 1) for word in words if "=" in word)
    for place, default in own.groups.items():
        name, _, prefix = place.partition("@")
        files = files_of(name)
        chosen = given.get(name, default)
        if chosen is not None and chosen not in files:
            raise InputError(f"there is no {name} {chosen}; choose one of {', '.join(files)}")
        lines += ["", f"{name}={chosen or 'NAME'}  # one of {', '.join(files)}"]
        if chosen and name != "experiment":
            listed += files[chosen].options
            lines += _options(files[chosen].options, f"{prefix or name}.", rare="all" in words)
    if own.groups:
        lines += ["", "GROUP=NAME --help lists the options of another choice, --cfg job prints all values in force."]
    if "all" not in words and (hidden := sum(one.rare for one in listed)):
        lines += ["", f"--help all lists {hidden} more options, which are rarely changed."]
    return "\n".join(lines)


def _options(options: Sequence[Option], prefix: str = "", *, rare: bool) -> list[str]:
    return [
        f"{prefix}{one.name}: {one.default}" + (f"  # {one.meaning}" if one.meaning else "")
        for one in options
        if rare or not one.rare
    ]


def files_of(group: str) -> dict[str, OptionFile]:
    """Return the files of a group by the names that choose them; those of installed packages come last."""
    found = {}
    for folder in (_FOLDER, *conf_folders(_FOLDER).values()):
        for file in read_group(folder / group):
            name = file.path.relative_to(folder / group).with_suffix("").as_posix()
            if not name.startswith("base/"):  # shared parts of experiments, which are no choice
                found[name] = file
    return found
