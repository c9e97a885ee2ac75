"""Tables of the papers, run again: what to run at which scale, and what the paper prints."""

from .table import Scale, absent, grid, listing, missing, named, seeds_of, tables

__all__ = ["Scale", "absent", "grid", "listing", "missing", "named", "seeds_of", "tables"]
