"""A federation between machines: the apps of server and silos that Flower runs, and the project that holds them.

Names are imported on first use, since not every process of a federation needs torch.
"""

from importlib.util import find_spec

from .._lazy import attach

if find_spec("flwr") is None:
    from ..core import ConfigurationError

    raise ConfigurationError('a federation between machines needs Flower: pip install "caveat[flower]"')

__getattr__, __dir__, __all__ = attach(__name__, __file__)
