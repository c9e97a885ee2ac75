"""Whether a method's uncertainties are what their names promise: experiments on the method, findings, one page."""

from ...files.schema import Finding
from .procedure import Audit, audit

__all__ = ["Audit", "Finding", "audit"]
