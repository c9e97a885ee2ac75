"""The page of a run, a module per section."""
