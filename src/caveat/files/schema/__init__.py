"""The schemas of all files: each is declared once, its writer builds it, and every reader parses it."""
