"""What a process serves: models of places by silo, and what they are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core import ConfigurationError
from .answering import Served
from .answers import ServedModel
from .watch import Watch


@dataclass(frozen=True)
class Deployment:
    """The models of run folders for several silos, and of ONNX files, each with a watch in a folder."""

    places: tuple[Path, ...]
    silos: tuple[str, ...]
    load: Callable[[Path, str | None], ServedModel]
    states: Path | None = None
    alarm: float = 0.01
    between: int | None = None

    def served(self, before: Sequence[Served] = ()) -> list[Served]:
        """Open the models; one whose version is among those before goes on. Raises ConfigurationError for two models
        of the same name and version, and what opening raises."""
        known = {(each.name, each.model.version, each.model.silo): each for each in before}
        found: list[Served] = []
        for place in self.places:
            folders = place.suffix != ".onnx"
            if folders and not self.silos:
                raise ConfigurationError(f"{place}: expected --silo, the silo whose model answers")
            for silo in self.silos if folders else (None,):
                model, name = self.load(place, silo), place.absolute().name if folders else place.stem
                name += f"-{silo}" if folders and len(self.silos) > 1 else ""
                if any((name, model.version[:12]) == (each.name, each.version) for each in found):
                    raise ConfigurationError(f"{place}: model {name} in version {model.version[:12]} is given twice")
                old = known.get((name, model.version, model.silo))
                found.append(old or Served(name, model, *self._watch(name, model)))
        return found

    def _watch(self, name: str, model: ServedModel) -> tuple[Watch | None, Path | None]:
        if self.states is None:
            return None, None
        try:
            self.states.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--watch {self.states}: {error.strerror}, expected a folder") from None
        state = self.states / f"{name}-{model.version[:12]}.watch.json"
        return Watch.opened(state, model, self.alarm, self.between), state
