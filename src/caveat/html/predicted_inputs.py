"""Predictions for the inputs of a file, as their page shows them: alarms, doubts, and names."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from torch import Tensor

from ..core import Decision, Prediction, Reason
from ..core.text import plain
from ..uncertainty import novelty
from ..uncertainty.statistical_tests import beta_binomial_tail, change_test

LEVEL = 0.01
"""Level of the tests of all inputs together."""
_FEW_EQUAL = 2
"""Number of inputs up to which equal distances may be due to rounding."""
NEAR = 0.2
"""Difference of two probabilities below which a label is nearly undecided, such as 0.59 and 0.41."""


class Alarms(NamedTuple):
    """The alarms of a file."""

    raised: int
    p: float
    """The probability of as many or more among inputs like the silo's own."""

    @property
    def unlike(self) -> bool:
        """Whether there are more than chance explains."""
        return self.p < LEVEL

    @property
    def seldom(self) -> bool:
        """Whether fewer than one in 20 files of the silo's own inputs have as many by chance."""
        return self.p < 0.05


@dataclass(frozen=True)
class SiloAdvice:
    """What the report of a run says about the use of one silo's model."""

    against: str = ""
    """Why not to use the model; empty without a reason."""
    beside: bool = False
    """Whether to use it only beside a person's own decision."""
    overconfident: bool = False
    """Whether the report says not to trust its confidence."""
    check: Markup | None = None
    """How to check the unusual data of the run first; None if no warning about data concerns the silo."""


NOTHING = SiloAdvice()


@dataclass(frozen=True)
class PredictedInputs:
    """Predictions for the inputs of one file at one silo."""

    prediction: Prediction
    classes: Sequence[str]
    method: str
    silo: str
    source: str
    """The name of the file."""
    cells: Mapping[str, Sequence[str]]
    """The columns of a table, as written; empty for other inputs."""
    image: Callable[[int], str | None]
    """Returns the image of an input as base64 PNG, if it is one."""
    files: Sequence[str] = ()
    others: Sequence[str] = ()
    """The other silos of the run."""
    tested: tuple[int, int] | None = None
    """Numbers of wrong and of answered test inputs of the silo or, with a limit, of all silos' test inputs up to the
    limit; None for a quantity or a time."""
    own: tuple[int, int] | None = None
    """Numbers of wrong and of answered test inputs of the silo, whatever the limit."""
    limit: float | None = None
    """The total uncertainty above which the run's report refers inputs to a person; None without one."""
    advised: SiloAdvice = NOTHING
    """The advice of the run's report on this silo's model."""
    confusion: Sequence[Sequence[int]] = ()
    """The silo's test inputs by class and most probable class; empty if they were not counted."""
    positive: int | None = None
    """The place of the positive class, if there is one."""
    warnings: Sequence[str] = ()
    """The run's warnings that concern the silo."""
    in_sample: str = ""
    """The statement that the run has trained on these inputs; empty if it has not."""
    different: int | None = None
    """The number of different inputs; None if unknown."""
    features: str = "features"
    """What the model maps inputs to, before classes: "codewords" if features are discrete."""
    evaluating: str = ""
    """The command that tests the model on labelled inputs of this silo, those of the file if it has labels."""
    labelled: bool = False
    """Whether the file has labels."""
    command: str = ""
    missing_there: Collection[str] = ()
    """Columns that are mostly missing in the calibration rows of the silo `namesake`, if the run keeps these rows."""
    own_images: bool = False
    """Whether the run's report shows images of the silo."""

    @property
    def equal_to_training(self) -> int:
        """The number of inputs whose features equal those of a training input, if this is more than a tenth; 0 for
        codewords, which many inputs share. These inputs have the lowest distance to the nearest training input, which
        inputs with distinct features have only by rounding."""
        novel, nearness = self.prediction.uncertainty.get(novelty.SCORE), self.prediction.nearness
        if novel is None or nearness is None or not len(novel) or self.features == "codewords":
            return 0
        lowest = int(((novel == novel.min()) & (nearness == 1)).sum())
        return lowest if lowest > max(_FEW_EQUAL, len(novel) / 10) else 0

    @cached_property
    def reasons(self) -> list[Reason]:
        return [Reason(each) for each in self.prediction.reason.tolist()]

    @cached_property
    def answered(self) -> list[bool]:
        return (self.prediction.decision != Decision.ABSTAIN).tolist()

    @cached_property
    def doubtful(self) -> list[bool]:
        """Whether an input is abstained from or has a reason not to rely on its label."""
        return [bool(reason) or not known for reason, known in zip(self.reasons, self.answered, strict=True)]

    @property
    def beside(self) -> bool:
        """Whether labels without a reason are used only beside a person's own decision."""
        return self.advised.beside and not (self.advised.against or self.all_unlike)

    @property
    def decides(self) -> list[str]:
        """Who decides an input by the advice of the run's report: "person" or "model"."""
        return ["person" if referred or self.beside else "model" for referred in self.referred]

    @cached_property
    def referred(self) -> list[bool]:
        """Whether the label of an input is not used: it is doubtful or above the limit, or nothing can be relied on."""
        if self.advised.against or self.all_unlike:
            return [True] * len(self.prediction)
        limit = math.inf if self.limit is None else self.limit
        over = (self.prediction.uncertainty["total"] > limit).tolist() if limit < math.inf else self.doubtful
        return [either or other for either, other in zip(self.doubtful, over, strict=True)]

    @cached_property
    def ranked_among(self) -> int:
        """The number of calibration inputs among which p-values rank, the smallest one if inputs differ in it."""
        among = self.prediction.ranked_among
        return among if isinstance(among, int) else int(among.min()) if len(among) else 0

    @property
    def alarm_rank(self) -> int:
        """Maximum number of inputs at least as unusual as an input with an alarm: this one and calibration inputs."""
        return math.floor(self.prediction.false_alarm_rate * (self.ranked_among + 1) + 1e-9)

    @cached_property
    def alarms(self) -> Alarms | None:
        """The alarms; None if no alarm is possible."""
        n, rate, typicality = len(self.prediction), self.prediction.false_alarm_rate, self.prediction.typicality
        places = self.alarm_rank
        if typicality is None or not n or places < 1:
            return None
        raised = int((typicality <= rate).sum())
        # The threshold comes from the same few calibration inputs for all new inputs.
        p = beta_binomial_tail(raised, n, places, self.ranked_among + 1 - places)
        return Alarms(raised, p)

    @cached_property
    def change(self) -> tuple[int, float]:
        """The number of inputs before the place at which p-values change most, and the p-value of no change."""
        values = self.prediction.typicality
        known = [] if self.alarms is None or values is None else values.nan_to_num(nan=0.0).tolist()
        return change_test(np.array(known))

    @property
    def changes(self) -> bool:
        """Whether p-values change within the file."""
        return self.change[1] < LEVEL

    @property
    def namesake(self) -> str:
        """The other silo that the file is named after; "" without one."""
        return namesake(self.source, self.others)

    @property
    def of_silo(self) -> str:
        """The other silo to which inputs of the run belong by the name of their file; "" if unknown."""
        return self.namesake if self.in_sample else ""

    @cached_property
    def unlike(self) -> list[str]:
        """The columns unlike the silo's own, each once."""
        return list(dict.fromkeys(plain(each.name) for each in self.prediction.unlike_columns))

    @property
    def all_unlike(self) -> bool:
        """Whether all inputs together are unlike the silo's own, by alarms or columns."""
        return bool((self.alarms and self.alarms.unlike) or self.unlike)

    @cached_property
    def undecided(self) -> int:
        """The number of inputs whose label is used although two classes are nearly equally probable."""
        if self.figures or self.prediction.probs.shape[-1] < 2:
            return 0
        first, second = self.prediction.probs.topk(2).values.unbind(-1)
        near = (first - second < NEAR).tolist()
        return sum(either and not referred for either, referred in zip(near, self.referred, strict=True))

    @cached_property
    def undefined(self) -> int:
        """The number of inputs whose probabilities are not finite."""
        return int((~self.prediction.probs.isfinite().all(-1)).sum())

    @cached_property
    def figures(self) -> Mapping[str, Tensor]:
        """Predicted values of a quantity or a time by name, (N,) each; empty for classes."""
        target = self.prediction.target
        return {} if target is None else target.figures(self.prediction.probs, self.prediction.interval)

    @cached_property
    def doubt(self) -> Tensor:
        """(N,) values by which inputs are ordered, lower for surer answers: the width of the interval, the spread of a
        time or of a quantity without intervals, and the uncertainty of a class."""
        if "high" in self.figures:
            return self.figures["high"] - self.figures["low"]
        return self.figures.get("spread", self.prediction.uncertainty["total"])

    def place(self, i: int) -> str:
        """Return the name of an input: its file, or its row, from 0."""
        return plain(self.files[i]) if self.files else f"row {i}"

    def label(self, i: int) -> str:
        known = bool(self.prediction.probs[i].isfinite().all())
        return self.classes[int(self.prediction.label[i])] if known else "undefined"


def namesake(file: str, silos: Collection[str]) -> str:
    """Return the silo that a file is named after; "" without one."""
    stem = PurePath(file).stem
    return stem if stem in silos else ""
