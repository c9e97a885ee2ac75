"""The schemas of all files: each is declared once, its writer builds it, and every reader parses it."""

from ..._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
