"""Tables and one self-contained page from a run's folder, never from a live run."""
