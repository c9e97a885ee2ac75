"""Temperature scaling of any method after training, and a bias per class for each silo.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017. The global temperature fits the
silos' pooled validation splits, from sums that add up over silos. A silo's own temperature fits its own split, shrunk
towards the global one the less silos differ, which the same sums determine (`caveat.uncertainty.temperature`).

A bias per class for each silo, in addition to its temperature: the silo fits it to its own validation split, shrunk
towards 0 the less silos differ, which is estimated from sums that are sent together with the sums for the temperature
(`caveat.uncertainty.class_bias`). It changes labels.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Answers, Decision, Payload, Replies, Round, SiloContext, State, SumOver, Tensors, Update
from ..core.silo import SiloInfo
from ..uncertainty import class_bias, temperature
from .base import Wrapper
from .choice_policies import scalar


@dataclass(frozen=True)
class TemperatureScaled(Wrapper):
    """The base, with each model's probabilities raised to a power, the inverse temperature, and normalized."""

    shared: bool = True
    """Whether silos send sums. Otherwise nothing leaves a silo, and each fits its temperature to its own split only."""
    everyone: bool = True
    """Whether all silos are asked, or only as many as in a training round; the others use the global temperature."""
    censored: bool = False
    """Whether labels can be those of censored times."""

    @property
    def scaled(self) -> list[str]:
        """The names of the base's models, each of which gets a temperature."""
        return [whose.name.lower() for whose in self.models]

    @property
    def unknown(self) -> Tensors:
        """The global temperatures before there are any."""
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
        """Add the global power and the standard deviation of the logarithm of silos' powers, (2,) per model."""
        return self.base.broadcast(server) | {"temperature": server["temperature"]}

    def measure(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Keep the likelihood of the validation split on a grid of powers, and send the sums that the server needs."""
        x, y = context.validation
        known = dict.fromkeys(self.scaled, (torch.zeros(0, 1, device=y.device), y[:0]))
        for whose, answer in (self.base.answer(down, state, context, x) if len(y) else {}).items():
            known[whose.name.lower()] = answer.probs.log(), y
        sent, kept = self.sums(known)
        return Update(sent, 1), state | kept

    def sums(self, log_probs: Mapping[str, tuple[Tensor, Tensor]]) -> tuple[Payload, Payload]:
        """Return the groups to send and to keep, from each model's (n, C) log-probabilities and labels (n,)."""
        found = {model: temperature.curve(*each) for model, each in log_probs.items()}
        sent = {model: temperature.message(each) for model, each in found.items()} if self.shared else {}
        return {"likelihood": sent}, {"likelihood": found}

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Return why `sent` cannot be likelihoods of a silo's validation inputs; "" if it can."""
        n, classes = card.examples["validation"], len(card.class_counts)
        found = (
            temperature.impossible(each, n, classes, self.censored) for each in sent.get("likelihood", {}).values()
        )
        return next((why for why in found if why), "")

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Set the best power for all silos together, and how much silos' powers differ."""
        means = replies.mean("likelihood")
        found = {model: temperature.agreed(each.double() * len(replies)) for model, each in means.items()}
        return server | {"temperature": self.unknown | found}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        answers = self.base.answer(down, state, context, x)
        return {
            whose: each.calibrated(power := self.power(whose, down, state), self.bias(whose, power, down, state))
            for whose, each in answers.items()
        }

    def bias(self, whose: Decision, power: float, down: Payload, state: State) -> Tensor | None:
        """Return the (C,) bias of a model's classes at the silo, if any."""
        return None

    def power(self, whose: Decision, down: Payload, state: State) -> float:
        """Return the silo's own inverse temperature, or the global one if the silo has measured nothing."""
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


@dataclass(frozen=True)
class ClassBiased(TemperatureScaled):
    """The base, where each silo has a temperature and a bias per class for each model."""

    def init_server(self, context: SiloContext) -> State:
        return super().init_server(context) | {"class_bias": {model: scalar(0.0) for model in self.scaled}}

    def broadcast(self, server: State) -> Payload:
        """Add the standard deviation of silos' biases, () per model."""
        return super().broadcast(server) | {"class_bias": server["class_bias"]}

    def sums(self, log_probs: Mapping[str, tuple[Tensor, Tensor]]) -> tuple[Payload, Payload]:
        """Also send sums over classes, and keep the log-probabilities and labels for fitting a bias."""
        sent, kept = super().sums(log_probs)
        rows = {model: class_bias.usable(*each) for model, each in log_probs.items()}
        powers = {model: temperature.near(each, 1.0, temperature.SPREAD) for model, each in kept["likelihood"].items()}
        sent["bias_sums"] = {model: class_bias.message(powers[model] * z, y) for model, (z, y) in rows.items()}
        kept["class_bias"] = {f"{model}.log_probs": z for model, (z, _) in rows.items()}
        kept["class_bias"] |= {f"{model}.labels": y for model, (_, y) in rows.items()}
        return sent, kept

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Return why `sent` cannot be sums over a silo's validation inputs; "" if it can."""
        n = card.examples["validation"]
        found = (class_bias.impossible(each, n) for each in sent.get("bias_sums", {}).values())
        return super().wrong(sent, card) or next((why for why in found if why), "")

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Also set how much silos' biases differ."""
        means = replies.mean("bias_sums")
        widths = {model: scalar(class_bias.width(each.double() * len(replies))) for model, each in means.items()}
        return super().settle(server, replies, context) | {"class_bias": server["class_bias"] | widths}

    def bias(self, whose: Decision, power: float, down: Payload, state: State) -> Tensor | None:
        """Return the silo's bias at its power; None for a silo that has measured nothing."""
        model, kept = whose.name.lower(), state.get("class_bias", {})
        if f"{model}.labels" not in kept:
            return None
        z, y = kept[f"{model}.log_probs"].cpu(), kept[f"{model}.labels"].cpu()
        return class_bias.fitted(power * z, y, float(down["class_bias"][model]))

    def outcome(self, server: State) -> dict[str, object]:
        widths = {model: float(server["class_bias"][model]) for model in self.scaled}
        return super().outcome(server) | {"class_bias": widths}
