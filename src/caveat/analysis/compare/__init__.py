"""Methods compared: the same runs over seeds, and what their differences amount to."""
