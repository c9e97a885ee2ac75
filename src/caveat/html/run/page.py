"""The page of a run: a self-contained file that loads nothing from the network."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ...core.text import count, percent
from ...files import RunFolder, can_go_back, read_run, write_bytes
from ...files.schema import Gallery, Item, Quadrant
from .. import templates
from ..templates import Table, column, table, words, worst_first
from .advice import below
from .classification import classification
from .decisions import OWN, decisions, outcomes
from .feature_plots import codebook, scatter
from .guarantee import promise
from .incidents import absence, absent, afresh, failures, lacking, newcomers, unlike, went_back, withdrawn
from .overview import headline, overview
from .quadrants import KNOWN_TO, QUADRANTS, two_models
from .quantity import quantity_parts
from .rounds import cost_table, curves, domains
from .sent_messages import metadata_sent, privacy, protection, secured
from .silo_metrics import own_metrics
from .silos import silo_section
from .subgroups import subgroup_table
from .trust import reliability, right_and_wrong, risk_coverage, temperatures, trust


@dataclass(frozen=True)
class Again:
    command: str
    """Empty for a run from Python, or one whose training diverged."""
    given: str
    """The user's command, from a recipe or the user's file; empty if unknown."""
    about: str


def again(run: RunFolder) -> Again:
    """Return the commands that repeat the run, with version and seed."""
    summary = run.summary
    known = [f"caveat {summary.version}"] if summary and summary.version else []
    known += [f"seed {summary.seed}"] if summary and summary.seed is not None else []
    about = " and ".join(known)
    if run.record is not None and run.record.in_python:
        return Again("", "", about)
    if run.federated:
        return Again("caveat flower init DIR config.toml", "", about)
    if run.failure and run.failure.diverged:  # the first screen has the command
        return Again("", "", about)
    given = run.record.given if run.record else None
    sets = [word for each in given.sets for word in ("--set", each)] if given else []
    own = _command(run, f"{run.given or run.path.name}/config.toml")
    return Again(own, _command(run, given.source, *sets) if given else "", about)


def _command(run: RunFolder, source: str, *options: str) -> str:
    return shlex.join(["caveat", "run", source, *run.plugins, *options, "--out", "NEW"])


Kept = TypeVar("Kept", bound=Item)
_IMAGE_BUDGET = 4_000_000  # characters of base64; further inputs have no image
_SILOS_BY_QUADRANT = 5
"""Maximum number of silos whose inputs are shown by quadrant, because each silo may have dozens of images."""


def within_budget(gallery: Gallery | None) -> Gallery | None:
    """Return the gallery with as many images as fit on a page, silo by silo; None if it is empty. Inputs by quadrant,
    of the first silos only, get the rest of the budget after the most and least certain inputs."""
    if gallery is None:
        return None
    if not gallery.sure_errors and not any(s.certain or s.uncertain or s.quadrants for s in gallery.silos):
        return None
    budget = _Budget(_IMAGE_BUDGET)
    sure_errors = budget.keep(gallery.sure_errors)
    ends = [
        silo.model_copy(update={"certain": budget.keep(silo.certain), "uncertain": budget.keep(silo.uncertain)})
        for silo in gallery.silos
    ]
    silos = [
        silo.model_copy(update={"quadrants": budget.keep_of_each(silo.quadrants) if i < _SILOS_BY_QUADRANT else []})
        for i, silo in enumerate(ends)
    ]
    return gallery.model_copy(update={"silos": silos, "sure_errors": sure_errors})


class _Budget:
    def __init__(self, characters: int) -> None:
        self.left = characters

    def keep(self, items: Sequence[Kept]) -> list[Kept]:
        """Return the items, without images that exceed the budget."""
        kept = []
        for item in items:
            self.left -= len(item.image or "")
            kept.append(item if self.left >= 0 else item.model_copy(update={"image": None}))
        return kept

    def keep_of_each(self, quadrants: Sequence[Quadrant]) -> list[Quadrant]:
        return [quadrant.model_copy(update={"items": self.keep(quadrant.items)}) for quadrant in quadrants]


def wrong_rows(gallery: Gallery) -> Table | None:
    """Return the most confident errors on rows of a table, with their values; None for other inputs."""
    found = gallery.sure_errors
    names = list(dict.fromkeys(name for each in found for name in each.row_values))
    if not names:
        return None
    columns = [
        words("silo", [each.silo for each in found]),
        column("row", [count(each.source_row) for each in found], "position in the source of the data"),
        words("predicted", [gallery.name_of(each.predicted) for each in found]),
        column("confidence", [percent(each.probability) for each in found]),
        words("label", [gallery.name_of(each.label) for each in found]),
        *(column(name, [each.row_values.get(name, "") for each in found]) for name in names),
    ]
    caption = (
        "Inputs of all silos, with the values that the model had; missing values are empty. This page has values of "
    )
    return table(columns, f"{caption}single inputs.", [each.silo for each in found])


_ONE_MODEL = tuple(replace(q, name="abstained" if q.abstained else "answered") for q in QUADRANTS)
Examples = tuple[Sequence[str], Sequence[tuple[str, Sequence[Sequence[Item]]]]]
"""A silo's examples: the streams, and for each quadrant its name and the items of every stream."""


def examples(run: RunFolder, gallery: Gallery | None) -> dict[str, Examples]:
    """Return the examples of each silo, by the quadrants that have any."""
    chosen = run.summary and run.summary.policy.name != OWN and two_models(run.summary.tested)
    shown = QUADRANTS if chosen else _ONE_MODEL
    found: dict[str, Examples] = {}
    for silo in gallery.silos if gallery else []:
        items = {(q.model, q.abstained, q.stream): q.items for q in silo.quadrants if q.items}
        streams = sorted({stream for *_, stream in items}, key=_place)
        rows = [(q.name, [items.get((q.model, q.abstained, stream), []) for stream in streams]) for q in shown]
        if items:
            found[silo.name] = streams, [row for row in rows if any(row[1])]
    return found


def _place(stream: str) -> tuple[int, str]:
    names = [*KNOWN_TO, "mix"]
    return names.index(stream) if stream in names else len(names), stream


_TEMPLATE = "run/run.html.j2"


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the report of the run in folder `run` to `out`, by default its report.html, and return its path. Raises
    DataError if `run` is not a run's folder or one of its files is damaged, RunError if `out` cannot be written."""
    return write_page(read_run(run), out or run / "report.html")


def write_page(run: RunFolder, target: Path) -> Path:
    """Write the report of a run folder to `target`, and return `target`."""
    page = render(run)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, page.encode())
    return target


def render(run: RunFolder) -> str:
    """Return the text of the page."""
    if run.quantity:
        return templates.render("run/quantity.html.j2", run=run, again=again(run), **quantity_parts(run))
    return templates.render(_TEMPLATE, run=run, **_parts(run))


def _parts(run: RunFolder) -> dict[str, Any]:
    """Return the parts of the page by name; None for a part without data."""
    gallery, first, found = within_budget(run.gallery), trust(run), overview(run)
    warnings, early = run.summary.warnings if run.summary else (), below(run)
    sizes = {silo.name: silo.n_test or 0 for silo in run.silos}
    return {
        "overview": found,
        "steps": first.advice if first else (),
        "verdicts_of": worst_first([*(first.lines if first else ()), *(found.notes if found else ())]),
        "promise": promise(run),
        "certainty": right_and_wrong(run),
        "risk_coverage": risk_coverage(run),
        "silos": silo_section(run),
        "own_metrics": own_metrics(run),
        "failures": failures(run),
        "classification": classification(run),
        "wrong_rows": wrong_rows(run.gallery) if run.gallery else None,
        "subgroups": subgroup_table(run),
        "outcomes": outcomes(run),
        "decisions": decisions(run),
        "curves": curves(run),
        "scatter": scatter(run.features, domains(run), len(run.silos), sizes),
        "codebook": codebook(run),
        "reliability": reliability(run),
        "temperatures": temperatures(run),
        "gallery": gallery,
        "examples": examples(run, gallery),
        "absence": absence(run),
        "absent": absent(run),
        "afresh": afresh(run),
        "noted": unlike(run),
        "can_go_back": can_go_back(run.path),
        "went_back": went_back(run),
        "lacking": lacking(run),
        "warnings": [each for each in warnings if each is not early],
        "newcomers": newcomers(run),
        "withdrawn": withdrawn(run),
        "privacy": privacy(run),
        "protection": protection(run.summary.privacy if run.summary else None),
        "secured": secured(run.summary.secure if run.summary else None),
        "greeting": metadata_sent(run.greeting),
        "facts": headline(run),
        "cost_table": cost_table(run),
        "again": again(run),
    }
