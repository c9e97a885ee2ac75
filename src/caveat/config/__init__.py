"""Configurations, which are read from TOML and `--set` as a frozen `Config`, or else as a report of all problems, and
written as TOML.

Each key is declared only once, as a field of a dataclass, with its default and a docstring as help text.
"""

from ..wrappers.uncertainty_settings import Uncertainty
from .load import dictionary_text, find, load, load_kept, loads, read_dictionary
from .settings import (
    Config,
    EngineSettings,
    Evaluation,
    Federation,
    MethodSettings,
    check_personal,
    is_unavailable,
    reading,
)
from .toml import dump, dump_dictionary, first_line

__all__ = [
    "Config",
    "EngineSettings",
    "Evaluation",
    "Federation",
    "MethodSettings",
    "Uncertainty",
    "check_personal",
    "dictionary_text",
    "dump",
    "dump_dictionary",
    "find",
    "first_line",
    "is_unavailable",
    "load",
    "load_kept",
    "loads",
    "read_dictionary",
    "reading",
]
