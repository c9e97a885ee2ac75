"""The app of a node: determines its silo from the node's configuration, and answers messages."""

import logging
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from flwr.app import Context
from flwr.clientapp import ClientApp

from ..._version import __version__
from ...core import CaveatError, ConfigurationError, Method, Payload, RunError, SiloId, Update
from ...core.devices import find_device
from ...core.text import escaped
from ...data import load
from ...engines.executor import Executor
from ...engines.flower import silo_app_of
from ...engines.flower_messages import LONGEST, Order, Words
from ...engines.flower_secure import request_digest
from ...files import owner_only
from ...methods import METHODS
from ...nn.custom_model import KNOWN, Make
from ...runs.local_run import LocalRun
from ...runs.spec import spec_of
from ...secure.messages import SecureRefused
from ...secure.primitives import digest_of_payload
from ..keys import Asked, signed
from ..refusals import ToldRefusal, check_version
from ..request_terms import Terms
from .frozen_splits import DataChanged
from .member import SiloSide, check_order
from .silo_file import BeyondLimits, read_silo_file
from .store import OwnBooks

CHANGED = "DataChanged: its data changed after it joined, and its silo.toml, [data] changed, makes it stop"
"""The message to the server about a silo whose table has changed."""


def silo_app() -> ClientApp:
    """Return the app of every node.

    A node whose configuration has `silo="PATH"` is the silo described by that file, with its own data and state; with
    `key="PATH"`, it signs its greetings with that private key. A node with "partition-id" instead, as in Flower's
    simulation, is one of the silos made from the federation's `data.source`.
    """
    return silo_app_of(NodeHandler())


class NodeHandler:
    """Answers messages for the silo that the node's configuration names."""

    known: Mapping[str, Make] = {}
    methods: Sequence[type[Method]] = ()

    def __init__(self) -> None:
        # Nodes of a simulation get the app from the process that imported it.
        self.known, self.methods = dict(KNOWN), METHODS.added

    def recall(self) -> None:
        """Register the custom code of the app in this process."""
        KNOWN.update(self.known)
        for cls in self.methods:
            METHODS.add(cls)

    def greet(self, context: Context, question: Words) -> Words:
        self.recall()
        text = str(question["terms"])
        if "silo" not in context.node_config:
            return {"silo": _partition(context, Terms.of_text(text))[0]}
        with without_details(), owner_only():
            member, asks = _member(context), str(question.get("question", ""))
            if why := str(question.get("refused", "")):
                told = f"caveat: the server has refused silo {member.file.silo!r}: {why[:LONGEST]}"
                print(escaped(" ".join(told.split())), file=sys.stderr, flush=True)
            check_version(member.file.silo, text)
            terms = Terms.of_text(text)
            words = member.join(terms) if asks == "join" else member.introduce(terms)
            words |= {"version": __version__}
            if "key" not in context.node_config:
                return words
            asked = Asked(terms.federation, asks, str(question.get("nonce", "")), context.node_id)
            return signed(words, asked, Path(str(context.node_config["key"])).expanduser())

    def perform(self, context: Context, order: Order, text: str, payload: Payload) -> Update:
        self.recall()
        if "silo" in context.node_config:
            with without_details(), owner_only():
                member = _member(context)
                check_version(member.file.silo, text)
                terms = Terms.of_text(text)
                secure = terms.config.federation.secure
                request = request_digest(order, text, digest_of_payload(payload)) if secure else b""
                return member.perform(terms, order, payload, request)
        terms = Terms.of_text(text)
        if not Path(terms.folder).is_absolute() or not Path(terms.folder).is_dir():
            # Otherwise, states would be stored where no run finds them.
            raise RunError(f"{terms.folder!r}: no such folder; expected the folder of the simulation's run")
        silo, executor = _partition(context, terms)
        books = OwnBooks(executor.states.root / silo)
        check_order(order, executor, silo, books)
        checkpoints = terms.config.engine.kept_checkpoints
        return books.perform(executor, order, payload, lambda update, ledger: None, checkpoints)

    def secure(self, context: Context, question: Words) -> Words:
        if "silo" not in context.node_config:
            raise RunError("secure aggregation needs silos with keys, not nodes of a simulation")
        text = str(question["terms"])
        with without_details(), owner_only():
            member = _member(context)
            check_version(member.file.silo, text)
            return member.secure(Terms.of_text(text), question)

    def says(self, context: Context, text: str) -> Words:
        if "silo" not in context.node_config:
            return {}
        with without_details():
            return _member(context).says(Terms.of_text(text))


class Withheld(RunError):
    """An error as the server learns it; the silo's own log has the details."""


@contextmanager
def without_details() -> Iterator[None]:
    """Keep the text of errors at the silo, because it may contain file names or values of single samples. The server
    learns the kind of the error and, if a limit of the silo is the reason, the key of this limit."""
    try:
        yield
    except Exception as error:
        # The text of the error may come from the server.
        print(escaped(_said(error)), file=sys.stderr, flush=True)
        logging.getLogger("flwr").addFilter(_said_already)
        # The cause would also be sent.
        raise Withheld(_told(error)) from None


def _said(error: Exception) -> str:
    """Return the text for the silo's own log: a sentence for refusals and the silo's mistakes, else the traceback."""
    found: list[BaseException] = [error]
    while (cause := found[-1].__cause__) is not None:
        found.append(cause)
    if all(isinstance(each, CaveatError) for each in found):
        return "\n".join(f"caveat: {each}" for each in reversed(found))
    return traceback.format_exc().rstrip("\n")


def _said_already(record: logging.LogRecord) -> bool:
    """Remove tracebacks from Flower's log if the silo's log has the error; return True, which keeps the record."""
    if record.exc_info and isinstance(error := record.exc_info[1], Withheld):
        record.msg, record.args, record.exc_info = "Sent to the server: %s", (str(error),), None
    return True


def _told(error: Exception) -> str:
    """Return the message to the server: the silo and the rule of a refusal, or the kind of any other error."""
    if isinstance(error, BeyondLimits):
        return f"{error.told}; see the log at the silo"
    if isinstance(error, DataChanged):
        return f"{CHANGED}; see the log at the silo"
    return f"{error}; see the log at the silo" if isinstance(error, ToldRefusal | SecureRefused) else _kind(error)


def _kind(error: Exception) -> str:
    return f"{type(error).__name__}, see the log at the silo"


def _member(context: Context) -> SiloSide:
    config = context.node_config
    key = Path(str(config["key"])).expanduser() if "key" in config else None
    return SiloSide(read_silo_file(Path(str(config["silo"])).expanduser()), key)


def _partition(context: Context, terms: Terms) -> tuple[SiloId, Executor]:
    if "partition-id" not in context.node_config:
        raise ConfigurationError('the node has neither silo="PATH" nor a partition-id: set one with --node-config')
    executor = _workplace(terms.to_text())
    names, k = list(executor.silos), int(context.node_config["partition-id"])
    if k >= len(names):
        raise ConfigurationError(f"partition-id = {k}, expected 0 to {len(names) - 1}: there are {len(names)} silos")
    return names[k], executor


@lru_cache(maxsize=2)
def _workplace(text: str) -> Executor:
    """Return the executor for all silos of a simulation, because one process answers many messages."""
    terms = Terms.of_text(text)
    config = terms.own_config
    silos = load(config.data, config.seed)
    devices = (find_device(config.engine.device),)
    run = LocalRun(spec=spec_of(config, terms.method), folder=Path(terms.folder), silos=silos, devices=devices)
    return run.executor()
