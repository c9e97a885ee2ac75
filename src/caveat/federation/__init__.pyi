"""The names that a project on Flower imports, and their modules."""

from ..nn.custom_model import make_known as make_known
from .server.app import server_app as server_app
from .silo.app import silo_app as silo_app
