"""Does a trained federation notice what it does not know? A battery of foreign inputs for finished runs."""

from .battery import Row, measure
from .command import battery, federations

__all__ = ["Row", "battery", "federations", "measure"]
