"""Names that changed since the last version: options of the command line, and classes that corrector files name.

Old names work for one version with a one-line warning, so that scripts and corrector files stay usable. The tables
are emptied when the next version is released.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from data_pipeline.common.errors import InputError

OPTIONS: dict[str, str] = {
    "cluster.queue": "cluster.partition",
    "data.archive.names": "data.archive.variable_names",
    "data.cache.disk": "data.cache.disk_bytes",
    "data.cache.folder": "data.cache.disk_folder",
    "data.cache.memory": "data.cache.memory_bytes",
    "data.cache.staging": "data.cache.staging_bytes",
    "data.source": "data.generator",
    "efi.window": "efi.window_starts",
    "efi.memory": "efi.memory_bytes",
    "trainer.enough": "trainer.early_stop_below",
    "trainer.ema": "trainer.ema_decay",
    "trainer.accumulate": "trainer.accumulate_grad_batches",
    "trainer.recompute": "trainer.activation_checkpointing",
    "trainer.benchmark": "trainer.cudnn_benchmark",
    "loss.above": "loss.threshold",
    "train members": "max_members",
    "train exam": "test_check",
    "evaluate members": "max_members",
    "evaluate sizes": "member_counts",
    "evaluate best": "shown_corrector",
    "evaluate levels": "quantile_levels",
    "correct levels": "quantile_levels",
}
"""Old option to new option of the command line. Options under an old name, such as `data.source.members`, move with it.

An option outside any group has its verb in front, because verbs share such names: `train members`.
"""

GONE: dict[str, str] = {
    "prepare local": "networks that standardise by region fit these maps themselves",
    "prepare climatology": "model=climatology fits the climatology of the training years",
}
"""Verb and group of options, or statistic, that no longer exists: why it is not needed."""

CHOICES: dict[str, str] = {"loss=apart": "loss=separate"}
"""Old to new choice of a group of options, such as `loss=apart` to `loss=separate`."""

EMOS_OPTIONS = {"window": "window_days"}
NETWORK_OPTIONS = {"start": "baseline"} | {f"baseline.{old}": new for old, new in EMOS_OPTIONS.items()}
TRUNK_OPTIONS = NETWORK_OPTIONS | {"embedding": "cell_embedding", "mixture.weighted": "scale_by_gate"}
DEEP_WEATHER_OPTIONS = {"learns": "trained_networks", "roughness": "smoothness_penalty"}

MODEL_OPTIONS: dict[str, dict[str, str]] = {
    "models.networks.backbone.Backbone": NETWORK_OPTIONS,
    "models.networks.deep_weather.DeepWeather": DEEP_WEATHER_OPTIONS,
    "models.networks.heat_networks.Mixture": {"weighted": "scale_by_gate"},
    "models.networks.lenet.LeNet": NETWORK_OPTIONS,
    "models.networks.mlp.MLP": NETWORK_OPTIONS | {"embedding": "cell_embedding"},
    "models.networks.poet.PoET": {"attention": "attention_resolutions"},
    "models.networks.transformer.Transformer": TRUNK_OPTIONS
    | {"attention": "member_attention", "window": "attention_window"},
    "models.networks.unet.UNet": TRUNK_OPTIONS,
    "models.statistical.boosted_emos.BoostedEMOS": {"rate": "learning_rate", "steps": "max_steps"},
    "models.statistical.emos.EMOS": EMOS_OPTIONS,
}
"""For the current class of a model or of a part of one: old to new option, on the command line and in corrector files.

An option inside another one has a dotted old name, with the current name of the outer option, and a new last name:
`{"start": "baseline", "baseline.window": "window_days"}` renames `start: {window: 9}` to `baseline: {window_days: 9}`.
"""

STATISTICAL = ("emos", "climatology", "raw")
NETWORKS = ("backbone", "lenet", "mlp", "unet", "transformer", "poet", "deep_weather", "ens10")
LAYERS = {"spatial.normalization": "layers.norms", "spatial.local": "layers.locally_connected"}
MODULES = (
    {f"models.{name}": f"models.statistical.{name}" for name in STATISTICAL}
    | {"models.boosting": "models.statistical.boosted_emos"}
    | {f"models.{name}": f"models.networks.{name}" for name in NETWORKS}
    | {f"models.{old}": f"models.{new}" for old, new in LAYERS.items()}
    | {"models.heat": "models.networks.heat_networks", "models.spatial": "models.layers"}
)
"""Old to new module of the classes that a `_target_` may name."""


def current_argument(argument: str, model: str | None = None, verb: str = "") -> tuple[str, str | None]:
    """Return a command-line argument of `verb` with its current name, and the warning if the name was old.

    `model` is the class of the model in use; without it, options of the model are returned as they are.

    >>> MODEL_OPTIONS["models.Model"] = {"depht": "depth"}
    >>> current_argument("model.depht=3", "models.Model")
    ('model.depth=3', 'option model.depht is now called model.depth; the old name will be removed')
    >>> current_argument("model.depth=3", "models.Model")
    ('model.depth=3', None)
    >>> del MODEL_OPTIONS["models.Model"]
    """
    prefix, name, rest = re.fullmatch(r"(~|\+{0,2})([^=]*)(.*)", argument, re.DOTALL).groups()  # type: ignore[union-attr]
    new = current_option(name, model, verb)
    if new == name and (choice := CHOICES.get(name + rest)):
        return prefix + choice, f"{name}{rest} is now written {choice}; the old name will be removed"
    if new == name:
        return argument, None
    return prefix + new + rest, _warning(name, new)


def refuse_gone(verb: str, name: str) -> None:
    """Raise an `InputError` if an option of `verb`, or a statistic, is gone; the error says what replaces it."""
    if reason := GONE.get(f"{verb} {name.lstrip('+~').split('.')[0]}"):
        raise InputError(f"{name} is gone: {reason}; leave it out")


def current_option(name: str, model: str | None = None, verb: str = "") -> str:
    """Return the current name of an option of `verb`, the name itself where it is current or unknown.

    >>> current_option("members", verb="train"), current_option("members", verb="prepare")
    ('max_members', 'members')
    >>> current_option("data.source.members")
    'data.generator.members'
    """
    group, *parts = name.split(".")
    for count in range(len(parts) + 1, 0, -1):
        outer = ".".join([group, *parts][:count])
        if new := OPTIONS.get(f"{verb} {outer}", OPTIONS.get(outer)):
            return new + name[len(outer) :]
    if group != "model" or model is None:
        return name
    table, path = MODEL_OPTIONS.get(_current_class(model), {}), ""
    for part in parts:
        path += "." * bool(path) + table.get(f"{path}.{part}" if path else part, part)
    return ".".join(filter(None, [group, path]))


def current_arguments(
    arguments: list[str], model: Callable[[], str | None] = lambda: None, verb: str = ""
) -> list[str]:
    """Return command-line arguments of `verb` with current names; print a warning for each old name.

    `model` returns the class of the model in use. It is called once, and only if an argument has a name that is an old
    option of some model, because different models use one old name for different things.
    """
    ambiguous = any(current_argument(argument, old)[1] for argument in arguments for old in MODEL_OPTIONS)
    used, current = model() if ambiguous else None, []
    for argument in arguments:
        renamed, warning = current_argument(argument, used, verb)
        if warning:
            _print(warning)
        current.append(renamed)
    return current


def current_spec(spec: Any, option: str = "") -> Any:
    """Return the description of a model, as an older version wrote it, with current classes and options.

    Given the `option` that holds the description, print a warning for each option with an old name.

    >>> current_spec({"_target_": "models.unet.UNet", "width": 16})
    {'_target_': 'models.networks.unet.UNet', 'width': 16}
    """
    return _current_node(spec, {}, "", option)


def _current_node(node: Any, table: Mapping[str, str], path: str, option: str) -> Any:
    """Return a node of a description; `path` is its place in the part of the model to which `table` belongs."""
    if isinstance(node, list):
        return [_current_node(value, table, path, option) for value in node]
    if not isinstance(node, Mapping):
        return node
    found: dict[Any, Any] = {}
    if isinstance(node.get("_target_"), str):
        found["_target_"] = _current_class(node["_target_"])
        table, path = MODEL_OPTIONS.get(found["_target_"], {}), ""
    for name, value in node.items():
        if name == "_target_" and name in found:
            continue
        new = table.get(f"{path}{name}", name)
        inner = f"{option}.{new}" if option else ""
        if new != name and option:
            _print(_warning(f"{option}.{name}", inner))
        found[new] = _current_node(value, table, f"{path}{new}.", inner)
    return found


def _warning(old: str, new: str) -> str:
    return f"option {old} is now called {new}; the old name will be removed"


def _print(warning: str) -> None:
    print(f"warning: {warning}", file=sys.stderr, flush=True)


def _current_class(target: str) -> str:
    """Return the current dotted path of a class; the longest old module name that fits decides."""
    for old in sorted(MODULES, key=len, reverse=True):
        if target.startswith(f"{old}."):
            return MODULES[old] + target[len(old) :]
    return target
