"""Check the built site: every internal link and anchor exists, and no page loads anything from another host.

python docs/check_site.py build/site
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src")}
LOADED_BY_STYLE = re.compile(r"(?:url\(|@import\s+)['\"]?((?:https?:)?//[^)'\"]+)")


class Page(HTMLParser):
    """The anchors, links and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loaded += [values[key] for where, key in LOADED if where == tag and key in values]


def problems(site: Path) -> list[str]:
    """Return a line per dead link, and per file that a page or a style sheet loads from another host."""
    site = Path(os.path.normpath(site))
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    exists = cache(Path.exists)
    for path, page in pages.items():
        for address in dict.fromkeys(page.links + page.loaded):
            parts = urlsplit(address)
            if parts.scheme in ("http", "https") or parts.netloc:
                if address in page.loaded:
                    found.append(f"{path.relative_to(site)}: loads {address}")
                continue
            if parts.scheme:  # data, mailto
                continue
            target = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            if not exists(target):
                found.append(f"{path.relative_to(site)}: no file for {address}")
            elif parts.fragment and target.suffix == ".html":
                there = pages.get(target)
                if there is not None and unquote(parts.fragment) not in there.anchors:
                    found.append(f"{path.relative_to(site)}: no anchor for {address}")
    for path in site.rglob("*.css"):
        loaded = LOADED_BY_STYLE.findall(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)}: loads {each}" for each in loaded]
    return found


if __name__ == "__main__":
    lines = problems(Path(sys.argv[1]))
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(bool(lines))
