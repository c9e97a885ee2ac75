"""The groups of silos that share a guarantee, and the limits of each group."""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from ..core import Tensors
from ..uncertainty import mondrian
from ..uncertainty.selective_risk import Guarantee

CODE = 4
"""Length of a domain's code."""


class Whose(IntEnum):
    """The group whose guarantee a silo has."""

    FEDERATION = 0
    """Covers together all silos that have no guarantee of a smaller group."""
    DOMAIN = 1
    """Covers together the silos of a domain that have no guarantee of their own."""
    SILO = 2
    """Covers this silo alone."""


NOBODY = -1.0
"""The silo has no guarantee, because it took no part in the counts."""
MIXED = "together, mixed in the proportions of their calibration inputs, not this silo by itself"
ABOUT = {
    Whose.FEDERATION: f"all silos like it {MIXED}",
    Whose.DOMAIN: f"the silos like it of its domain {MIXED}",
    Whose.SILO: "this silo by itself",
}


def domain_code(name: str) -> Tensor:
    """Return (4,) int64 from 0 to 65535: the code of a domain in messages, equal for equal names."""
    digest = hashlib.sha256(name.encode()).digest()
    return torch.tensor([int.from_bytes(digest[2 * i : 2 * i + 2], "big") for i in range(CODE)])


def row_of(code: Tensor, domains: Tensor) -> int:
    """Return the row of a domain's code (4,) among codes (G, 4), the federation's first; 0 if it is missing."""
    found = (domains.cpu() == code.cpu()).all(-1).nonzero().flatten().tolist()
    return int(found[0]) if found else 0


def members(codes: Tensor, domains: Tensor) -> Tensor:
    """Return (G, K) float64: whether silo k, of codes (K, 4), is in group g; all are in the federation, group 0."""
    belongs = (domains[:, None] == codes[None]).all(-1)
    belongs[0] = True
    return belongs.double()


def known_domains(codes: Tensor) -> Tensor:
    """Return (G, 4): a row of -1 for the federation, then the distinct codes (K, 4) of its silos, ascending."""
    return torch.tensor([[-1] * CODE, *sorted({tuple(code) for code in codes.tolist()})])


NUMBERS = ("limit", "answered", "errors", "total", "upper", "needed", "enough", "enough_share")
"""Fields of `Guarantee` that a silo reports, with limit 0 if there is none."""
FRACTIONS = frozenset({"limit", "upper", "enough_share"})


@dataclass(frozen=True)
class Rule:
    """The limits by which a silo decides, from its group, by row: for all inputs, and for each pool of subgroups."""

    whose: Whose
    edges: list[Tensors]
    """The edges that rank the scores of each model, by row."""
    limits: Tensor
    counts: Tensor
    totals: Tensor
    pool: Tensor
    """(G,) the pool of each subgroup."""


def at(group: Tensors, row: int) -> Tensors:
    """Return the edges of one group, by model."""
    return {name.removeprefix("edges."): each[row] for name, each in group.items() if name.startswith("edges.")}


def entries(found: Guarantee) -> dict[str, object]:
    """Return a guarantee as summary entries."""
    known = dataclasses.asdict(found) | {"coverage": found.coverage, "statement": found.statement}
    if found.tolerance is None:
        del known["tolerance"]
    return known | {"guaranteed": found.limit is not None}


def by_pool(
    found: Sequence[Guarantee], pool: Tensor, names: Sequence[str], least: int, together: str
) -> dict[str, object]:
    """Return the entries of a group with guarantees by row: for each pool of subgroups, and for all together."""
    parts, known = [], []
    for first, of in mondrian.members(pool, names).items():
        few = f", with fewer than the {least:,} calibration inputs that one needs" if len(of) > 1 else ""
        who = f"for {' and '.join(of)}{' together, not each by itself' if few else ''}{few}"
        known.append(found[1 + first])
        parts.append(entries(known[-1]) | {"of": of, "statement": f"{who}: {known[-1].statement}, {together}"})
    answering, total = [each for each in known if each.limit is not None], sum(each.total for each in known)
    answered, errors = (sum(getattr(each, name) for each in answering) for name in ("answered", "errors"))
    statement = "; ".join([*(str(each["statement"]) for each in parts), f"without a subgroup: {found[0].statement}"])
    return {
        "limit": None, "upper": None, "answered": answered, "errors": errors, "total": total,
        "coverage": answered / total if total else 0.0, "guaranteed": bool(answering), "statement": statement,
        "subgroups": parts,
    }  # fmt: skip
