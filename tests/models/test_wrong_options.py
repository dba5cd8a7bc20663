"""Options that a model cannot take are refused by name, with what it takes instead."""

import pytest
from specs import SPECS

from data_pipeline.common.errors import InputError
from data_pipeline.grid import Grid
from data_pipeline.task import Task
from models.corrector import build_model

TASK, GRID = Task("toy", ["sst", "2t", "tp"], ["2t"], [24, 48], ["lsm"]), Grid.regular(13, 16)
HEAT = Task("heat", ["heat"], ["heat"], [1], ["region"])
SMALL = Grid.regular(4, 8)
RESNET = {"_target_": "weathernets.resnet.ResNet", "width": 5}
CONVOLUTION = {"_target_": "torch.nn.Conv2d", "out_channels": 3}
GAMMA = "censored_shifted_gamma"
WIDTH = "must be a whole number of at least 1"
WRONG = {
    "networks.mlp.MLP": [
        ({"width": 0}, f"model.width {WIDTH}"),
        ({"dropout": 1.0}, "model.dropout must be a number"),
        ({"widht": 3}, "MLP has no option 'widht'; it has width, depth, dropout"),
        ({"baseline": {"sharde": True}}, "EMOS has no option 'sharde'; it has family, seasonal"),
        ({"baseline": {"family": GAMMA, "lower": 0.0}}, f"model.baseline has no family={GAMMA}"),
    ],
    "networks.unet.UNet": [
        ({"mixture": 3}, "model.mixture must be options with their values"),
        ({"mixture": {"expert": 3}}, "model.mixture has no option 'expert'; it has experts, gate"),
        ({"mixture": {"gate": "garden"}}, "model.mixture.gate must be one of latent, sphere, computed, got 'garden'"),
        ({"mixture": {"gate": "sphere"}}, "model.mixture.degree belongs to gate sphere, got None with sphere"),
        ({"mixture": {"degree": 3}}, "model.mixture.degree belongs to gate sphere, got 3 with latent"),
        ({"mixture": {"experts": 1, "routing_quantile": 0.3}}, "experts must be a whole number of at least 2, got 1"),
        ({"mixture": {"routing_quantile": 1}}, "routing_quantile must be a number of at least 0 and less than 1"),
    ],
    "networks.transformer.Transformer": [
        ({"dropout": 1.0}, "model.dropout must be a number"),
        ({"head": "members", "baseline": {}}, "model.baseline to climate or null"),
    ],
    "published.poet.PoET": [
        ({"widths": []}, "model.widths must be a list of channels, the finest resolution first, got []"),
        ({"widths": [8, 0]}, f"model.widths {WIDTH}, got 0"),
        ({"attention_resolutions": 5}, "model.attention_resolutions must be a whole number from 0 to 4"),
        ({}, "needs 3 rows and columns at the coarsest of its 4 resolutions, and 13 x 16 points"),
    ],
    "published.deep_weather.DeepWeather": [
        ({"bias_depth": 4}, "model.bias_depth=4 needs 17 rows and columns, and got 13 x 16 points"),
        ({"uncertainty_width": 6}, "model.uncertainty_width must be a multiple of 4, got 6"),
        ({"bias_depth": 0}, "take fewer", TASK, Grid.regular(3, 8)),
    ],
    "published.ens10.ENS10UNet": [
        ({}, "halves the grid twice, which needs 5 rows and columns", TASK, SMALL),
        ({}, "halves the grid twice, which needs 5 rows and columns", TASK, Grid.regular(9, 4)),
    ],
    "networks.backbone.Backbone": [
        ({"backbone": {"_target_": "os.system"}}, "model.backbone: os.system is not in models, torch.nn, weathernets"),
        ({"backbone": RESNET, "inputs_argument": "channels"}, "model.backbone has no option 'channels'; it has in_cha"),
        ({"backbone": RESNET, "inputs_argument": None}, "model.inputs_argument must be the name of an argument"),
        (
            {"backbone": {"_target_": "torch.nn.MaxPool2d", "kernel_size": 2}, "inputs_argument": "stride"},
            "must return a tensor",
        ),
        ({"backbone": CONVOLUTION | {"kernel_size": 15}}, "model.backbone cannot take "),
        ({"backbone": CONVOLUTION | {"kernel_size": 3}}, "must return a tensor (batch, channels, 13, 16)"),
    ],
    "published.heat_networks.CNN": [
        ({}, "task toy has 3 inputs, but this model needs one"),
        ({"width": 0}, f"model.width {WIDTH}", HEAT),
        ({"coordinates": 1}, "model.coordinates must be true or false", HEAT),
    ],
    "published.heat_networks.Mixture": [
        (
            {"experts": 1, "routing": {"quantile": 0.3}},
            "model.experts must be a whole number of at least 2, got 1",
            HEAT,
        ),
        ({"routing": {"quantil": 1}}, "model.routing has no option 'quantil'; it has quantile", HEAT),
    ],
    "published.heat_networks.KnownRegions": [({}, "add data.static=[region]", Task("heat", ["heat"], ["heat"], [1]))],
    "statistical.emos.EMOS": [
        ({"lower": 0.0}, "has no lower"),
        ({"window_days": 30}, "set model.seasonal=false"),
        ({"seasonal": False, "window_days": 0}, "window_days must be a whole number from 1 to 182"),
        ({"seasonal": False, "window_days": 183}, "window_days must be a whole number from 1 to 182"),
    ],
    "statistical.boosted_emos.BoostedEMOS": [
        ({"family": GAMMA, "lower": 0.0}, f"boosting has no family {GAMMA}; set model=emos"),
        ({"lower": 0.0}, "has no lower"),
        ({"learning_rate": 2.0}, "learning_rate must be a number of at least 0.001 and less than 1"),
        ({"folds": 1}, "folds must be a whole number of at least 2"),
    ],
    "statistical.climatology.Climatology": [
        ({"harmonics": 100}, "harmonics must be a whole number"),
        ({"quantiles": 1}, "model.quantiles must be a whole number of at least 2"),
        ({"window_days": 0}, "model.window_days must be a whole number from 1 to 182"),
    ],
    "averages.committee.Committee": [
        ({"specs": [SPECS["emos"]] * 2, "weights": weights}, "must be a list for each of its 2 correctors")
        for weights in (
            [[[1.0]]],
            [[[0.5]]] * 3,
            [[[0.5]], [[0.6]]],
            [[[1.5]], [[-0.5]]],
            [[[float("nan")]]] * 2,
            [[0.5]] * 2,
            "ab",
            1,
        )
    ],
}


@pytest.mark.parametrize("name", SPECS)
def test_every_option_refuses_other_values_by_name(name):
    """Text, a mapping, and for numbers also a negative one and a truth value."""
    for option, default in SPECS[name].items():
        # Any text may name an argument; the normaliser checks `power`.
        if option in ("_target_", "inputs_argument", "power"):
            continue
        numbers = (-1, True) if isinstance(default, int | float) and not isinstance(default, bool) else ()
        for value in ("nonsense", {"nonsense": 1}, *numbers):
            with pytest.raises(InputError, match=f"{option}|nonsense"):
                build_model(SPECS[name] | {option: value}, TASK, Grid.regular(33, 64))


@pytest.mark.parametrize(
    ("kind", "options", "words", "where"),
    [(kind, options, words, where) for kind, rows in WRONG.items() for options, words, *where in rows],
)
def test_wrong_options_are_refused_by_name(kind, options, words, where):
    with pytest.raises(InputError) as refused:
        build_model({"_target_": f"models.{kind}"} | options, *[*where, *(TASK, GRID)[len(where) :]])
    assert words in str(refused.value)
