"""The verb `export`: writes a corrector as an ONNX file, with which `correct` runs without PyTorch."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from conf import plain, verb
from data_pipeline.common.errors import InputError
from data_pipeline.common.fetching import local_file
from models.engines.onnx_export import export


def export_files(cfg: DictConfig) -> tuple[str, Path]:
    """Check the options; return the file or URL of the corrector, and the output file."""
    options = plain(cfg)
    for name in ("corrector", "output"):
        if not isinstance(options[name], str) or not options[name]:
            raise InputError(f"{name} must be the path of one file, got {options[name]!r}")
    output = Path(options["output"]).expanduser()
    if output.suffix != ".onnx":
        raise InputError(f"output={output} must end in .onnx, such as {output.with_suffix('.onnx')}")
    return options["corrector"], output


@verb("export", export_files)
def main(cfg: DictConfig) -> None:
    """Check the options, export the corrector, print how much the two differ."""
    corrector, output = export_files(cfg)
    equality = export(local_file(corrector), output)
    differences = ", ".join(f"{name} {value:.2g}" for name, value in equality.largest_difference.items())
    print(
        f"wrote {output}: on {equality.inputs} forecasts ONNX Runtime and PyTorch differ by at most {differences}, "
        f"{equality.share_of_tolerance:.0%} of what is accepted"
    )


if __name__ == "__main__":
    main()
