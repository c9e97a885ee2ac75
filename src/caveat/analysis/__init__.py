"""Analyses of many runs: comparisons, reproductions of papers' tables, and audits."""
