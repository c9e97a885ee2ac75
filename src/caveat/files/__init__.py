"""Every file that caveat reads or writes: how it is written, and what it holds."""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
