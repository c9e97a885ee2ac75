"""What all settings have in common: they are frozen dataclasses whose fields are keys, defaults, checks and help."""

from pydantic import ConfigDict

STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
"""Unknown keys are errors, and the docstring below a field is its help text."""
