"""What a comparison shows: one page that holds all of it, and a table for the terminal."""

from __future__ import annotations

from .page import render
from .terminal import conclusion, terminal

__all__ = ["conclusion", "render", "terminal"]
