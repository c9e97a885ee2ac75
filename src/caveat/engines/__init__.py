"""Engines run the rounds of methods at the silos. They know no method by name."""
