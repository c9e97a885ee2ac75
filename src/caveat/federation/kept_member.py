"""What a silo has kept of a finished federation, opened to predict with."""

from __future__ import annotations

from pathlib import Path

from ..core import ConfigurationError, DataError, RunError, check_silo_name
from ..data.tables.dictionary import LabelCode, OwnColumn
from ..files.reading import read
from ..files.schema.small_files import SiloKeeps
from ..runs.local import Run
from ..runs.prepared import PREPARATION
from .silo_file import SiloFile
from .silo_runs import own_manifest
from .silo_side import MODEL_FILES, SiloSide
from .terms import Terms


def open_member(folder: Path, device: str = "cpu") -> Run:
    """What a silo keeps of a finished federation, to predict with on a device.

    No data are needed; nothing is written, in the folder or elsewhere. Raises RunError if the folder is none, DataError
    if its file is damaged or another version of caveat wrote it.
    """
    path = folder / "silo.json"
    kept = read(path, SiloKeeps)
    try:
        own, terms = kept.file, Terms.of_text(kept.terms)
        check_silo_name(own.silo)
    except (ConfigurationError, DataError) as error:
        raise DataError(f"{path}: {error}") from None
    own_manifest(folder).check(*MODEL_FILES, PREPARATION)
    categorical, numeric = (each if each is None else tuple(each) for each in (own.categorical, own.numeric))
    file = SiloFile(
        own.silo, Path(own.state), own.source, own.target, categorical, numeric, own.decimal, own.separator,
        device, codes=tuple(LabelCode(**each) for each in own.codes),
        columns=tuple(OwnColumn(**each) for each in own.columns),
    )  # fmt: skip
    try:
        return Run(SiloSide(file).predicting(terms, folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
