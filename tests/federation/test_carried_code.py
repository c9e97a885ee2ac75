"""Methods of one's own on the nodes of a simulation, which get the app from a process that imported it."""

from __future__ import annotations

import pytest

from caveat import METHODS, FedAvg, frozen_settings, register
from caveat.federation.silo.app import NodeHandler


@frozen_settings
class Carried(FedAvg):
    """FedAvg by another name."""


@pytest.mark.usefixtures("registry")
def test_a_node_knows_the_methods_of_the_app_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    register(Carried)
    handler = NodeHandler()
    monkeypatch.setattr(METHODS, "_added", {})  # another process, which has imported nothing
    assert "carried" not in METHODS
    handler.recall()
    assert METHODS["carried"] is Carried
