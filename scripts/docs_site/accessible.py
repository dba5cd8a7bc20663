"""What the pages of the theme lack for readers with a keyboard or a screen reader."""

from __future__ import annotations

REPLACED = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer': '<aside aria-label="This page" class="toc-drawer',
    # A box that scrolls must take the focus.
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    # The head of a column without a title is no head.
    '<th class="head"><p></p></th>': "<td></td>",
    '<th class="head text-left"><p></p></th>': "<td></td>",
}


def with_access(page: str) -> str:
    """Return the HTML of a page with levels of headings, names of landmarks, and boxes that take the focus."""
    for old, new in REPLACED.items():
        page = page.replace(old, new)
    return page
