"""The app of a federation: its two sides, and the custom code that both import."""
