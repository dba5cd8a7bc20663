"""Commands that Hydra runs: its search path, the options that it reads, and its errors as one sentence."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from conf import reporting
from conf.command_line import SHORT, format_value, unknown_option
from conf.hydra_sweep import register
from data_pipeline.common.errors import InputError
from data_pipeline.common.packages import conf_folders

_composed: dict[tuple[str, ...], DictConfig] = {}
"""The options that `composed_once` has composed and no run has used yet, by verb and words."""


class Packages(SearchPathPlugin):
    """Lets Hydra find the YAML files of installed packages that register models, for example under `model=NAME`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folders of these packages to the folder of this project."""
        for module, folder in conf_folders(Path(__file__).parent).items():
            search_path.append(module, f"file://{folder}")


Plugins.instance().register(Packages)
register()


def build_node(node: Any, **objects: Any) -> Any:
    """Return the object that a YAML node describes; `objects` are further arguments of its constructor."""
    return instantiate(node, _convert_="all", **objects)


def plain_node(node: Any, whole: bool = True) -> Any:
    """Return a YAML node as plain dicts and lists, resolved; see `conf.plain`."""
    return OmegaConf.to_container(node, resolve=True, throw_on_missing=whole)


def run(name: str, function: Callable[[DictConfig], None]) -> None:
    """Call `function` with the options of `conf/NAME.yaml`, as the command line changes them."""

    def task(cfg: DictConfig) -> None:
        # Inside Hydra's task: outside, Hydra would also print its own line about the error.
        with reporting():
            function(cfg)

    # Hydra's own report of a wrong option has many lines and exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    with reporting():
        if any(re.match(r"-|[+~]*hydra[./]", word) for word in sys.argv[1:]):
            hydra.main(config_path=str(Path(__file__).parent), config_name=name, version_base="1.3")(task)()
            return
        # A run without flags: `hydra.main` would compose the options twice more.
        before, cfg = HydraConfig.instance().cfg, composed_once(name, sys.argv[1:])
        _composed.clear()
        HydraConfig.instance().set_config(cfg)
        try:
            with open_dict(cfg):
                del cfg["hydra"]
            task(cfg)
        finally:
            HydraConfig.instance().cfg = before


def own_words() -> list[str]:
    """Return the words of this command that set options; empty outside a command."""
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def shared_words(groups: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Return the words that make `prepare` use the same `groups` of options as this command.

    `settings` are the values of options that an experiment may have set. The list is empty outside a command.
    """
    if not HydraConfig.initialized():
        return []
    chosen, own = HydraConfig.get().runtime.choices, own_words()
    changes = [word for word in own if re.match(rf"[+~]*({'|'.join(groups)})\.(?!store=|cache\.)", word)]
    names = {re.split("[=@]", word.lstrip("+~"))[0] for word in changes}
    if chosen.get("experiment") is not None:
        changes += [f"{key}={format_value(value)}" for key, value in settings.items() if key not in names]
    return [*(f"{group}={chosen[group]}" for group in groups), *changes]


def composed_once(name: str, words: Sequence[str]) -> DictConfig:
    """Return all options of a verb, also Hydra's own. A command composes its options once, to check its words."""
    if (key := (name, *words)) not in _composed:
        _composed[key] = composed(name, words, return_hydra_config=True)
    return _composed[key]


def composed(name: str, words: Sequence[str], **options: Any) -> DictConfig:
    """Return the options that Hydra reads for a verb; `options` are passed to `hydra.compose`."""
    with initialize_config_dir(str(Path(__file__).parent), version_base="1.3"):
        return compose(name, list(words), **options)


def composed_options(name: str, words: Sequence[str], wanted: Sequence[str]) -> dict[str, Any]:
    """Return some options that Hydra reads for a verb, as plain values; None for an option that is absent or unset."""
    cfg = composed(name, words, return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    found = {key: OmegaConf.select(cfg, key) for key in wanted}
    return {key: plain_node(value) if OmegaConf.is_config(value) else value for key, value in found.items()}


def explain_hydra(error: BaseException, chain: Sequence[BaseException]) -> InputError | None:
    """Return the error for the user if `error`, whose causes are `chain`, means a wrong option, else None."""
    for link in chain:
        if isinstance(link, OmegaConfBaseException) and link.key is not None:
            return InputError(_configuration_sentence(link))
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return InputError(f"there is no {group} {name}; choose one of {', '.join(error.options)}")
    if isinstance(error, ValueError) and str(error).startswith("Config group override must be a string or a list"):
        return InputError(
            "a group of options (data, task, model, loss, trainer, experiment, ...) was set to null or to a number; "
            "give the name of one of its files, or leave the group out"
        )
    if isinstance(error, HydraException):
        if "task.formulas=" in str(error) and "Unknown function" in str(error):
            return InputError("a formula has no quotation marks; write 'task.formulas=[\"advection(t@850)\"]'")
        # A constructor got an unknown argument, or lacks a required one.
        return InputError(str(chain[-1] if isinstance(chain[-1], TypeError) else error).split("\nfull_key")[0])
    return None


def _configuration_sentence(error: OmegaConfBaseException) -> str:
    key, parent = error.full_key or str(error.key), error.parent_node
    if isinstance(error, MissingMandatoryValue):
        return f"option {key} has no value; give it as {key}=..."
    if isinstance(parent, DictConfig) and error.key not in parent:
        known = [str(name) for name in parent if name != "hydra"]
        if "data" in known:
            known += SHORT
        return unknown_option(key, str(error.key), known)
    return f"option {key}: {str(error.msg or error).splitlines()[0]}"
