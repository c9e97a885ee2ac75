"""Tables and one self-contained page from a run's folder, never from a live run."""

from .folder import Run, read_run
from .page import write_report
from .tables import result_table

__all__ = ["Run", "read_run", "result_table", "write_report"]
