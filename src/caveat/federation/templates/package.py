"""The apps of a federation's server and silos, and the custom code that both import."""
