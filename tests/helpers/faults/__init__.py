"""The harness of faults."""
