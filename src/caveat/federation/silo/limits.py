"""What a silo allows the federations that it takes part in: `[limits]` of its `silo.toml`.

What it has done so far is in the ledgers that it keeps itself, of every federation below its `state`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...config import Config, load_kept
from ...core import ConfigurationError, RunError, SiloId
from ...core.text import plural
from ...engines.flower_messages import Order
from ...files.ledger import read_ledger
from ...runs.spec import spec_of
from ...wrappers.evaluation import Evaluated
from ...wrappers.privacy import DELTA, composed
from ..terms import Terms


class BeyondLimits(RunError):
    """What a silo does not do, as its own file does not allow it.

    The text is for the silo alone. Others are `told` the silo and the rule, which is a key of `[limits]`.
    """

    def __init__(self, text: str, rule: str, silo: SiloId) -> None:
        super().__init__(text, silo)
        self.rule = rule
        self.told = f"silo {silo!r} refuses: {rule}"


LEDGER = "ledger.jsonl"
NO_NOISE = 0.0
"""The noise multiplier of an update that leaves a silo as it is."""


@dataclass(frozen=True)
class Limits:
    """Methods, rounds of training and epsilon of one silo, over all federations whose state is in its folder."""

    methods: tuple[str, ...] | None = None
    """The methods that it takes part in; any if None."""
    rounds: int | None = None
    """How many updates of training leave it; one that is asked for again counts again, and so does any other answer."""
    epsilon: float | None = None
    """The epsilon of those updates, of the whole silo, towards a server that sees each of them."""
    delta: float = DELTA
    """The delta for which that epsilon is."""

    @classmethod
    def of(cls, table: dict[str, Any]) -> Limits:
        """Of the table in a file. Raises ConfigurationError naming the key, its value and what was expected."""
        for key, value in table.items():
            if key not in _EXPECTED:
                raise ConfigurationError(f"limits.{key} is no key; there are: {', '.join(_EXPECTED)}")
            if not _fits(key, value):
                raise ConfigurationError(f"limits.{key} = {value!r}, expected {_EXPECTED[key]}")
        return cls(**table | ({"methods": tuple(table["methods"])} if "methods" in table else {}))

    def check_begin(self, silo: SiloId, terms: Terms, state: Path) -> None:
        """Raises BeyondLimits if all rounds of a federation, after what was done for others, are more than allowed."""
        methods = (terms.config.method.name, *terms.config.baselines)
        self._check_methods(silo, methods)
        if self.counts:
            planned = [_multiplier(terms.config)] * sum(len(_training(terms.config, name)) for name in methods)
            left = _left(state)
            others = [sent for home, sent in left.updates if home != terms.federation]
            self._check_updates(silo, [*others, *planned], left.repeated, "with all rounds of this federation")

    def check_order(self, silo: SiloId, terms: Terms, order: Order, state: Path) -> None:
        """Raises BeyondLimits if an update, or any other answer that was given before, is one more than allowed."""
        self._check_methods(silo, (terms.method,))
        if not self.counts:
            return
        left = _left(state)
        sent = [multiplier for _, multiplier in left.updates]
        if order.task in _training(terms.own_config, terms.method):
            self._check_updates(silo, [*sent, _multiplier(terms.config)], left.repeated, "with this round")
        elif Answer(terms.federation, terms.method, order.t, order.task) in left.answers:
            self._check_updates(silo, sent, left.repeated + 1, "with this answer once more")

    @property
    def counts(self) -> bool:
        """Whether updates are counted, over all federations."""
        return self.rounds is not None or self.epsilon is not None

    def _check_methods(self, silo: SiloId, asked: Iterable[str]) -> None:
        if self.methods is None:
            return
        for name in asked:
            if name not in self.methods:
                allowed = ", ".join(self.methods) or "none"
                raise BeyondLimits(
                    f"the federation's method {name!r} is not among those that limits.methods of silo.toml allows: "
                    f"{allowed}",
                    "limits.methods",
                    silo,
                )

    def _check_updates(self, silo: SiloId, multipliers: list[float], repeated: int, when: str) -> None:
        """Hold updates, each given by the multiplier of its noise, and repeated answers against what is allowed."""
        if self.rounds is not None and len(multipliers) + repeated > self.rounds:
            others = f" and {plural(repeated, 'repeated answer')}" if repeated else ""
            updates = plural(len(multipliers), "update")
            raise BeyondLimits(
                f"{when} {updates} of training{others} would have left this silo, and limits.rounds "
                f"of silo.toml allows {self.rounds}",
                "limits.rounds",
                silo,
            )
        if self.epsilon is not None and (found := composed(multipliers, self.delta)) > self.epsilon:
            why = "an update without noise: [privacy] is not set" if math.isinf(found) else f"epsilon {found:.3g}"
            raise BeyondLimits(
                f"{when} this silo would come to {why}, and limits.epsilon of silo.toml allows {self.epsilon:g} at a "
                f"delta of {self.delta:g}",
                "limits.epsilon",
                silo,
            )


_EXPECTED = {
    "methods": "a list of names of methods",
    "rounds": "a whole number, 1 or more",
    "epsilon": "a finite number above 0",
    "delta": "a number between 0 and 1",
}


def _fits(key: str, value: object) -> bool:
    if key == "methods":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if key == "rounds":
        return isinstance(value, int) and value >= 1
    return 0 < value < (1 if key == "delta" else math.inf)


def _training(config: Config, method: str) -> list[str]:
    """The addresses of the works of a method's rounds of training, one for each round."""
    spec = spec_of(config, method)
    method_of_run = Evaluated(spec.complete_method(spec.expected or 1))
    return [step.address for step in method_of_run.schedule() if step.trains]


def _multiplier(config: Config) -> float:
    """The standard deviation of the noise in a silo's update, divided by how far that can move it.

    None is counted where the noise depends on how many silos the server says that there are.
    """
    spec = spec_of(config)
    if config.privacy.clip_norm is None or spec.expected is None:
        return NO_NOISE
    return config.privacy.multiplier / math.sqrt(spec.cohort_size(spec.expected))


class Answer(NamedTuple):
    """What a silo was asked for beside updates of training."""

    federation: str
    method: str
    t: int | None
    task: str


@dataclass(frozen=True)
class _Left:
    """What has left a silo, by the ledgers that it keeps."""

    updates: list[tuple[str, float]]
    """Of each update of training its federation and the multiplier of its noise."""
    answers: Counter[Answer]
    """How often every other answer has."""

    @property
    def repeated(self) -> int:
        """How many answers other than updates of training have left it that had left it before.

        A server that asks for one again, with another model, learns as much of the rows as by another round.
        """
        return self.answers.total() - len(self.answers)


def _left(state: Path) -> _Left:
    left = _Left([], Counter())
    for path in sorted(state.glob(f"*/*/{LEDGER}")):
        home, method = path.parent.parent, path.parent.name
        config = load_kept(home / "config.toml")
        training, multiplier = set(_training(config, method)), _multiplier(config)
        for message in read_ledger(path).messages:
            if message.task in training:
                left.updates.append((home.name, multiplier))
            else:
                left.answers[Answer(home.name, method, message.t, message.task or "")] += 1
    return left
