"""The verb `prepare`: make the twin experiment, or look through the user's own files, before anything is trained."""

from __future__ import annotations

from omegaconf import DictConfig

from conf import build, verb


@verb("prepare")
def main(cfg: DictConfig) -> None:
    """Print the plan of the data source, then carry it out."""
    source = build(cfg.data.source)
    print(source.plan(), flush=True)
    source.prepare()


if __name__ == "__main__":
    main()
