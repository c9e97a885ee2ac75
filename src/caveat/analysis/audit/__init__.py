"""Audit of a method: experiments that test whether its uncertainties measure what their names say, and the findings."""

from ...files.schema import Finding
from .procedure import Audit, audit

__all__ = ["Audit", "Finding", "audit"]
