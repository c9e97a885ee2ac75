"""A silo and a server of other versions: each refuses the other in a sentence that names both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from hospitals import Federation

from caveat import __version__
from caveat.core import RunError
from caveat.engines.flower_messages import Order, words_of
from caveat.federation import request_terms
from caveat.federation.server import membership
from caveat.federation.silo import app
from caveat.federation.silo.app import NodeHandler


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, "fedavg", rounds=1, start_timeout=1)


def refused(federation: Federation, silo: str, server: str) -> None:
    with pytest.raises(RunError, match="3 silos are needed"):
        federation.serve()
    both = f"has caveat {silo}, but the server has {server}: install the same version on both"
    assert {name for name in federation.node if any(f"silo '{name}' {both}" in note for note in federation.notes)} == {
        "coast", "hill", "valley",
    }  # fmt: skip
    assert not any("task" in words_of(records) for _, records in federation.grid.sent)


def test_a_silo_refuses_a_server_of_another_version(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_terms, "__version__", "9.8.7")
    refused(federation, __version__, "9.8.7")


@pytest.mark.parametrize("theirs", ["9.8.7", "", 7, None])
def test_a_server_refuses_a_silo_of_another_version(
    federation: Federation, theirs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: a silo that says nothing of its version."""
    greet = NodeHandler.greet

    def older(self: NodeHandler, context: Context, question: Any) -> Any:
        said = {**greet(self, context, question), "version": theirs}
        return {word: value for word, value in said.items() if value is not None}

    monkeypatch.setattr(NodeHandler, "greet", older)
    refused(federation, theirs if theirs == "9.8.7" else "without a version", __version__)


@pytest.mark.long
def test_a_silo_that_was_updated_in_the_middle_of_a_run_refuses_its_orders(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1, start_timeout=60)
    federation.serve()
    number = federation.node["hill"]
    order = next(words_of(sent) for at, sent in federation.grid.sent if at == number and "task" in words_of(sent))
    asked = Order(int(order["t"]), str(order["task"]), int(order["counted"]), "hill")
    text = json.dumps(json.loads(str(order["terms"])) | {"version": "0.0.1"})
    context = Context(1, number, federation.grid.node_config[number], RecordDict(), {})
    with pytest.raises(RunError, match=rf"silo 'hill' has caveat {__version__}, but the server has 0\.0\.1: install"):
        NodeHandler().perform(context, asked, text, {})


def test_all_sides_say_the_one_version() -> None:
    assert membership.__version__ == app.__version__ == request_terms.__version__ == __version__
