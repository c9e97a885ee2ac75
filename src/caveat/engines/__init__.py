"""Engines: ways to carry a round's work to silos. They run methods and know none by name."""
