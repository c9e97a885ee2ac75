"""Configurations: TOML and `--set` in, a frozen `Config` or every problem at once out, and back to commented TOML.

The dataclasses of data, model, training and methods are the only declaration: their fields are the keys, their
defaults the defaults, their docstrings the help texts.
"""

from ..wrappers.uncertainty import Uncertainty
from .load import dictionary_text, find, load, load_kept, loads, read_dictionary
from .schema import Config, EngineSettings, Evaluation, Federation, MethodSettings, check_personal, is_stranger, reading
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
    "is_stranger",
    "load",
    "load_kept",
    "loads",
    "read_dictionary",
    "reading",
]
