"""A silo whose caveat is another one than everybody's: Python imports this file by itself, on that machine alone.

What it does says the file `lie` in its folder: "rows" claims 10^9 rows when it joins; "weights" sends, in turn, what it
has trained times -10, times 100,000, and random numbers in its place.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

PLACE = "caveat.federation.silo.member"
LIE = Path(os.environ["LIAR"]) / "lie"


class Liar(importlib.abc.MetaPathFinder):
    """Changes the silo's side once it is imported."""

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name != PLACE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        honest = loader.exec_module

        def exec_module(module: Any) -> None:
            honest(module)
            corrupt(module.SiloSide)

        loader.exec_module = exec_module
        return spec


def corrupt(side: Any) -> None:
    join, perform = side.join, side.perform

    def lying_join(self: Any, terms: Any) -> dict[str, Any]:
        words = dict(join(self, terms))
        if LIE.read_text() == "rows":
            card = json.loads(words["card"])
            card["examples"]["train"], card["class_counts"] = 10**9, [5 * 10**8, 5 * 10**8]
            words["card"] = json.dumps(card)
        return words

    def lying_perform(self: Any, terms: Any, order: Any, payload: Any) -> Any:
        update = perform(self, terms, order, payload)
        if LIE.read_text() == "weights" and "model" in update.payload and update.payload["model"]:
            lie = (lambda x: -10 * x, lambda x: 100_000 * x, lambda x: x.normal_())[order.t % 3]
            for name, tensor in update.payload["model"].items():
                if tensor.is_floating_point():
                    update.payload["model"][name] = lie(tensor.clone())
        return update

    side.join, side.perform = lying_join, lying_perform


sys.meta_path.insert(0, Liar())
