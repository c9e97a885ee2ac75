"""Whole chunks of silos carried out as one stacked work, where that gives the same results and is faster."""
