"""What has to hold for an update, or for measurements, to be counted."""
