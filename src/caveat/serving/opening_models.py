"""The models that a process serves: their places, silos and names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..core import ConfigurationError
from ..files.locks import held
from .inference_thread import Served
from .served_model import ServedModel
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

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder of states, created if missing, because only one process at a time may write what `served`
        reads. Raises RunError if another process holds it, ConfigurationError if it is not a folder."""
        if self.states is None:
            yield
            return
        try:
            self.states.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--watch {self.states}: {error.strerror}, expected a folder") from None
        with held(self.states / ".lock", f"--watch {self.states} is used by another process"):
            yield

    def served(self, before: Sequence[Served] = ()) -> list[Served]:
        """Open the models; a model whose version was served before continues. Raises ConfigurationError for two models
        of the same name and version and for an ONNX file of another silo, and what opening raises."""
        known = {(each.name, each.model.version, each.model.silo): each for each in before}
        found: list[Served] = []
        for place in self.places:
            folders = place.suffix != ".onnx"
            if folders and not place.is_dir():
                raise ConfigurationError(f"{place}: expected the folder of a run, or an exported .onnx file")
            if folders and not self.silos:
                raise ConfigurationError(f"{place}: expected --silo, the silo whose model answers")
            for silo in self.silos if folders else (None,):
                model, name = self.load(place, silo), place.absolute().name if folders else place.stem
                name += f"-{silo}" if folders and len(self.silos) > 1 else ""
                if self.silos and model.silo not in self.silos:
                    given = ", ".join(self.silos)
                    raise ConfigurationError(f"--silo {given}: {place} is the model of silo {model.silo}")
                new = Served(name, model)
                if any((name, new.version) == (each.name, each.version) for each in found):
                    raise ConfigurationError(f"{place}: model {name} in version {new.version} is given twice")
                found.append(known.get((name, model.version, model.silo)) or self._watched(new))
        return found

    def _watched(self, served: Served) -> Served:
        """Return a model with its watch, if there is a folder of states."""
        if self.states is not None:
            served.state = self.states / f"{served.name}-{served.version}.watch.json"
            served.watch = Watch.opened(served.state, served.model, self.alarm, self.between)
        return served
