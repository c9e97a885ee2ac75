"""Secure aggregation: the server learns the sum of what silos send, and nothing else (Bonawitz et al., 2017)."""
