"""The models of conf/model and of a package outside the project, with the options that tests use."""

from pathlib import Path

from data_pipeline.common.named_options import options_in


def specs_of(conf):
    """The models of a folder `conf`, by name."""
    names = sorted(path.stem for path in (conf / "model").glob("*.yaml"))
    return {name: options_in(conf / "model", name) for name in names}


HERE = Path(__file__).parent
SPECS = specs_of(HERE.parent / "conf")
SPECS["auto"] |= {"minutes": 0, "folds": 2}  # without boosted EMOS, which is tested alone
SPECS["boosted_emos"] |= {"max_steps": 10, "folds": 2}  # more steps and folds only take longer
SPECS["poet"] |= {"widths": [4, 8, 12], "heads": 3}  # the published widths need larger grids and more time

QUICK = SPECS | {"emos": SPECS["emos"] | {"shared": False}}
"""With EMOS of each cell: to estimate what cells share takes many times as long, and has tests of its own."""

EXTERNAL = specs_of(HERE / "external" / "weathernets" / "conf")
"""Models of a package that is installed for tests: its folder is on the path (pyproject.toml)."""
EXTERNAL["vit"] |= {"patch": [1, 4]}  # divides the grids of test_contract.py
EXTERNAL["graph"] |= {"level": 1}

TWO_PATHS = {
    f"{name} of two paths": SPECS[name] | {"stem_width": 3, "cell_width": 5, "cell_embedding": 2}
    for name in ("unet", "transformer", "transformer_independent")
}
"""Networks with a stem and a path of single cells, which conf/model leaves out."""
