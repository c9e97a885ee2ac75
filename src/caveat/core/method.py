"""Federated methods and their rounds: broadcast, client tasks at the silos, aggregation at the server."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import ClassVar, Literal, NamedTuple, TypeVar, final, get_args

import torch
from torch import Tensor, nn

from .aggregation import Payload, Replies, SiloId, State, Tensors, Update
from .errors import ConfigurationError
from .prediction import Answers, Decision, Prediction, Reason, with_subgroup
from .silo import SiloContext, SiloInfo

SiloTask = Callable[[Payload, State, SiloContext], tuple[Update, State]]
"""A client task: (what was broadcast, the silo's state, its context) to (update, new state)."""
Aggregate = Callable[[State, Replies, SiloContext], State]
"""An aggregation: (server state, replies, context) to the new server state."""


def keep(server: State, replies: Replies, context: SiloContext) -> State:
    """Leave the server state unchanged, as an aggregation."""
    return server


def always(server: State) -> bool:
    """Never skip a round: the default condition."""
    return True


def same_names(sent: Payload, reply: Payload) -> Payload:
    """Return what was sent: the `Round.origin` of rounds in which silos send new values of the tensors sent to them."""
    return sent


def nothing(sent: Payload, reply: Payload) -> Payload:
    """Return {}: the `Round.origin` of rounds in which silos do not change the tensors that they were sent."""
    return {}


def no_norm(sent: Payload) -> float:
    """Return 0: the `Round.honest_norm` of rounds without one."""
    return 0.0


@dataclass(frozen=True)
class SumOver:
    """Declares that replies are sums over the inputs of a split, so the server can check them against its size."""

    split: str
    """The split: train, validation or calibration."""
    wrong: Callable[[Payload, SiloInfo], str]
    """Returns why a reply cannot be such a sum for this silo, or ""."""


Weights = Literal["examples", "silos"]
"""Weights of silos in sums: their numbers of training examples, or 1 each."""


@dataclass(frozen=True)
class Round:
    """Broadcast, client tasks at the silos, aggregation at the server; skipped unless `when` holds. Raises
    ConfigurationError for a name that is not an identifier, and if neither the task nor the round has a name."""

    broadcast: Callable[[State], Payload]
    task: SiloTask
    aggregate: Aggregate = keep
    when: Callable[[State], bool] = always
    everyone: bool = False
    """Whether all silos take part, whatever the participation: for rounds that compare silos."""
    trains: bool = True
    """Whether this is a training round; measurements between two rounds are not."""
    linear: Weights | None = field(default=None, kw_only=True)
    """Whether the server needs only the number of replies and their sums weighted by n_k. Secure aggregation can
    provide such sums, and an engine may add up replies on arrival and keep only their shapes. Integer tensors are not
    averaged: they are counters on which nothing depends. With "examples", n_k of every update is the number of training
    examples of its silo; with "silos", it is 1.

    Sums with other weights (equal weights, as for control variates, or a number that each silo sends, such as the use
    of a codeword) would be linear if silos sent products; they are not declared linear here. Minima and maxima are not
    sums.
    """

    totals: bool = field(default=False, kw_only=True)
    """Whether the server needs only the number of replies and their unweighted sums, `Replies.total`. In contrast to
    `linear`, the sums are exact for counts, and an engine keeps all replies unless aggregation is secure."""

    origin: Callable[[Payload, Payload], Payload] | None = field(default=None, kw_only=True)
    """Return the values that a silo started from, by group and name, given what was sent and the reply: zeros for
    tensors that are changes already. The norms of the changes are bounded; tensors not returned are not checked. None:
    what was sent under the same names in training rounds, nothing in other rounds.
    """
    honest_norm: Callable[[Payload], float] = field(default=no_norm, kw_only=True)
    """Return a norm that an honest update may have, given what was sent: no update is scaled below it."""

    sums: SumOver | None = field(default=None, kw_only=True)
    """What is summed in a round without training. Between machines, implausible replies are excluded, and the log
    records each silo's share of the sums."""
    name: str = field(default="", kw_only=True)
    """Name of the task in random keys, rows, ledgers and requests to silos. By default the name of the task function
    when the round is created; it stays if the task is replaced."""
    path: str = field(default="", kw_only=True)
    """Prefix of the name in requests: "base." for each wrapper that passes the round on unchanged."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or getattr(self.task, "__name__", ""))
        if not self.name.isidentifier():
            raise ConfigurationError(
                f"Round.name = {self.name!r}: expected an identifier such as 'train'; give a name if the task has none"
            )
        if self.linear not in (None, *get_args(Weights)):
            raise ConfigurationError(f"Round.linear = {self.linear!r}: expected 'examples', 'silos' or None")

    @property
    def summed(self) -> Weights | None:
        """The weights of the only sums that the server needs; None if it needs the silos' own updates."""
        return self.linear or ("silos" if self.totals else None)

    @property
    def address(self) -> str:
        """Name of the task in requests, such as "train", or "base.train" if the method is wrapped."""
        return self.path + self.name


def round_at(schedule: Sequence[Round], t: int, address: str) -> Round | None:
    """Return the round with a task of this address: round t, or else the first one, since a silo may know fewer rounds
    than its server, but not fewer tasks; None if there is none."""
    return next((step for step in chain(schedule[t : t + 1], schedule) if step.address == address), None)


def horizon(rounds: Iterable[Round]) -> int:
    """Return the number of rounds up to and including the last training round."""
    return max((t + 1 for t, step in enumerate(rounds) if step.trains), default=0)


class Caution(NamedTuple):
    """A warning about the result of a finished run."""

    kind: str
    """The kind of warning, an identifier such as "unused_codewords"."""
    text: str
    """A sentence that says what was found, with numbers, and on which split."""
    advice: str = ""
    """A sentence that says what to try."""
    silos: tuple[SiloId, ...] = ()
    """The affected silos; empty for the whole run."""
    against_baseline: Mapping[str, int] = {}
    """For a comparison with a baseline: numbers of `inputs`, and of those that `only_baseline` and `only_model` predict
    correctly."""


class Method:
    """A federated method. Subclasses are frozen dataclasses whose fields are hyperparameters and nothing else.

    Everything that changes is a `State`, passed in and returned. Arguments are never mutated. Client tasks and initial
    states may draw from torch's global generator, which is seeded for them; other functions draw nothing.

    A `State` is a dict of groups, each a dict of named tensors: ``{"model": {"head.weight": tensor}, "steps": {...}}``.
    The server has one, and each silo has one that never leaves it. Both are files between two rounds and must hold
    everything the next round needs, numbers as tensors too, because runs resume from them alone. To change a state,
    return a new one: ``state | {"model": new}``; groups that are not returned are lost. What is sent, a `Payload`, has
    the same form: `broadcast` computes one from the server's state, and a client task returns one in its `Update`.
    """

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL,)
    """The models that answer at a silo: the global model, the local one, or both."""
    policy: ClassVar[str] = "always"
    """Default policy for choosing one of them for an input."""
    personal: ClassVar[bool] = False
    """Whether every silo has a personalized model, of any architecture, in `context.own`."""
    federated: ClassVar[bool] = True
    """Whether anything leaves a silo. If not, wrappers of the method send nothing either."""
    counts_classes: ClassVar[bool] = False
    """Whether it uses labels apart from the loss of its training; censored times have no such labels."""
    scores: ClassVar[tuple[str, ...]] = ("epistemic", "aleatoric", "total")
    """Uncertainties that can rank predictions; the last one is the default."""

    def build(self, model: nn.Module) -> nn.Module:
        """Add the method's parts to a model of encoder and head."""
        return model

    def init_server(self, context: SiloContext) -> State:
        """Return the server's state before the first round, from the freshly initialized `context.module`."""
        return {}

    def init_silo(self, context: SiloContext) -> State:
        """Return a silo's state before its first round; it has tensors at all silos or at none."""
        return {}

    def schedule(self) -> Iterable[Round]:
        """Return the rounds, in order. Must be pure: round t is its t-th item, so that resuming is exact."""
        raise NotImplementedError

    def broadcast(self, server: State) -> Payload:
        """Return what a silo needs to predict."""
        raise NotImplementedError

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        """Return the answers of all available models for inputs `x` at a silo, from the broadcast and its state."""
        raise NotImplementedError

    @property
    def softmax(self) -> bool:
        """Whether answers are the softmax of the outputs of the `loaded` modules, with or without MC dropout."""
        return False

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        """Yield the models that `answer` uses, in its order; each is in a workspace that the next one may overwrite.

        Used for export and, if `softmax` holds, by uncertainty estimators. Raises ConfigurationError if a method does
        not implement it.
        """
        raise ConfigurationError(f"{self.name!r} does not implement `loaded`, which returns its networks")

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        """Return one prediction from the answers: by default the local model's, if there is one."""
        return answers[Decision.LOCAL] if Decision.LOCAL in answers else answers[Decision.GLOBAL]

    @final
    def predict(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Prediction:
        """Return the prediction for inputs `x` at a silo; abstain if probabilities are not finite."""
        answers = with_subgroup(self.answer(down, state, context, x), context.subgroup)
        found = replace(self.decide(down, state, answers), subgroup=next(iter(answers.values())).subgroup)
        undefined = ~found.probs.isfinite().all(-1)
        return found.abstaining(undefined, Reason.UNDEFINED) if undefined.any() else found

    def outcome(self, server: State) -> dict[str, object]:
        """Return entries of a run's summary from the final server state."""
        return {}

    @property
    def evaluations(self) -> Mapping[str, SiloTask]:
        """Client tasks that only measure, by their names in requests. They are not part of the schedule."""
        return {}

    @property
    def name(self) -> str:
        """Name of the method in results and messages."""
        return type(self).__name__.lower()

    def describe(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        """Return named numbers about how the model processes `x`, for evaluation only; {} by default."""
        return {}

    def summarize(self, sums: Mapping[str, Tensor]) -> dict[str, object]:
        """Return entries of a silo's summary from the sums of `describe`'s numbers."""
        return {}

    def cautions(self, silos: Mapping[SiloId, Mapping[str, Tensor]], classes: int) -> Iterable[Caution]:
        """Return warnings about a finished run, from every silo's sums of `describe`'s numbers on its validation split
        and the number of classes. A warning needs enough inputs that chance hardly ever causes it."""
        return ()

    def features(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        """Return intermediate features of a silo's model for inputs (N, ...), for plots: (N, T, D) tokens of the
        "encoder", and the outputs of parts that a method adds, by name. {} for a model without an encoder."""
        answers = self.answer(down, state, context, x)  # loads the silo's model last
        module = context.own if self.personal and Decision.LOCAL in answers else context.module
        encoders = (getattr(part, "encoder", None) for part in module.eval().modules()) if module else ()
        with torch.no_grad():
            return next(({"encoder": each(x)} for each in encoders if isinstance(each, nn.Module)), {})

    def fitted(self, module: nn.Module) -> frozenset[str] | None:
        """Return the names of the module's tensors that a silo fits when it joins a finished federation.

        The training task leaves all other tensors as the federation trained them. None: the training task runs
        unchanged, for example because it trains several models.
        """
        return None

    def remark(self, module: nn.Module) -> str:
        """Return a sentence for the user if the method reduces to another one on this module, else ""."""
        return ""

    @property
    def follows_rounds(self) -> str:
        """The setting that makes training depend on the total number of rounds, or ""."""
        training = getattr(self, "training", None)
        return "training.lr_schedule = 'cosine'" if getattr(training, "lr_schedule", None) == "cosine" else ""

    def mismatch(self, module: nn.Module, own: nn.Module) -> str:
        """Return why a silo's personalized model does not fit the global model, or ""."""
        return ""

    def milestone(self, server: State) -> dict[str, float]:
        """Return named numbers that describe the server's state, e.g. the current iteration; for rows and reports."""
        return {}


Function = TypeVar("Function", bound=Callable[..., object])


def evaluation(task: Function) -> Function:
    """Mark a task as one of `Method.evaluations`. It gets a `TestContext` and must not be part of a schedule."""
    task.is_evaluation = True  # type: ignore[attr-defined]
    return task


def is_evaluation(task: SiloTask) -> bool:
    """Return whether a task is marked as an `evaluation`."""
    return bool(getattr(task, "is_evaluation", False))
