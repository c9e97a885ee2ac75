"""What a run will cost, before it is paid: rounds, steps, bytes, memory and time, by a rehearsal of a few steps."""
