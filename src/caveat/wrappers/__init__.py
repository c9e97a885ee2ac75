"""Methods around a method: they add rounds or outputs to any base, and know none by name."""
