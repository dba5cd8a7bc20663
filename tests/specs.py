"""The models of conf/model and of a package outside the project, with the options that tests use."""

from pathlib import Path
from unittest.mock import patch

from data_pipeline.common.named_options import options_in
from models.averages.auto import CANDIDATES, Candidate


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


def quick_auto():
    """Let `auto` fit one EMOS for all cells, which takes less time than to estimate what they share."""
    return patch.dict(CANDIDATES, emos=Candidate(SPECS["emos"] | {"shared": True}))


EXTERNAL = specs_of(HERE / "external" / "weathernets" / "conf")
"""Models of a package that is installed for tests: its folder is on the path (pyproject.toml)."""
EXTERNAL["vit"] |= {"patch": [1, 4]}  # divides the grids of test_contract.py
EXTERNAL["graph"] |= {"level": 1}

VARIANTS = {
    f"{name} of two paths": SPECS[name] | {"stem_width": 3, "cell_width": 5, "cell_embedding": 2}
    for name in ("unet", "transformer")
} | {"members": SPECS["transformer"] | {"head": "members", "depth": 1, "mixture": {"gate": "computed", "blend": True}}}
"""Networks with options that conf/model leaves out: a stem and a path of single cells; corrected members."""
