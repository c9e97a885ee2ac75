"""Text output of commands for runs, comparisons and audits."""
