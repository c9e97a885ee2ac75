"""A silo of a federation, on its own machine."""
