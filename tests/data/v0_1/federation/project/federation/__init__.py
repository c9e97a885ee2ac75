"""The app of a federation."""
