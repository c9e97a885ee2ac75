"""Engines run the rounds of methods at the silos, for any method."""
