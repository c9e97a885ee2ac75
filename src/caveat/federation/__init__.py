"""Federations across machines: the apps of server and silos that Flower runs, and the project with these apps.

Names are imported on first use, because not every process of a federation needs torch.
"""

from importlib.util import find_spec

from .._lazy import attach

if find_spec("flwr") is None:
    from ..core import ConfigurationError

    raise ConfigurationError('a federation across machines needs Flower: pip install "caveat[flower]"')

__getattr__, __dir__, __all__ = attach(__name__, __file__)
