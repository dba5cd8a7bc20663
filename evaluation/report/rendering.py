"""Pages as HTML, from the templates in the folder `templates`, which escape every text."""

from __future__ import annotations

import re

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape


def render_page(template: str, **data: object) -> str:
    """Return a page as HTML; it needs no other file and no script."""
    return ENVIRONMENT.get_template(template).render(data)


def prose(text: str) -> Markup:
    """Return text as HTML: `**bold**`, code between backticks, and lines after the first in small print.

    >>> str(prose("**<b>** is `x`"))
    '<b>&lt;b&gt;</b> is <code>x</code>'
    """
    html = re.sub(r"\*\*(.*?)\*\*", r"<b>\1</b>", str(escape(text)))
    html = re.sub(r"`([^`]*)`", r"<code>\1</code>", html)
    return Markup(re.sub(r"\n(.*)", r' <span class="ci">\1</span>', html))


def with_intervals(text: str) -> Markup:
    """Return text as `prose` does, with intervals `[1, 2]` after numbers in small print."""
    return Markup(re.sub(r"(?<=[\d%†>]) (\[[^]]*\])", r' <span class="ci">\1</span>', str(prose(text))))


def sections(html: str) -> list[tuple[str, Markup]]:
    """Return the ids and headings of the sections of a page."""
    found = re.findall(r'<section[^>]* id="([^"]+)"[^>]*>\s*<h2>(.*?)</h2>', html)
    return [(name, Markup(heading)) for name, heading in found]


ENVIRONMENT = Environment(
    loader=PackageLoader("evaluation.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
ENVIRONMENT.filters |= {"prose": prose, "with_intervals": with_intervals, "sections": sections}
