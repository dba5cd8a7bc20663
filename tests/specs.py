"""Every model of conf/model, as tests build it."""

from pathlib import Path

from omegaconf import OmegaConf

CONF = Path(__file__).parents[1] / "conf" / "model"
SPECS = {path.stem: OmegaConf.to_container(OmegaConf.load(path)) for path in sorted(CONF.glob("*.yaml"))}
SPECS["boosted_emos"] |= {"steps": 10, "folds": 2}  # more of them only take longer
