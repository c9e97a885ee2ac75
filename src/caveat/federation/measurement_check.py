"""What becomes of one silo's measurements, tried before they are put together with those of others."""

from __future__ import annotations

import json

from .. import metrics
from ..core import DataError, Payload, SiloId, Tensors
from ..core.silo_info import FederationInfo, SiloInfo
from ..files.schema.record import Record, as_json
from ..runs.base import BaseRun
from ..runs.classification import GROUP
from ..runs.streams import summarise_streams
from ..runs.summary import rows, silo_record
from ..wrappers.evaluation import TEST


def check_measurement(run: BaseRun, split: str, silo: SiloId, payload: Payload) -> None:
    """Raises DataError for a silo's measurements on a split that are not those asked for, and whatever a run's rows and
    summary would raise for them.
    """
    info, sums, tested = run.info.silo_infos[silo], payload["sums"], split == TEST
    if int(sums["examples"]) != info.examples[split]:
        raise DataError(f"{int(sums['examples'])} inputs of {split}, of which it has {info.examples[split]}")
    scores = {f"score.{name}" for name in run.complete_method.scores} if tested else set()
    shape = (len(run.info.classes), metrics.BINS)
    for group, tensors in payload.items():
        if group.rpartition(".")[2] in ("method", "choice", GROUP):
            continue
        if {name for name in tensors if name.startswith("score.")} != scores:
            raise DataError(f"{group} has other scores than {', '.join(sorted(scores)) or 'none'}")
        if tensors["class_bin_count"].shape != shape:
            raise DataError(f"{group} has bins {tuple(tensors['class_bin_count'].shape)}, expected {shape}")
    _check_classes(payload.get(GROUP, {}), run.info, info, tested)
    found: list[Record] = [*rows(run.method, info, payload, {"round": 1, "split": split})]
    if tested:
        found += [
            silo_record(run.complete_method, info, payload),
            *summarise_streams(run.method, {silo: payload}).values(),
        ]
    json.dumps([as_json(record) for record in found], allow_nan=False)


def _check_classes(sums: Tensors, federation: FederationInfo, silo: SiloInfo, tested: bool) -> None:
    """Raises DataError for sums of classes of another model, of another split, or of more inputs than there are."""
    expected = len(federation.classes) if tested and len(federation.classes) <= metrics.MOST_CLASSES else 0
    if len(sums.get("confusion", ())) != expected:
        raise DataError(f"sums of {len(sums.get('confusion', ()))} classes, expected {expected}")
    if sums and sums["ranks"].shape[-1] != metrics.bins_of(expected):
        raise DataError(f"ranks of {sums['ranks'].shape[-1]} bins, expected {metrics.bins_of(expected)}")
    if "calibration" in sums and int(sums["calibration"].sum()) != (n := silo.examples["calibration"]):
        raise DataError(f"{int(sums['calibration'].sum())} inputs of calibration, of which it has {n}")
