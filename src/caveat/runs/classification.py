"""What silos' predictions tell of classes: figures per silo and of all inputs, and the thresholds that these are at."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .. import metrics
from ..core import Payload, SiloId, Tensors
from ..files.schema.figures import ClassificationRecord, OperatingRecord
from ..metrics import OperatingPoint

GROUP = "classes"
"""The group of `class_sums` in what a silo measures on its test split."""
MOST_CLASSES = 20
"""Classes up to which the confusion of each silo is written down; that of all silos together always is."""


@dataclass(frozen=True)
class Classification:
    """The figures of silos with such sums, the federation's own and newcomers, which no sum of others is of."""

    payloads: Mapping[SiloId, Payload]
    newcomers: Mapping[SiloId, Payload]
    positive: int
    """The positive class of two."""
    name: str
    """What it is called."""
    sensitivity: float | None
    """What thresholds are chosen for; None for Youden's J."""

    def figures(self, silo: SiloId) -> dict[str, float]:
        """Empty where a silo has none of these sums."""
        return metrics.classification(self.sums[silo], self.positive) if silo in self.sums else {}

    @property
    def over_silos(self) -> dict[str, dict[str, float]]:
        """ "mean" and "worst" of the federation's silos."""
        return metrics.across({silo: self.figures(silo) for silo in self.payloads})

    @cached_property
    def pooled(self) -> dict[str, float]:
        return metrics.classification(self._merged, self.positive) if self._merged else {}

    def of_silo(self, silo: SiloId) -> ClassificationRecord | None:
        """What a silo's record has beside the figures."""
        if silo not in self.sums:
            return None
        own = self.sums[silo]
        few = len(own["confusion"]) <= MOST_CLASSES
        return ClassificationRecord(
            confusion=own["confusion"].int().tolist() if few else None,
            operating=self._operating(own, self._point(silo), "federation" if self._own(silo) is None else "silo"),
        )

    @property
    def of_all(self) -> ClassificationRecord | None:
        """The same of all silos' inputs together, each called positive or not by its silo's threshold."""
        if not self._merged:
            return None
        two = len(self._merged["confusion"]) == 2
        target = f"sensitivity {self.sensitivity:g}" if self.sensitivity is not None else "Youden's J"
        return ClassificationRecord(
            positive=self.name if two else "",
            rule=target if two else "",
            confusion=self._merged["confusion"].int().tolist(),
            operating=self._operating(self._merged, self._federation, "federation"),
        )

    @cached_property
    def sums(self) -> dict[SiloId, Tensors]:
        """Of each silo, with what its threshold makes of its test split if it has one."""
        every = {**self.payloads, **self.newcomers}
        return {silo: self._with_called(silo, payload[GROUP]) for silo, payload in every.items() if GROUP in payload}

    def _with_called(self, silo: SiloId, sums: Tensors) -> Tensors:
        known = {name: sums[name] for name in ("confusion", "ranks")}
        if (point := self._point(silo)) is None:
            return known
        return known | metrics.called(point, *metrics.by_class(sums, self.positive)[0])

    @cached_property
    def _merged(self) -> Tensors:
        parts = [self.sums[silo] for silo in self.payloads if silo in self.sums]
        return metrics.merge(parts) if parts else {}

    def _point(self, silo: SiloId) -> OperatingPoint | None:
        """A silo's own threshold, or the federation's where it has none."""
        return self._own(silo) or self._federation

    def _own(self, silo: SiloId) -> OperatingPoint | None:
        """None where a silo has too few calibration inputs of a class."""
        payload = self.payloads[silo] if silo in self.payloads else self.newcomers[silo]
        found = self._chosen([payload])
        return found if found is not None and found.enough else None

    @cached_property
    def _federation(self) -> OperatingPoint | None:
        return self._chosen(list(self.payloads.values()))

    def _chosen(self, payloads: list[Payload]) -> OperatingPoint | None:
        """The threshold by the calibration inputs of these silos together."""
        parts = [{"ranks": p[GROUP]["calibration"][None]} for p in payloads if "calibration" in p.get(GROUP, {})]
        if not parts:
            return None
        (pair,) = metrics.by_class(metrics.merge(parts), self.positive)
        return metrics.operating_point(*pair, self.sensitivity)

    @staticmethod
    def _operating(sums: Tensors, point: OperatingPoint | None, whose: str) -> OperatingRecord | None:
        if point is None or "called" not in sums:
            return None
        (right_no, false_yes), (false_no, right_yes) = sums["called"].int().tolist()
        return OperatingRecord(
            threshold=point.threshold, whose=whose, positives=point.positives, negatives=point.negatives,
            true_positives=right_yes, false_negatives=false_no, false_positives=false_yes, true_negatives=right_no,
        )  # fmt: skip
