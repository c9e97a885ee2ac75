"""Controls for verdicts of docs/results/index.md: fine-tuned FedAvg, class frequencies, UEFL with local codewords.

Use them as plugins: `caveat compare RECIPE --plugin benchmarks/controls.py --variant "NAME: method.name=tuned ..."`.
The results for Ditto, FedRoD and UEFL's growing codebook are from

    caveat compare uefl-mnist --plugin benchmarks/controls.py --seeds 400,401,402,403,404 --methods fedavg \\
        --set training.lr=0.003 [the settings below [cpu] in native-rotated.toml or native-skewed.toml] \\
        --variant "Ditto: method.name=ditto method.lam=0.03 uncertainty.policy=always" \\
        --variant "tuned: method.name=tuned" \\
        --variant "tuned, 20: method.name=tuned method.epochs=20 method.lr=0.001" \\
        --variant "last: method.name=tuned method.epochs=20 method.lr=0.001 method.part=last" \\
        --variant "FedAvg, 4 epochs: method.name=fedavg training.local_epochs=4" \\
        --variant "FedAvg, 40 rounds: method.name=fedavg rounds=40 training.lr_decay=0.9487" \\
        --variant "shares: method.name=shares" --variant "FedRoD: method.name=fedrod"
    caveat compare uefl-mnist --plugin benchmarks/controls.py --seeds 400,401,402 --methods ownwords \\
        --set method.keep=newest --set training.lr=0.002 [the settings of uefl-growth.toml] \\
        --variant "static: method.name=uefl method.iterations=1 rounds=16" --variant "extended: method.name=uefl"
    caveat compare fmlu-eurosat --plugin benchmarks/controls.py --seeds 400,401,402,403,404 --methods fedavg \\
        --set training.lr=0.001 [the settings below [cpu] and of a column in features-labels.toml] \\
        --variant "shares: method.name=shares" --variant "FedRoD: method.name=fedrod"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from caveat.core import Answers, Decision, Payload, Prediction, Round, SiloContext, State, Update
from caveat.core.settings import frozen_settings
from caveat.methods import FedAvg, register
from caveat.methods.fedbabu import fit_alone
from caveat.methods.uefl import UEFL
from caveat.nn.dropout import mc_dropout
from caveat.training.modules import in_batches, load, path_of_part, snapshot

FAR = 30.0
"""Where shared codewords are put that a silo is not to use: no token is as near to them as to its own."""


@register
@frozen_settings
class Tuned(FedAvg):
    """FedAvg whose model every silo fine-tunes in the end."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)

    epochs: int = 5
    """Epochs after the last round."""
    lr: float = 0.0
    """Their rate; 0: that which training has come to."""
    part: Literal["all", "last"] = "all"
    """What is trained: the model, or its last linear layer."""

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(self.broadcast, self.personalise, everyone=True, trains=False, name="personalise")

    def personalise(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        module = load(context.module, down["model"])
        training = replace(self.training, local_epochs=self.epochs, local_steps=None)
        if self.lr:
            training = replace(training, lr=self.lr, lr_decay=1.0, lr_hold=0)
        loss = self.objective(module, down)
        if self.part == "all":
            training.fit(context, loss)
        else:
            fit_alone(training, context, loss, path_of_part(module, "last", self.name))
        return Update({}, context.examples), state | {"own": snapshot(module)}


@register
@frozen_settings
class Shares(FedAvg):
    """FedAvg to whose logits every silo adds the logarithm of its class shares."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)

    smooth: float = 0.5
    """What is added to the count of each class."""

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(self.broadcast, self.count, everyone=True, trains=False, name="count")

    def count(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        classes = in_batches(load(context.module, down["model"]).eval(), context.train.x[:1]).shape[1]
        n = torch.bincount(context.train.y.cpu(), minlength=classes).float() + self.smooth
        return Update({}, context.examples), state | {"shares": {"log": (n / n.sum()).log()}}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        module = load(context.module, down["model"])
        logits = in_batches(lambda part: mc_dropout(module, part, self.mc_samples), x, dim=1)
        found = {Decision.GLOBAL: Prediction.from_logits(logits, Decision.GLOBAL)}
        if "shares" in state:
            found[Decision.LOCAL] = Prediction.from_logits(logits + state["shares"]["log"], Decision.LOCAL)
        return found


@register
@frozen_settings
class OwnWords(UEFL):
    """UEFL in which every silo replaces the shared codewords once by as many of its own, from K-means."""

    def alone(self, module: nn.Module) -> nn.Module:
        if int(module.codebook.used) > 0:
            with torch.no_grad():
                module.codebook.shared.fill_(FAR)
        return module

    def workspace(self, down: Payload, state: State, context: SiloContext) -> nn.Module:
        return self.alone(super().workspace(down, state, context))

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        for whose, module in super().loaded(down, state, context):
            yield whose, self.alone(module)

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        if state["entropy"]["due"]:
            first = int(state["model"]["codebook.used"]) == 0
            state = state | {"entropy": {"due": torch.tensor(first), "atleast": torch.tensor(1e6)}}
        return super().train(down, state, context)

    def extend(self, module: nn.Module, context: SiloContext) -> None:
        super().extend(module, context)
        self.alone(module)
