"""HTML pages of runs, comparisons and audits, self-contained, with their plots and tables."""
