"""What a project of Flower imports, and where it is."""

from ..nn.own import make_known as make_known
from .node import silo_app as silo_app
from .server_side import server_app as server_app
