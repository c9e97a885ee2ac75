"""Where samples come from, before they are silos."""
