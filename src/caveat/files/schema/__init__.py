"""The schemas of all files: each is declared once, built by its writer and validated by every reader."""

from ..._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
