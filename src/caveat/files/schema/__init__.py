"""The schemas of all files. Each schema is declared only once, used by the writer and validated by every reader."""

from ..._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
