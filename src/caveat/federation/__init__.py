"""A real federation: the apps of server and silos that Flower runs, and the project that holds them."""

from importlib.util import find_spec

from ..core import ConfigurationError

if find_spec("flwr") is None:
    raise ConfigurationError('a federation between machines needs Flower: pip install "caveat[flower]"')

from ..nn.own import make_known
from .node import silo_app
from .server_side import server_app

__all__ = ["make_known", "server_app", "silo_app"]
