"""A notebook as a page: its text and its code, with a link to the notebook itself."""

from __future__ import annotations

import json
from pathlib import Path


def as_page(path: Path) -> str:
    """Return a notebook as Markdown. Results of cells are left out: whoever runs the notebook sees them."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"]).strip()
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    title, _, rest = parts[0].partition("\n")
    link = f"This page is the notebook {{download}}`{path.name}`, which you can run cell by cell."
    return "\n\n".join([title, link, rest.strip(), *parts[1:]]) + "\n"
