"""Every file that caveat reads or writes: how it is written, and what it holds."""
