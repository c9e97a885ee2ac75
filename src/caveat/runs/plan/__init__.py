"""The cost of a run (rounds, steps, bytes, memory and time), estimated by a rehearsal of a few steps."""
