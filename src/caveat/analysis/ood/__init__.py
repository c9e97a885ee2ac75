"""Does a trained federation notice what it does not know? A battery of foreign inputs for finished runs."""

from .detection import Row, battery, federations, measure, of_runs, prepare, result_tables, write

__all__ = ["Row", "battery", "federations", "measure", "of_runs", "prepare", "result_tables", "write"]
