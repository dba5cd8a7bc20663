"""The interface between Hydra and Python: `verb` turns a function into a command, `build` creates objects from YAML.

Only verb files import this package, and no other file imports Hydra. User errors, such as a misspelt
option, a wrong value or a missing file, print one line on stderr that starts with `error:` and exit with code 2, or 3
if the same command can resume. DEEPWEATHER_DEBUG=1 shows the traceback.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from data_pipeline.common.errors import InputError, InterruptedRunError
from data_pipeline.common.packages import conf_folders
from data_pipeline.common.renamed import OPTIONS, current_arguments, current_option, current_spec, refuse_gone

SHORT = ("path", "store")
"""Options of `data` that can be given without the prefix `data.`."""


class Packages(SearchPathPlugin):
    """Lets Hydra find the YAML files of installed packages that register models, for example under `model=NAME`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folders of these packages to this project's own."""
        for module, folder in conf_folders(Path(__file__).parent).items():
            search_path.append(module, f"file://{folder}")


Plugins.instance().register(Packages)


def build(node: Any, **objects: Any) -> Any:
    """Return the object that a YAML node describes; `objects` are further arguments of its constructor."""
    return instantiate(node, _convert_="all", **objects)


def plain(node: Any) -> Any:
    """Return a YAML node as plain dicts and lists, resolved."""
    return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)


def verb(name: str) -> Callable[[Callable[[DictConfig], None]], Callable[[], None]]:
    """Return a decorator that turns `function(cfg)` into the command with the options of `conf/NAME.yaml`."""

    def decorate(function: Callable[[DictConfig], None]) -> Callable[[], None]:
        def task(cfg: DictConfig) -> None:
            # Inside Hydra's task: outside, Hydra would also print its own line about the error.
            with _reporting_errors(name):
                _refuse_old_names(cfg, name)
                _rename_model_options(cfg)
                function(cfg)

        main = hydra.main(config_path=str(Path(__file__).parent), config_name=name, version_base="1.3")(task)

        def command() -> None:
            sys.argv[1:] = [re.sub(rf"^({'|'.join(SHORT)})=", r"data.\1=", word) for word in sys.argv[1:]]
            sys.argv[1:] = current_arguments(sys.argv[1:], lambda: _model_class(name, sys.argv[1:]), name)
            # Hydra's own report of a wrong option has many lines and exits with 1.
            os.environ["HYDRA_FULL_ERROR"] = "1"
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            with _reporting_errors(name):
                for word in sys.argv[1:]:
                    refuse_gone(name, word.partition("=")[0])
                main()

        return command

    return decorate


def _refuse_old_names(cfg: DictConfig, verb: str) -> None:
    """Raise an error for an old option of `verb` that a YAML file has set: it would have no effect."""
    for option, new in OPTIONS.items():
        *verbs, old = option.split()
        outer, _, last = old.rpartition(".")
        parent = OmegaConf.select(cfg, outer) if outer else cfg
        if verbs in ([], [verb]) and isinstance(parent, DictConfig) and last in parent.keys():  # noqa: SIM118
            raise InputError(f"option {old} is now called {new}; rename it in your YAML file")


def _rename_model_options(cfg: DictConfig) -> None:
    """Give the model's options their current names, where a value such as `{window: 30}` holds old ones."""
    if isinstance(model := cfg.get("model"), DictConfig):
        written = OmegaConf.to_container(model)
        if (current := current_spec(written, "model")) != written:
            OmegaConf.update(cfg, "model", current, merge=False)


def _model_class(name: str, arguments: list[str]) -> str | None:
    """Return the class of the model that the arguments choose, None if they are wrong: Hydra then reports them."""
    overrides = [word for word in arguments if re.match(r"(?!-|[~+]*model\.(?!_target_=))(~|.*=)", word)]
    try:
        with initialize_config_dir(str(Path(__file__).parent), version_base="1.3"):
            return str(compose(name, overrides).model._target_)
    except (HydraException, OmegaConfBaseException, ValueError):
        return None


@contextmanager
def _reporting_errors(verb: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        leave(InterruptedRunError("interrupted; run the same command again to resume"))
    except Exception as error:
        explained = explain(error, verb)
        if explained is None or os.environ.get("DEEPWEATHER_DEBUG") == "1":
            raise
        leave(explained)


def leave(error: InputError) -> NoReturn:
    """Print the one line and exit."""
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    sys.exit(error.exit_code)


def explain(error: BaseException, verb: str = "") -> InputError | None:
    """Return the error for the user if `error`, or one of its causes, is a user error, else None."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    for link in chain:
        if isinstance(link, InputError):
            return link
    for link in chain:
        if isinstance(link, OmegaConfBaseException) and link.key is not None:
            return InputError(_configuration_sentence(link, verb))
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return InputError(f"there is no {group} {name}; choose one of {', '.join(error.options)}")
    if isinstance(error, ValueError) and str(error).startswith("Config group override must be a string or a list"):
        return InputError(
            "a group of options (data, task, model, loss, trainer, experiment, ...) was set to null or to a number; "
            "give the name of one of its files, or leave the group out"
        )
    if isinstance(error, HydraException):
        # A constructor got an unknown argument, or lacks a required one.
        return InputError(str(chain[-1] if isinstance(chain[-1], TypeError) else error).split("\nfull_key")[0])
    return None


def _configuration_sentence(error: OmegaConfBaseException, verb: str) -> str:
    key, parent = error.full_key or str(error.key), error.parent_node
    if isinstance(error, MissingMandatoryValue):
        return f"option {key} has no value; give it as {key}=..."
    if isinstance(parent, DictConfig) and error.key not in parent:
        model = OmegaConf.select(parent._get_root(), "model._target_")
        if (renamed := current_option(key, model, verb)) != key:
            return f"option {key} is now called {renamed}; rename it in your YAML file"
        known = [str(name) for name in parent]
        if "data" in known:
            known += SHORT
        if not known:
            return f"there is no option {key}; to add it write +{key}=..."
        guess = difflib.get_close_matches(str(error.key), known, n=1)
        hint = f"did you mean {key[: -len(str(error.key))]}{guess[0]}?" if guess else f"there is: {', '.join(known)}"
        return f"there is no option {key}; {hint}"
    return f"option {key}: {str(error.msg or error).splitlines()[0]}"
