"""A real federation: the apps of server and silos that Flower runs, and the project that holds them.

What it hands out is imported when it is asked for: not every process of a federation needs torch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("flwr") is None:
    from ..core import ConfigurationError

    raise ConfigurationError('a federation between machines needs Flower: pip install "caveat[flower]"')

if TYPE_CHECKING:
    from ..nn.own import make_known
    from .node import silo_app
    from .server_side import server_app

_PLACES = {"make_known": "..nn.own", "silo_app": ".node", "server_app": ".server_side"}

__all__ = ["make_known", "server_app", "silo_app"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name], __name__), name)
