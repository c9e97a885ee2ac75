"""Tables and one self-contained page from a run's folder, never from a live run."""

from ....files.run_folder import RunFolder, read_run
from .guarantee import guarantee_lines
from .ledger import ledger_tables
from .page import write_report
from .terminal import model_table, result_table

__all__ = ["RunFolder", "guarantee_lines", "ledger_tables", "model_table", "read_run", "result_table", "write_report"]
