"""Check the built site: every internal link and anchor exists, and no page loads anything from another host.

python docs/check_site.py build/site
"""

from __future__ import annotations

import re
import sys
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
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for address in page.links + page.loaded:
            parts = urlsplit(address)
            if parts.scheme in ("http", "https") or parts.netloc:
                if address in page.loaded:
                    found.append(f"{path.relative_to(site)}: loads {address}")
                continue
            if parts.scheme:  # data, mailto
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            if not target.exists():
                found.append(f"{path.relative_to(site)}: no file for {address}")
            elif parts.fragment and target.suffix == ".html":
                there = pages.get(site / target.relative_to(site.resolve()))
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
