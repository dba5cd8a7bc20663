"""Copy the pictures of docs/gallery.md from the figures of an evaluation, in few colours: a tenth of their size.

    python scripts/shrink_pictures.py runs/gallery/figures docs/gallery

Raises SystemExit if a figure is missing, or if the pictures together are larger than a megabyte.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from PIL import Image

PAGE = Path(__file__).parents[1] / "docs/gallery.md"
MOST_BYTES = 1_000_000
COLOURS = 128
WIDTH = 1100


def main() -> None:
    """Write every picture that the page shows."""
    source, target = (Path(argument) for argument in sys.argv[1:3])
    names = re.findall(r"\]\(gallery/(\w+)\.png\)", PAGE.read_text())
    if missing := [name for name in names if not (source / f"{name}.png").is_file()]:
        raise SystemExit(f"error: {source} has no figure {', '.join(missing)}; run scripts/gallery, which makes them")
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        with Image.open(source / f"{name}.png") as picture:
            found = picture.convert("RGB")
        if found.width > WIDTH:
            found = found.resize((WIDTH, round(found.height * WIDTH / found.width)), Image.Resampling.LANCZOS)
        found.quantize(COLOURS).save(target / f"{name}.png", optimize=True)
    size = sum((target / f"{name}.png").stat().st_size for name in names)
    print(f"{len(names)} pictures, {size / 1e3:.0f} kB")
    if size > MOST_BYTES:
        raise SystemExit(f"error: the pictures have {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
