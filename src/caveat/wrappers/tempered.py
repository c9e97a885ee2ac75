"""Temperature scaling of any method, exact over all silos: they send four sums per model and round.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017. The temperature is that of the silos' calibration
splits pooled, found by safeguarded Newton steps (`caveat.uncertainty.temperature`) in rounds after the base's last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from ..core import Answers, Payload, Replies, Round, Site, State, Tensors, Update
from ..uncertainty import temperature
from .base import Wrapper


@dataclass(frozen=True)
class Tempered(Wrapper):
    """The base, with the probabilities of each of its models raised to a power, the inverse temperature."""

    @property
    def scaled(self) -> list[str]:
        """The names of the base's models, each of which gets a temperature."""
        return [whose.name.lower() for whose in self.models]

    def init_server(self, site: Site) -> State:
        return self.base.init_server(site) | {f"temperature {model}": temperature.start() for model in self.scaled}

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        measured = Round(
            self.broadcast, self.measure, self.advance, self.searching, everyone=True, trains=False, name="measure"
        )
        yield from repeat(measured, temperature.ROUNDS)

    def searching(self, server: State) -> bool:
        """Whether the temperature of some model is not found yet."""
        return not all(temperature.converged(server[f"temperature {model}"]) for model in self.scaled)

    def broadcast(self, server: State) -> Payload:
        power = {model: server[f"temperature {model}"]["b"] for model in self.scaled}
        return self.base.broadcast(server) | {"power": power}

    def answer(self, down: Payload, state: State, site: Site, x: Tensor) -> Answers:
        answers = self.base.answer(down, state, site, x)
        return {whose: each.tempered(float(down["power"][whose.name.lower()])) for whose, each in answers.items()}

    def measure(self, down: Payload, state: State, site: Site) -> tuple[Update, State]:
        """Send the count, the likelihood and its derivatives of the calibration split, at the powers to try."""
        x, y = site.calibration
        sums: Tensors = {model: torch.zeros(4, dtype=torch.float64) for model in self.scaled}
        for whose, answer in self.base.answer(down, state, site, x).items():
            model = whose.name.lower()
            sums[model] = temperature.statistics(answer.probs.log(), y, float(down["power"][model]))
        return Update({"likelihood": sums}, len(y)), state

    def advance(self, server: State, replies: Replies, site: Site) -> State:
        """Take a step of each search, by the sums of all silos."""
        searches = {}
        for model in self.scaled:
            search = server[f"temperature {model}"]
            if not temperature.converged(search):
                search = temperature.advance(search, replies.stack("likelihood", model).sum(0))
            searches[f"temperature {model}"] = search
        return server | searches

    def outcome(self, server: State) -> dict[str, object]:
        found = {model: 1 / temperature.proposal(server[f"temperature {model}"]) for model in self.scaled}
        return self.base.outcome(server) | {"temperature": found}
