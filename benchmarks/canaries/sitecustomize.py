"""Python imports this file in the silos' processes of `check.py`: it plants canary values, and records what is sent."""

import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

PLACE = "caveat.federation.silo.secure"


class Planting(importlib.abc.MetaPathFinder):
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
            sys.path.insert(0, os.environ["CANARIES_HELPERS"])
            from canaries import plant

            plant(module.SecureFolder, Path(os.environ["CANARIES"]))

        loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Planting())
