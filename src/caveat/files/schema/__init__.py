"""What files hold: one schema per file, which its writer builds and every reader parses."""
