"""What runs at a silo of a federation, on its own machine."""
