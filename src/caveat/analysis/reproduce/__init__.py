"""Tables of the papers, run again: what to run at which scale, and what the paper prints."""

from ..._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
