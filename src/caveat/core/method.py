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
"""A client task: a function of the broadcast, the silo's state and its context, which returns an update and the new
state."""
Aggregate = Callable[[State, Replies, SiloContext], State]
"""An aggregation: a function of the server's state, replies and a context, which returns the new server state."""


def keep(server: State, replies: Replies, context: SiloContext) -> State:
    """Return the server state unchanged: an aggregation that does nothing."""
    return server


def always(server: State) -> bool:
    """Return True: the default `Round.when`, with which a round is never skipped."""
    return True


def same_names(sent: Payload, reply: Payload) -> Payload:
    """Return what was sent: the `Round.origin` of rounds in which silos return new values of the tensors that they were
    sent."""
    return sent


def nothing(sent: Payload, reply: Payload) -> Payload:
    """Return {}: the `Round.origin` of rounds in which silos do not change the tensors that they were sent."""
    return {}


def no_norm(sent: Payload) -> float:
    """Return 0: the `Round.honest_norm` of rounds without a known honest norm."""
    return 0.0


@dataclass(frozen=True)
class SumOver:
    """Declares that replies are sums over the inputs of a split, so that the server can check them against the size of
    the split."""

    split: str
    """The split: train, validation or calibration."""
    wrong: Callable[[Payload, SiloInfo], str]
    """Function that returns why a reply cannot be a sum over the split of this silo, or "" if it can."""


Weights = Literal["examples", "silos"]
"""Weights of silos in sums: the numbers of training examples, or 1 for each silo."""


@dataclass(frozen=True)
class Round:
    """A broadcast, client tasks at the silos, and an aggregation at the server. The round is skipped unless `when`
    returns true. Raises ConfigurationError for a name that is not an identifier, and if neither the task nor the round
    has a name."""

    broadcast: Callable[[State], Payload]
    task: SiloTask
    aggregate: Aggregate = keep
    when: Callable[[State], bool] = always
    everyone: bool = False
    """Whether all silos take part, whatever the participation. Rounds that compare silos need this."""
    trains: bool = True
    """Whether this is a training round. Measurements between two rounds are not training rounds."""
    linear: Weights | None = field(default=None, kw_only=True)
    """Whether the server needs only the number of replies and their sums weighted by n_k. Secure aggregation can
    provide these sums, and an engine may add up replies on arrival and keep only their shapes. Integer tensors are not
    averaged, because they are counters on which nothing depends. With "examples", n_k of every update is the number of
    training examples of its silo; with "silos", it is 1.

    Rounds with other weights (such as the use of a codeword, a number that each silo sends) are not linear, although
    they would be if silos sent products. Rounds with minima or maxima are not linear.
    """

    totals: bool = field(default=False, kw_only=True)
    """Whether the server needs only the number of replies and their unweighted sums, `Replies.total`. In contrast to
    `linear`, the sums are exact for counts, and an engine keeps all replies unless aggregation is secure."""

    origin: Callable[[Payload, Payload], Payload] | None = field(default=None, kw_only=True)
    """Function of what was sent and of the reply, which returns the values that a silo started from, by group and name.
    For tensors that are changes already, it returns zeros. The norms of the changes are bounded; tensors that are not
    returned are not checked. None: in training rounds, what was sent under the same names; in other rounds, nothing.
    """
    honest_norm: Callable[[Payload], float] = field(default=no_norm, kw_only=True)
    """Function of what was sent, which returns a norm that an honest update may have. No update is scaled below this
    norm."""

    sums: SumOver | None = field(default=None, kw_only=True)
    """Description of the sums in a round without training. Between machines, implausible replies are excluded, and the
    log records each silo's share of the sums."""
    name: str = field(default="", kw_only=True)
    """Name of the task in random keys, rows, ledgers and requests to silos. By default, it is the name of the task
    function with which the round is created, even if the task is replaced later."""
    path: str = field(default="", kw_only=True)
    """Prefix of the name in requests, which consists of one "base." per wrapper that does not change the round."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or getattr(self.task, "__name__", ""))
        if not self.name.isidentifier():
            raise ConfigurationError(
                f"Round.name = {self.name!r}: expected an identifier such as 'train'; pass `name` if the task has none"
            )
        if self.linear not in (None, *get_args(Weights)):
            raise ConfigurationError(f"Round.linear = {self.linear!r}: expected 'examples', 'silos' or None")

    @property
    def summed(self) -> Weights | None:
        """The weights of the only sums that the server needs; None if it needs the silos' own updates."""
        return self.linear or ("silos" if self.totals else None)

    @property
    def address(self) -> str:
        """Name of the task in requests, such as "train", or "base.train" if one wrapper passes the round on."""
        return self.path + self.name


def round_at(schedule: Sequence[Round], t: int, address: str) -> Round | None:
    """Return the round whose task has this address: round t, or else the first such round, because a silo may know
    fewer rounds than its server, but not fewer tasks. Return None if there is no such round."""
    return next((step for step in chain(schedule[t : t + 1], schedule) if step.address == address), None)


def horizon(rounds: Iterable[Round]) -> int:
    """Return the number of rounds up to and including the last training round."""
    return max((t + 1 for t, step in enumerate(rounds) if step.trains), default=0)


class Caution(NamedTuple):
    """A warning about a model, or the result of a run."""

    kind: str
    """The kind of warning, an identifier such as "unused_codewords"."""
    text: str
    """A sentence that states what was found, with numbers, and on which split."""
    advice: str = ""
    """A sentence that states what to try."""
    silos: tuple[SiloId, ...] = ()
    """The affected silos; empty if the warning is about the whole run."""
    against_baseline: Mapping[str, int] = {}
    """For a comparison with a baseline, numbers of inputs: of all `inputs`, and of those that only the baseline
    (`only_baseline`) or only the model (`only_model`) predicts correctly."""


class Method:
    """A federated method. Subclasses are frozen dataclasses whose fields are hyperparameters and nothing else.

    Everything that changes is a `State`, passed in and returned. Arguments are never mutated. Client tasks and initial
    states may draw from torch's global generator, which is seeded for them; other functions draw nothing.

    A `State` is a dict of groups, each a dict of named tensors: ``{"model": {"head.weight": tensor}, "steps": {...}}``.
    The server has a state, and each silo has a state that never leaves the silo. Between two rounds, states are stored
    in files. A state must contain everything that the next round needs, with numbers as tensors, because runs resume
    from these files alone. To change a state, return a new one, such as ``state | {"model": new}``; groups that are not
    returned are lost. A message, called `Payload`, has the same form as a state. `broadcast` computes a message from
    the server's state, and a client task returns a message in its `Update`.
    """

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL,)
    """The models that answer at a silo: the global model, the local one, or both."""
    policy: ClassVar[str] = "always"
    """Default policy for choosing one of `models` for an input."""
    personal: ClassVar[bool] = False
    """Whether every silo has a personalized model, of any architecture, in `context.own`."""
    federated: ClassVar[bool] = True
    """Whether anything leaves a silo. If not, wrappers of the method send nothing either."""
    counts_classes: ClassVar[bool] = False
    """Whether the method uses labels outside of the training loss, so that it does not support censored times."""
    scores: ClassVar[tuple[str, ...]] = ("epistemic", "aleatoric", "total")
    """Uncertainties by which predictions can be ranked; the last one is the default."""

    def build(self, model: nn.Module) -> nn.Module:
        """Add the method's parts to a model of encoder and head."""
        return model

    def init_server(self, context: SiloContext) -> State:
        """Return the server's state before the first round, from the freshly initialized `context.module`."""
        return {}

    def init_silo(self, context: SiloContext) -> State:
        """Return a silo's state before its first round. Either the states of all silos have tensors, or none has."""
        return {}

    def schedule(self) -> Iterable[Round]:
        """Return the rounds in order. All calls must return the same rounds, because round t of a resumed run is the
        t-th item."""
        raise NotImplementedError

    def broadcast(self, server: State) -> Payload:
        """Return what the server sends to a silo for prediction."""
        raise NotImplementedError

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        """Return the answers of all available models for inputs `x` at a silo, from the broadcast and its state."""
        raise NotImplementedError

    @property
    def softmax(self) -> bool:
        """Whether answers are the softmax of the outputs of the `loaded` modules, with or without MC dropout."""
        return False

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        """Yield the models that `answer` uses, in the same order. The next model may overwrite the workspace of a
        model.

        The models are used for export and, if `softmax` is true, by uncertainty estimators. Raises ConfigurationError
        if the method does not implement this function.
        """
        raise ConfigurationError(f"{self.name!r} does not implement `loaded`, which returns its networks")

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        """Return one prediction from the answers, by default that of the local model if there is one."""
        return answers[Decision.LOCAL] if Decision.LOCAL in answers else answers[Decision.GLOBAL]

    @final
    def predict(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Prediction:
        """Return the prediction for inputs `x` at a silo. It abstains if probabilities are not finite."""
        answers = with_subgroup(self.answer(down, state, context, x), context.subgroup)
        found = replace(self.decide(down, state, answers), subgroup=next(iter(answers.values())).subgroup)
        undefined = ~found.probs.isfinite().all(-1)
        return found.abstaining(undefined, Reason.UNDEFINED) if undefined.any() else found

    def outcome(self, server: State) -> dict[str, object]:
        """Return entries of a run's summary from the final server state."""
        return {}

    @property
    def evaluations(self) -> Mapping[str, SiloTask]:
        """Client tasks that only measure, by name in requests. They are not part of the schedule."""
        return {}

    @property
    def name(self) -> str:
        """Name of the method in results and messages."""
        return type(self).__name__.lower()

    def describe(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        """Return named numbers that describe how the model processes `x`, for evaluation only; {} by default."""
        return {}

    def summarize(self, sums: Mapping[str, Tensor]) -> dict[str, object]:
        """Return entries of a silo's summary from the sums of the numbers that `describe` returns."""
        return {}

    def cautions(self, silos: Mapping[SiloId, Mapping[str, Tensor]], classes: int) -> Iterable[Caution]:
        """Return warnings about a model, from the number of classes and, for every silo, the sums over its validation
        split of the numbers that `describe` returns. Return a warning only for so many inputs that chance hardly ever
        causes it. A warning that two evaluations in a row give during training is reported at once."""
        return ()

    def features(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        """Return intermediate features of a silo's model for inputs (N, ...), for plots: by name, the (N, T, D) tokens
        of the "encoder", and the outputs of parts that a method adds. Return {} for a model without an encoder."""
        answers = self.answer(down, state, context, x)  # loads the silo's model last
        module = context.own if self.personal and Decision.LOCAL in answers else context.module
        encoders = (getattr(part, "encoder", None) for part in module.eval().modules()) if module else ()
        with torch.no_grad():
            return next(({"encoder": each(x)} for each in encoders if isinstance(each, nn.Module)), {})

    def fitted(self, module: nn.Module) -> frozenset[str] | None:
        """Return the names of the module's tensors that a silo fits when it joins a finished federation.

        The training task then does not change other tensors. None: the training task is not restricted, for example
        because it trains several models.
        """
        return None

    def remark(self, module: nn.Module) -> str:
        """Return a sentence for the user if the method is equivalent to another method on this module, or else ""."""
        return ""

    @property
    def follows_rounds(self) -> str:
        """The setting that makes training depend on the total number of rounds; "" if there is none."""
        training = getattr(self, "training", None)
        return "training.lr_schedule = 'cosine'" if getattr(training, "lr_schedule", None) == "cosine" else ""

    def mismatch(self, module: nn.Module, own: nn.Module) -> str:
        """Return why a silo's personalized model does not fit the global model, or "" if it fits."""
        return ""

    def milestone(self, server: State) -> dict[str, float]:
        """Return named numbers that describe the server's state, e.g. the current iteration, for rows and reports."""
        return {}


Function = TypeVar("Function", bound=Callable[..., object])


def evaluation(task: Function) -> Function:
    """Mark a task as one of `Method.evaluations`. It gets a `TestContext` and must not be part of a schedule."""
    task.is_evaluation = True  # type: ignore[attr-defined]
    return task


def is_evaluation(task: SiloTask) -> bool:
    """Return whether a task is marked as an `evaluation`."""
    return bool(getattr(task, "is_evaluation", False))
