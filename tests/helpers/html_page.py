"""Pages as their parsers see them."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "input"}


class Page(HTMLParser):
    """Collects a page's elements and words, and checks that every element is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.stack: list[str] = []
        self.feed(text)
        assert not self.stack

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] not in ("style", "script"):
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every such element."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        """All words of the page."""
        return " ".join(" ".join(self.words).split())

    @property
    def sections(self) -> list[str | None]:
        """Their places, in the order of the page."""
        return [attributes["id"] for attributes in self.all("section")]
