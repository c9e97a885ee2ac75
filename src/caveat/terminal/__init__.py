"""What commands print of runs, comparisons and audits: tables and lines of text."""
