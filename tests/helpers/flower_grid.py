"""A Grid that runs silos' apps one after the other in this process: no Ray, no SuperLink, no sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from federations import Federation, executor, kept_state
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from caveat.core import Method, Payload, Silo, SiloId, Update
from caveat.core.silo import SiloInfo
from caveat.engines.executor import Executor
from caveat.engines.flower import FlowerEngine, silo_app_of
from caveat.engines.flower_grid import GridMessages
from caveat.engines.flower_messages import Order, Words
from caveat.federation.silo.store import OwnBooks
from caveat.wrappers.evaluation import Evaluated

Tamper = Callable[[Message], Message | None]
"""What becomes of a reply on its way; None is lost."""
CLASSES = 3
"""Of the small silos."""


class InProcessGrid(Grid):
    def __init__(self, apps: dict[int, ClientApp]) -> None:
        # Flower's messages ask for the run that they belong to, which only its own processes set.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.apps = apps
        self.node_config: dict[int, dict[str, Any]] = {}
        self.tamper: dict[int, Tamper] = {}
        self.sent: list[tuple[int, RecordDict]] = []
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.apps)

    def get_nodes(self) -> Any:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._deliver(message) for message in messages]

    def _deliver(self, message: Message) -> str:
        name, node = str(uuid4()), message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = name
        self.sent.append((node, message.content))
        context = Context(1, node, self.node_config.get(node, {}), RecordDict(), {})
        try:
            reply: Message | None = self.apps[node](message, context)
        except Exception as error:
            reply = Message(Error(code=2, reason=str(error)), reply_to=message)
        if node in self.tamper and reply is not None and message.metadata.message_type == "train":
            reply = self.tamper[node](reply)
        if reply is not None:
            reply.metadata.__dict__["_message_id"] = str(uuid4())
            self._replies[name] = reply
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return list(self.pull_messages(self.push_messages(messages)))


class Acquainted:
    """Silos that are known without a greeting."""

    terms_text = ""

    def __init__(self, node: dict[SiloId, int], grid: InProcessGrid, cards: dict[SiloId, SiloInfo]) -> None:
        self.node, self.grid, self.cards = node, grid, cards
        self.most = {name: max(card.examples["train"], card.examples["test"]) for name, card in cards.items()}
        self.nodes: dict[SiloId, int] = {}
        self.late: list[SiloId] = []
        self.meet(GridMessages(grid), 0)

    @property
    def silos(self) -> list[SiloId]:
        return sorted(self.nodes)

    def hear(self, silo: SiloId, words: Words) -> None:
        """Nothing is said beside updates."""

    def close(self) -> None:
        """Who comes later is known all the same."""

    def meet(self, wire: GridMessages, until: float) -> None:
        self.nodes |= {silo: node for silo, node in self.node.items() if node in self.grid.apps}


class Alone:
    """A node's silo, with an executor of its own."""

    def __init__(self, silo: SiloId, places: dict[SiloId, Executor]) -> None:
        self.silo, self.places = silo, places

    def greet(self, context: Context, question: Words) -> Words:
        raise NotImplementedError

    def perform(self, context: Context, order: Order, terms: str, payload: Payload) -> Update:
        place = self.places[self.silo]
        return OwnBooks(place.states.root).perform(place, order, payload, lambda update, ledger: None)

    def says(self, context: Context, terms: str) -> Words:
        return {}


class Silos:
    """The small federation, every silo with an executor and a folder of its own, behind a Grid."""

    def __init__(
        self,
        method: Method,
        folder: Path,
        model: Callable[[], nn.Module] | None = None,
        data: Mapping[SiloId, Silo] | None = None,
    ) -> None:
        self.federation = Federation(method, folder / "server", model=model, data=data)
        names = list(self.federation.place.silos)
        self.places = {name: executor(method, folder / name, data, model=model) for name in names}
        self.node = {name: 100 + k for k, name in enumerate(names)}
        self.grid = InProcessGrid({self.node[name]: silo_app_of(Alone(name, self.places)) for name in names})
        self.cards = {name: SiloInfo.of(s, CLASSES) for name, s in self.federation.place.silos.items()}
        self.connect()

    def connect(self) -> None:
        """A server that knows who is there, and nothing of the past."""
        members = Acquainted(self.node, self.grid, self.cards)
        method = Evaluated(self.federation.method)
        self.transport = FlowerEngine(
            method, GridMessages(self.grid), members, round_timeout=0.2, start_timeout=0, pause=0.05
        )

    def states(self) -> dict[str, Any]:
        return {name: kept_state(place, name) for name, place in self.places.items()}
