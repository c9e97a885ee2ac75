"""Temperature scaling of any method: one round after training, of sums over validation splits that add up over silos.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017. The federation's temperature is that of the silos'
validation splits pooled; a silo's own is what its own split says, shrunk towards the federation's by how far silos lie
apart, which the same sums tell (`caveat.uncertainty.temperature`). A silo that was not there takes the federation's.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Answers, Decision, Payload, Replies, Round, SiloContext, State, SumOver, Tensors, Update
from ..core.silo import SiloInfo
from ..uncertainty import temperature
from .base import Wrapper


@dataclass(frozen=True)
class TemperatureScaled(Wrapper):
    """The base, with the probabilities of each of its models raised to a power, the inverse temperature."""

    shared: bool = True
    """Whether silos send sums. Without, nothing leaves them: each has the temperature of its own split alone."""
    everyone: bool = True
    """Whether all silos are asked, or those that a round of training asks; the others take the federation's."""

    @property
    def scaled(self) -> list[str]:
        """The names of the base's models, each of which gets a temperature."""
        return [whose.name.lower() for whose in self.models]

    @property
    def unknown(self) -> Tensors:
        """The federation's temperatures while there are none."""
        return {model: torch.tensor([1.0, temperature.ALONE], dtype=torch.float64) for model in self.scaled}

    def init_server(self, context: SiloContext) -> State:
        return self.base.init_server(context) | {"temperature": self.unknown}

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(
            self.broadcast, self.measure, self.settle, everyone=self.everyone, trains=False, linear="silos",
            name="temperature", sums=SumOver("validation", self.wrong) if self.shared else None,
        )  # fmt: skip

    def broadcast(self, server: State) -> Payload:
        """With the federation's power and the standard deviation of silos' logarithms of it, (2,) per model."""
        return self.base.broadcast(server) | {"temperature": server["temperature"]}

    def measure(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Keep the likelihood of the validation split at a grid of powers, and send what the federation needs of it."""
        x, y = context.validation
        found = {model: temperature.curve(torch.zeros(0, 1, device=y.device), y[:0]) for model in self.scaled}
        for whose, answer in (self.base.answer(down, state, context, x) if len(y) else {}).items():
            found[whose.name.lower()] = temperature.curve(answer.probs.log(), y)
        sent = {model: temperature.message(each) for model, each in found.items()} if self.shared else {}
        return Update({"likelihood": sent}, 1), state | {"likelihood": found}

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Why these are no likelihoods of a silo's validation inputs."""
        n, classes = card.examples["validation"], len(card.class_counts)
        found = (temperature.impossible(each, n, classes) for each in sent.get("likelihood", {}).values())
        return next((why for why in found if why), "")

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """The power that is best for all silos together, and how far theirs lie apart."""
        means = replies.mean("likelihood")
        found = {model: temperature.agreed(each.double() * len(replies)) for model, each in means.items()}
        return server | {"temperature": self.unknown | found}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        answers = self.base.answer(down, state, context, x)
        return {whose: each.calibrated(self.power(whose, down, state)) for whose, each in answers.items()}

    def power(self, whose: Decision, down: Payload, state: State) -> float:
        """The silo's own inverse temperature, or the federation's for a silo that has measured nothing."""
        model = whose.name.lower()
        common, spread = down["temperature"][model].tolist()
        own = state.get("likelihood", {}).get(model)
        return common if own is None else temperature.near(own, common, spread)

    def outcome(self, server: State) -> dict[str, object]:
        if not self.shared:
            return self.base.outcome(server)
        found = {model: server["temperature"][model].tolist() for model in self.scaled}
        return self.base.outcome(server) | {
            "temperature": {model: 1 / power for model, (power, _) in found.items()},
            "temperature_spread": {model: spread for model, (_, spread) in found.items()},
        }
