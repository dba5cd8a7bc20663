"""The twin experiment: forecasts of a small planet whose truth is known, available without a download.

`Twin` is the public class. The modules, from the bottom up: `sphere` (transforms and interpolation), `noise`, `earth`
(geography), `climate` (sun and sea), `dynamics` and `physics` (tendencies), `atmosphere` (integration), `diagnostics`
(archived variables), `start_pairs` (units of work and their files), `simulation` (truth, members, oracle),
`grib_writer`, `processes` and `experiment` (running it all). See docs/twin.md.
"""

from data_pipeline.synthetic.twin.experiment import Twin

__all__ = ["Twin"]
