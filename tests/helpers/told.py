"""A method whose predictions are in the inputs, and silos for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from caveat.core import Answers, Data, Decision, Method, Payload, Prediction, Replies, Round, SiloContext, State, Update

NONE = torch.nn.Identity()


@dataclass(frozen=True)
class OneTold(Method):
    """One model: the first column of an input is its score, the second the label that it predicts."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL,)

    def schedule(self) -> Iterable[Round]:
        return []

    def broadcast(self, server: State) -> Payload:
        return {}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        probs = torch.nn.functional.one_hot(x[:, 1].long(), 3).double()
        zero = torch.zeros(len(x), dtype=torch.float64)
        uncertainty = {"total": x[:, 0].double(), "aleatoric": zero, "epistemic": zero}
        return {Decision.GLOBAL: Prediction(probs, uncertainty, torch.zeros(len(x), dtype=torch.long))}


def drawn(n: int, hardness: float, generator: torch.Generator) -> Data:
    """Inputs of a silo: scores are Beta(1, 1 / hardness), which hard silos have large; an error has probability
    score ** 3 / 2. The true label is 0.
    """
    score = 1 - torch.rand(n, generator=generator) ** hardness
    wrong = torch.rand(n, generator=generator) < score**3 / 2
    return Data(torch.stack([score, wrong.float()], 1), torch.zeros(n, dtype=torch.long))


def told_site(
    name: str, n: int, hardness: float, seed: int, domain: str = "", validation: int | None = None
) -> SiloContext:
    generator = torch.Generator().manual_seed(seed)
    calibration, seen = drawn(n, hardness, generator), drawn(validation or n, hardness, generator)
    return SiloContext(name, seen, seen, calibration, NONE, domain=domain)


def agreed(method: Method, sites: Iterable[SiloContext], begun: State | None = None) -> tuple[State, dict[str, State]]:
    """The server's and the silos' states after the rounds that wrappers add; the server may have begun before."""
    by_name: Mapping[str, SiloContext] = {each.id: each for each in sites}
    first = next(iter(by_name.values()))
    server = method.init_server(first) if begun is None else begun
    states = {name: method.init_silo(each) for name, each in by_name.items()}
    for step in method.schedule():
        if step.when(server):
            updates: dict[str, Update] = {}
            for name, each in by_name.items():
                updates[name], states[name] = step.task(step.broadcast(server), states[name], each)
            server = step.aggregate(server, Replies(updates, len(updates)), first)
    return server, states
