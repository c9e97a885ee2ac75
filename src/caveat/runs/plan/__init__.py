"""What a run will cost: rounds, steps, bytes, memory and time, from a rehearsal of a few steps."""
