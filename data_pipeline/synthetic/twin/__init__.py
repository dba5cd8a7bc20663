"""The twin experiment: forecasts of a small planet whose truth is known, so that everybody has data.

`Twin` is the door. Inside, from the bottom up: `sphere` (transforms), `earth` (geography), `climate` (sun
and sea), `dynamics` and `physics` (tendencies), `atmosphere` (integration), `diagnostics` (archived
variables), `ensemble` (truth, members, oracle), `interpolation` and `output` (GRIB files), `processes` and
`experiment` (running it all). The equations and what was measured stand in docs/twin.md.
"""

from data_pipeline.synthetic.twin.experiment import Twin

__all__ = ["Twin"]
