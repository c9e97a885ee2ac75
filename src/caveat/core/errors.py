"""Every error that caveat raises on purpose."""

from __future__ import annotations


class CaveatError(Exception):
    """The base of every error that caveat raises on purpose."""


class ConfigurationError(CaveatError):
    """A configuration that cannot be run: names the value, what was expected, and where it came from."""


class DataError(CaveatError):
    """Data that cannot be used: names the file or silo, what is wrong with it, and what to do."""


class RunError(CaveatError):
    """A run that failed part-way; what was computed before is kept."""
