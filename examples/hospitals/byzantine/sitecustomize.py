"""A malicious silo with a modified caveat: Python imports this file automatically, on that machine only.

The file `attack` in the machine's folder selects the attack. "rows": the silo claims 10^9 rows when it joins.
"weights": it sends its trained weights times -10, its weights times 100,000 and random numbers in turn.
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
ATTACK = Path(os.environ["MALICIOUS_FOLDER"]) / "attack"


class Corruption(importlib.abc.MetaPathFinder):
    """Modify the silo's code when it is imported."""

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

    def malicious_join(self: Any, terms: Any) -> dict[str, Any]:
        words = dict(join(self, terms))
        if ATTACK.read_text() == "rows":
            card = json.loads(words["card"])
            card["examples"]["train"], card["class_counts"] = 10**9, [5 * 10**8, 5 * 10**8]
            words["card"] = json.dumps(card)
        return words

    def malicious_perform(self: Any, terms: Any, order: Any, payload: Any) -> Any:
        update = perform(self, terms, order, payload)
        if ATTACK.read_text() == "weights" and "model" in update.payload and update.payload["model"]:
            change = (lambda x: -10 * x, lambda x: 100_000 * x, lambda x: x.normal_())[order.t % 3]
            for name, tensor in update.payload["model"].items():
                if tensor.is_floating_point():
                    update.payload["model"][name] = change(tensor.clone())
        return update

    side.join, side.perform = malicious_join, malicious_perform


sys.meta_path.insert(0, Corruption())
