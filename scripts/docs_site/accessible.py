"""Additions to the theme's pages for readers with a keyboard or a screen reader."""

from __future__ import annotations

REPLACED = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer': '<aside aria-label="This page" class="toc-drawer',
    # A box that scrolls must be reachable by keyboard.
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    # An empty cell in the head of a table is no heading.
    '<th class="head"><p></p></th>': "<td></td>",
    '<th class="head text-left"><p></p></th>': "<td></td>",
}


def with_access(page: str) -> str:
    """Return the HTML of a page with heading levels, names of landmarks, and boxes that a keyboard reaches."""
    for old, new in REPLACED.items():
        page = page.replace(old, new)
    return page
