"""A bias per class for each silo, in addition to its temperature.

The silo fits it to its own validation split, shrunk towards 0 the less silos differ, which is estimated from sums that
are sent together with those for the temperature (`caveat.uncertainty.class_bias`). It changes labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..core import Decision, Payload, Replies, SiloContext, State
from ..core.silo import SiloInfo
from ..uncertainty import class_bias, temperature
from .calibration import TemperatureScaled
from .choice_policies import scalar


@dataclass(frozen=True)
class ClassBiased(TemperatureScaled):
    """The base with a temperature, and with a bias per class for each silo, for each model."""

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
        """Return why these cannot be sums over a silo's validation inputs."""
        n = card.examples["validation"]
        found = (class_bias.impossible(each, n) for each in sent.get("bias_sums", {}).values())
        return super().wrong(sent, card) or next((why for why in found if why), "")

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Also set how much silos' biases differ."""
        means = replies.mean("bias_sums")
        widths = {model: scalar(class_bias.width(each.double() * len(replies))) for model, each in means.items()}
        return super().settle(server, replies, context) | {"class_bias": server["class_bias"] | widths}

    def bias(self, whose: Decision, power: float, down: Payload, state: State) -> Tensor | None:
        """Return the silo's bias at its power; none for a silo that has measured nothing."""
        model, kept = whose.name.lower(), state.get("class_bias", {})
        if f"{model}.labels" not in kept:
            return None
        z, y = kept[f"{model}.log_probs"].cpu(), kept[f"{model}.labels"].cpu()
        return class_bias.fitted(power * z, y, float(down["class_bias"][model]))

    def outcome(self, server: State) -> dict[str, object]:
        widths = {model: float(server["class_bias"][model]) for model in self.scaled}
        return super().outcome(server) | {"class_bias": widths}
