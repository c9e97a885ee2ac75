"""Wrappers: methods around a base method that add rounds or outputs to any base."""
