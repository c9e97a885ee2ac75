"""Test inputs by quadrant: which model knows them, the local or the global one."""

from dataclasses import dataclass

from markupsafe import Markup

from ...core.text import percent
from ...files.schema import INSIDE, NOBODY, Stream
from .. import svg
from ..templates import Table, column, table, words


@dataclass(frozen=True)
class Case:
    """A quadrant: the model for an input, and whether the input has no answer."""

    name: str
    meaning: str
    model: str
    abstained: bool

    @property
    def key(self) -> str:
        """The key of this quadrant in summaries."""
        return f"{self.model}_{'unsure' if self.abstained else 'sure'}"


QUADRANTS = (
    Case("known knowns", "the local model knows such inputs: it answers", "local", False),
    Case("known unknowns", "the local model knows such inputs, but this one is ambiguous: no answer", "local", True),
    Case(
        "unknown knowns",
        "the federation knows such inputs, but the silo does not: the global model answers",
        "global",
        False,
    ),
    Case("unknown unknowns", "neither the local nor the global model knows enough: no answer", "global", True),
)
KNOWN_TO = {INSIDE: "silos' own", "ood_local": "known to other silos only", NOBODY: "known to no silo"}
"""To whom the inputs of a stream are known."""
_BEST = {INSIDE: QUADRANTS[0], "ood_local": QUADRANTS[2], NOBODY: QUADRANTS[3]}


def quadrants(tested: dict[str, Stream]) -> Table | None:
    """Return a row per quadrant and a column per stream; None without a choice between two models.

    Kotelevskii et al., Dirichlet-Based Uncertainty Quantification for Personalized Federated Learning with Improved
    Posterior Networks, IJCAI 2024, table 1.
    """
    found = {name: stream.quadrants for name, stream in tested.items() if sum(stream.quadrants.values())}
    if not found or not two_models(tested):
        return None
    names = (svg.element("span", q.name) + svg.element("span", q.meaning, class_="meaning") for q in QUADRANTS)
    columns = [column(name, (_cell(counts, q.key) for q in QUADRANTS)) for name, counts in found.items()]
    caption = "Each stream's test inputs by quadrant: their number and share"
    best = [f"{name} ({KNOWN_TO[name]}) are {_BEST[name].name}" for name in found if name in _BEST]
    wanted = f". Ideally, inputs of {', those of '.join(best)}" if len(best) > 1 else ""
    return table([words("quadrant", names), *columns], f"{caption}{wanted}.")


def two_models(tested: dict[str, Stream]) -> bool:
    return any(len(stream.models) > 1 for stream in tested.values())


def _cell(counts: dict[str, int], key: str) -> Markup:
    count = counts.get(key, 0)
    share = svg.element("small", percent(count / sum(counts.values())))
    return Markup("{} {}").format(f"{count:,}", share)
