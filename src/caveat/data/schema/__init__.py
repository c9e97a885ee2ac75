"""Schemas of data that stays at its silos: one of each silo, and the one that all silos share."""
