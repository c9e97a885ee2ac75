"""What silos say of data that stays where it is, and what all of them agree on."""
