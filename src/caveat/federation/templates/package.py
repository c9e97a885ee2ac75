"""The app of a federation: its two sides, and the code of one's own that both of them know."""
