"""The drawing kit of all pages."""
