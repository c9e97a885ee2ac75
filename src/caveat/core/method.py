"""A federated method and its rounds: broadcast, work at the silos, aggregation at the server."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar, final, get_args

import torch
from torch import Tensor, nn

from .aggregation import Payload, Replies, State, Tensors, Update
from .errors import ConfigurationError
from .prediction import Answers, Decision, Prediction
from .silo import SiloContext, SiloInfo

SiloTask = Callable[[Payload, State, SiloContext], tuple[Update, State]]
"""What happens at a silo: from what was sent and what was kept to what is sent back and kept."""
Aggregate = Callable[[State, Replies, SiloContext], State]
"""What happens at the server with a round's replies."""


def keep(server: State, replies: Replies, context: SiloContext) -> State:
    """The aggregation of a round that changes nothing at the server."""
    return server


def always(server: State) -> bool:
    """The condition of a round that is never skipped."""
    return True


def same_names(sent: Payload, reply: Payload) -> Payload:
    """What the tensors of a reply were before a silo changed them, where it sends new values of what it was sent."""
    return sent


def nothing(sent: Payload, reply: Payload) -> Payload:
    """The `Round.origin` of rounds in which silos change nothing that they were sent."""
    return {}


def no_norm(sent: Payload) -> float:
    """The `Round.honest_norm` of rounds that know of none."""
    return 0.0


@dataclass(frozen=True)
class SumOver:
    """That what silos send is a sum over inputs of theirs, which others can hold against what the silos say to have."""

    split: str
    """The split of which the inputs are: train, validation or calibration."""
    wrong: Callable[[Payload, SiloInfo], str]
    """Why a reply cannot be such a sum of a silo that has so many inputs, in words; empty where it can."""


Weights = Literal["examples", "silos"]
"""What silos count by in sums: their numbers of training examples, or each as much as any other."""


@dataclass(frozen=True)
class Round:
    """Broadcast, work at the silos, aggregation at the server; skipped unless `when` holds.

    Raises ConfigurationError for a name that is no identifier, and for a work without a name where none is given.
    """

    broadcast: Callable[[State], Payload]
    task: SiloTask
    aggregate: Aggregate = keep
    when: Callable[[State], bool] = always
    everyone: bool = False
    """Asks every silo, whatever the participation: for rounds that compare silos with each other."""
    trains: bool = True
    """Counts as a round of training; measurements between two rounds do not."""
    linear: Weights | None = field(default=None, kw_only=True)
    """The server needs only the number of replies and their sums weighted by n_k. Secure aggregation can carry such
    sums, and an engine may add the replies up as they arrive and keep only their shapes. Integer tensors have no mean:
    they are counters that nothing depends on. With "examples" every update is of all training examples of its silo,
    with "silos" every update says that n_k is 1.

    Sums with other weights are in disguise what could be carried as well, if silos sent products in place of tensors:
    those in which every silo counts once (control variates, counts of a calibration split), and those weighted by a
    number that the silo sends beside (use of a codeword, examples of a class, certainty). They do not count as linear;
    least and largest values are no sums at all.
    """

    origin: Callable[[Payload, Payload], Payload] | None = field(default=None, kw_only=True)
    """What the tensors of a reply are changed from, by group and name, from what was sent and the reply: zeros for what
    is a change already. The norm of such changes is bounded; tensors that are not in it are not looked at. None: what
    was sent under the same names, in rounds of training; elsewhere nothing is looked at.
    """
    honest_norm: Callable[[Payload], float] = field(default=no_norm, kw_only=True)
    """A norm that an honest update may have whatever those of others are, from what was sent: none is scaled below."""

    sums: SumOver | None = field(default=None, kw_only=True)
    """What is added up in a round that trains nothing: who sends what no inputs come to is left out of it, between
    machines, and the log says how much of it is one silo's."""

    name: str = field(default="", kw_only=True)
    """What its work is called wherever it leaves a trace: in the key of its random numbers, in rows and ledgers, and in
    orders to silos. By default what the work is called when the round is made; the name stays if the work is replaced.
    """
    path: str = field(default="", kw_only=True)
    """What comes before the name in an order: "base." for each wrapper that hands the round on as it is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or getattr(self.task, "__name__", ""))
        if not self.name.isidentifier():
            raise ConfigurationError(
                f"Round.name = {self.name!r}: expected an identifier such as 'train'; give one for a work that has none"
            )
        if self.linear not in (None, *get_args(Weights)):
            raise ConfigurationError(f"Round.linear = {self.linear!r}: expected 'examples', 'silos' or None")

    @property
    def address(self) -> str:
        """What names the work in an order, such as "train", or "base.train" where the method is wrapped."""
        return self.path + self.name


def horizon(rounds: Iterable[Round]) -> int:
    """The number of rounds up to the last one of training, that one included."""
    return max((t + 1 for t, step in enumerate(rounds) if step.trains), default=0)


class Method:
    """A federated method. Subclasses are frozen dataclasses: fields are hyperparameters, nothing else.

    Everything that changes is a `State`, passed in and returned. Nothing passed in is mutated. Works and the
    initial states may draw from torch's global generator, which is seeded for them; the rest draws nothing.

    A `State` is a dict of groups, each a dict of named tensors: ``{"model": {"head.weight": tensor}, "steps": {...}}``.
    The server has one, and each silo has its own, which never leaves it. Both are files between two rounds: all that a
    round needs from the one before has to be in them, numbers as tensors too, since runs resume from there alone. To
    change one, return another: ``state | {"model": new}``. A group that is to stay has to be in it. What is sent, a
    `Payload`, has the same form: `broadcast` makes one of the server's state, and a work returns one in its `Update`.
    """

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL,)
    """Whose models a silo has to ask in the end: the federation's, its own, or both."""
    policy: ClassVar[str] = "always"
    """How one of them is chosen for an input unless a user says otherwise: the silo's own, or by a switch."""
    personal: ClassVar[bool] = False
    """Whether every silo has a model of its own, of whatever architecture, in `context.own`."""
    federated: ClassVar[bool] = True
    """Whether anything leaves a silo; where nothing does, what is put around the method sends nothing either."""
    scores: ClassVar[tuple[str, ...]] = ("epistemic", "aleatoric", "total")
    """The uncertainties by which its predictions can be ranked; the last one decides unless a user says otherwise."""

    def build(self, model: nn.Module) -> nn.Module:
        """Put the method's own parts into a model of encoder and head."""
        return model

    def init_server(self, context: SiloContext) -> State:
        """The server's state before the first round, from the freshly initialised `context.module`."""
        return {}

    def init_silo(self, context: SiloContext) -> State:
        """A silo's state before its first round, whenever that is: if without tensors, then so at every silo."""
        return {}

    def schedule(self) -> Iterable[Round]:
        """The rounds, in order; pure, so that round t is its t-th item and resuming is exact."""
        raise NotImplementedError

    def broadcast(self, server: State) -> Payload:
        """What a silo needs to predict."""
        raise NotImplementedError

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        """What every model at hand says of inputs `x` at a silo, from what was broadcast and what it keeps."""
        raise NotImplementedError

    @property
    def softmax(self) -> bool:
        """Whether an answer is the softmax of what a module of `loaded` says, sampled by dropout or not."""
        return False

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        """The models that `answer` asks, in its order, each in a workspace that the next one may overwrite.

        For whoever wants the network itself, and, where `softmax` holds, for sources of uncertainty that ask it in
        another way. ConfigurationError where a method does not say.
        """
        raise ConfigurationError(f"{self.name!r} does not say which networks answer: its `loaded` is missing")

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        """One prediction from what the models say: the silo's own where it has one."""
        return answers[Decision.LOCAL] if Decision.LOCAL in answers else answers[Decision.GLOBAL]

    @final
    def predict(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Prediction:
        """The prediction for inputs `x` at a silo; no model is trusted where probabilities are no numbers."""
        found = self.decide(down, state, self.answer(down, state, context, x))
        undefined = ~found.probs.isfinite().all(-1)
        return found.abstaining(undefined) if undefined.any() else found

    def outcome(self, server: State) -> dict[str, object]:
        """The entries of a run's summary that the server's last state stands for."""
        return {}

    @property
    def evaluations(self) -> Mapping[str, SiloTask]:
        """Works that only measure, by the names that orders call them by: they are no part of the schedule."""
        return {}

    @property
    def name(self) -> str:
        """What the method is called in results and messages."""
        return type(self).__name__.lower()

    def describe(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        """Named numbers about how the model sees `x`, for evaluation only; empty unless a method has some."""
        return {}

    def summarize(self, sums: Mapping[str, Tensor]) -> dict[str, object]:
        """The entries of a silo's summary that `describe`'s numbers stand for."""
        return {}

    def features(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        """What a silo's model makes of inputs (N, ...) on its way, for pictures: (N, T, D) tokens of the "encoder", and
        by name what a method puts behind it. Empty for a model without an encoder.
        """
        answers = self.answer(down, state, context, x)  # asks the model that the silo predicts with last
        module = context.own if self.personal and Decision.LOCAL in answers else context.module
        encoders = (getattr(part, "encoder", None) for part in module.eval().modules()) if module else ()
        with torch.no_grad():
            return next(({"encoder": each(x)} for each in encoders if isinstance(each, nn.Module)), {})

    def fitted(self, module: nn.Module) -> frozenset[str] | None:
        """Names of those tensors of a silo's module that a silo fits which joins a finished federation.

        All others are the federation's then, and its work of training leaves them as they are. None where that work is
        carried out as it is, as where it trains several models.
        """
        return None

    def remark(self, module: nn.Module) -> str:
        """A sentence for whoever runs the method on this module, where it is not what it is called; else empty."""
        return ""

    @property
    def follows_rounds(self) -> str:
        """The setting, if any, by which training follows how many rounds there are: with more, the first are others."""
        training = getattr(self, "training", None)
        return "training.lr_schedule = 'cosine'" if getattr(training, "lr_schedule", None) == "cosine" else ""

    def mismatch(self, module: nn.Module, own: nn.Module) -> str:
        """Why a silo's own model, where it is `personal`, does not go with the federation's; empty where it does."""
        return ""

    def milestone(self, server: State) -> dict[str, float]:
        """Named numbers that describe the server's state, e.g. the iteration a run is in; for rows and reports."""
        return {}


Function = TypeVar("Function", bound=Callable[..., object])


def evaluation(task: Function) -> Function:
    """Mark a work as one of `Method.evaluations`, which is handed a `TestContext`: no schedule may hold it."""
    task.is_evaluation = True  # type: ignore[attr-defined]
    return task


def is_evaluation(task: SiloTask) -> bool:
    """Whether a work was declared to be an `evaluation`."""
    return bool(getattr(task, "is_evaluation", False))
