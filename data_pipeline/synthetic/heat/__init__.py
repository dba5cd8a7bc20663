"""The heat experiment: plates of which some parts conduct better than others; made when it is read, never written."""

from data_pipeline.synthetic.heat.source import Heat

__all__ = ["Heat"]
