"""What a comparison shows: one page that holds all of it, and a table for the terminal."""

from __future__ import annotations

from .page import render
from .records import Comparison, read
from .terminal import terminal

__all__ = ["Comparison", "read", "render", "terminal"]
