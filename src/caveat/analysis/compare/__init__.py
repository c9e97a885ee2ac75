"""Comparisons of methods: runs over seeds, and statistics of their differences."""
