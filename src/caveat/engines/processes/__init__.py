"""Silos in worker processes on this machine."""
