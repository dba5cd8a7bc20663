"""The interface between the command line and Python: `verb` makes a command, `build` creates objects from YAML.

With the flag `--dry-run` a command checks its options, prints all of them as YAML, and reads no data.

Only verb files import this package, and only `hydra_command` imports Hydra. A `light_verb` has options without groups,
which `command_line` reads in a few milliseconds, also where Hydra is not installed. User errors, such as a misspelt
option, a wrong value or a missing file, print one line on stderr that starts with `error:` and exit with code 2, or 3
if the same command can resume. DEEPWEATHER_DEBUG=1 shows the traceback. A command whose output goes to a program that
has ended, such as `head`, ends silently with code 141, as other Unix commands do.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from conf.command_line import SHORT, NeedsHydraError, has_groups, read_options
from conf.run_end import run_to_end
from data_pipeline.common import interruption
from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.extras import package
from data_pipeline.common.progress import show_progress

if TYPE_CHECKING:
    from omegaconf import DictConfig

Reasons = Sequence[str] | None
DRY_RUN = "--dry-run"
READER_ENDED = 141
"""Exit code of a command that writes to a program that has ended: that of the shell for the signal SIGPIPE."""
_PLACES: dict[str, str] = {}
"""File and line of each option that a file of options has given."""


def build(node: Any, **objects: Any) -> Any:
    """Return the object that a YAML node describes; `objects` are further arguments of its constructor."""
    from conf.hydra_command import build_node

    return build_node(node, **objects)


def plain(node: Any, *, whole: bool = True) -> Any:
    """Return a YAML node as plain dicts and lists, with its interpolations resolved.

    An option without a value is an error, or "???" if the node need not be `whole`.
    """
    from conf.hydra_command import plain_node

    return plain_node(node, whole)


def store_command(folder: str, moments: bool, settings: Mapping[str, Any]) -> str:
    """Return the command of `prepare` that writes a store of this command's data and task; "" outside a command.

    `settings` are values of options that an experiment may have set, by name.
    """
    from conf.hydra_command import shared_words

    words = shared_words(("data", "task"), settings)
    further = [f"store={folder}", *["moments=true"] * moments]
    return shlex.join(["deepweather", "prepare", *words, *further]) if words else ""


def is_chosen(group: str) -> bool:
    """Return whether the words of the command choose or change options of a group, such as `task`."""
    from conf.hydra_command import own_words

    return any(re.match(rf"[+~]*{group}[=.@]", word) for word in own_words())


def verb(
    name: str, check: Callable[[DictConfig], object]
) -> Callable[[Callable[[DictConfig], Reasons]], Callable[[], None]]:
    """Return a decorator that turns `function(cfg)` into the command with the options of `conf/NAME.yaml`.

    The function returns reasons why its output needs attention, or None (`run_end`). `check(cfg)` raises the errors of
    wrong options without reading data.
    """

    def decorate(function: Callable[[DictConfig], Reasons]) -> Callable[[], None]:
        def command() -> None:
            with show_progress(name, sys.argv[1:]), reporting():
                _run_by_hydra(name, f"deepweather {name}", _ended(name, check, function))

        return command

    return decorate


def light_verb(
    name: str, check: Callable[[dict[str, Any]], object] | None = None
) -> Callable[[Callable[[dict[str, Any]], Reasons]], Callable[[], None]]:
    """Return a decorator as `verb` does, for `function(options)`; without `check` there is no dry run.

    The options are plain dicts and lists. Hydra reads the command line only if it uses more of Hydra's grammar.
    """

    def decorate(function: Callable[[dict[str, Any]], Reasons]) -> Callable[[], None]:
        def command() -> None:
            with show_progress(name, sys.argv[1:]), reporting():
                run = _ended(name, check, function)
                try:
                    options = read_options(name, sys.argv[1:])
                except NeedsHydraError as needed:
                    _run_by_hydra(name, f"the argument {needed}", lambda cfg: run(plain(cfg)))
                else:
                    run(options)

        return command

    return decorate


def _ended(
    name: str, check: Callable[[Any], object] | None, function: Callable[[Any], Reasons]
) -> Callable[[Any], None]:
    """Return what a command does with its options; its words then have their full names."""
    words = sys.argv[1:]
    sys.argv[1:] = _full_words(words)
    if check is None or DRY_RUN not in words:
        return lambda options: run_to_end(name, options, lambda: function(options))

    def dry_run(options: Any) -> None:
        check(options)
        values = options if isinstance(options, dict) else plain(options, whole=False)
        print(yaml.safe_dump(values, sort_keys=False), end="")

    return dry_run


def _full_words(words: Sequence[str]) -> list[str]:
    """Return the options of a verb with their full names, such as `data.path` for `path`."""
    return [re.sub(rf"^({'|'.join(SHORT)})=", r"data.\1=", word) for word in words if word != DRY_RUN]


def expand_files(words: Sequence[str]) -> list[str]:
    """Return the words of a command with the options in its YAML files; errors about these name file and line."""
    from conf.command_file import words_of_files

    found, places = words_of_files(words)
    _PLACES.clear()
    _PLACES.update(places)
    return found


def check_words(name: str, words: Sequence[str]) -> None:
    """Raise the error of `deepweather NAME WORDS` for wrong words, before the verb is imported, which takes seconds."""
    full = _full_words(words)
    if any(word.startswith("-") for word in full):
        return  # several runs, whose words only Hydra reads
    if has_groups(name):
        with package(f"deepweather {name}", "train"):
            from conf.hydra_command import composed_once
        composed_once(name, full)
    else:
        with suppress(NeedsHydraError):
            read_options(name, full)


def print_options(name: str, words: Sequence[str]) -> None:
    """Print what a flag of Hydra asks for, such as `--cfg job`, without importing the verb."""
    sys.argv[1:] = _full_words(words)
    with reporting():
        _run_by_hydra(name, f"deepweather {name}", lambda cfg: None)


def options_of_verb(name: str, words: Sequence[str], wanted: Sequence[str]) -> dict[str, Any]:
    """Return some options of `deepweather NAME WORDS`, such as `trainer.mesh`, as plain values; None for an absent one.

    Wrong words raise the errors of the verb itself. Options that have no value are None.
    """
    full = _full_words(words)
    if not has_groups(name):
        try:
            found = read_options(name, full)
        except NeedsHydraError:
            pass
        else:
            return {key: found.get(key) for key in wanted}
    with package(f"deepweather {name}", "train"):
        from conf.hydra_command import composed_options
    return composed_options(name, full, wanted)


def _run_by_hydra(name: str, purpose: str, function: Callable[[DictConfig], None]) -> None:
    """Call the function with the options that Hydra reads; `purpose` says what needs Hydra, for the error."""
    with package(purpose, "train"):
        from conf.hydra_command import run
    run(name, function)


@contextmanager
def reporting() -> Iterator[None]:
    """Print a user error in the block as one line, and exit with its code."""
    try:
        interruption.install()
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        leave(InterruptedRunError(interruption.INTERRUPTED))
    except Exception as error:
        if any(isinstance(link, BrokenPipeError) for link in _chain(error)) and _reader_has_ended():
            # Python flushes the buffer of standard output at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(READER_ENDED)
        explained = explain(error)
        if explained is None or os.environ.get("DEEPWEATHER_DEBUG") == "1":
            raise
        leave(explained)
    finally:
        interruption.install(at_once=True)


def leave(error: InputError) -> NoReturn:
    """Print the error as one line and exit."""
    text = " ".join(str(error).split())
    text += "".join(
        f" ({place})" for key, place in _PLACES.items() if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", text)
    )
    # One write: a launcher compares whole lines, and the process may be killed.
    print(f"error: {text}\n", end="", file=sys.stderr, flush=True)
    if interruption.requested():
        interruption.end_soon(error.exit_code)
    sys.exit(error.exit_code)


def explain(error: BaseException) -> InputError | None:
    """Return the error for the user if `error`, or one of its causes, is a user error, else None."""
    chain = _chain(error)
    for link in chain:
        if isinstance(link, InputError):
            return link
    if "omegaconf" not in sys.modules:
        return None
    from conf.hydra_command import explain_hydra

    return explain_hydra(error, chain)


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and its causes."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    return chain


def _reader_has_ended() -> bool:
    """Return whether standard output is a pipe whose reader has ended."""
    poll = select.poll()
    poll.register(1, 0)
    return bool(poll.poll(0))
