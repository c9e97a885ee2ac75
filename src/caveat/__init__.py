"""caveat: uncertainty-aware federated learning in heterogeneous data silos."""

import logging

from ._lazy import attach

logging.getLogger(__name__).addHandler(logging.NullHandler())  # users decide whether logs are shown
__getattr__, __dir__, __all__ = attach(__name__, __file__)
