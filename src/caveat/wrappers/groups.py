"""Groups of silos that a promise can be about: the federation, the silos of a domain, or one silo."""

import hashlib
from enum import IntEnum
from typing import Literal

import torch
from torch import Tensor

GuaranteeScope = Literal["federation", "domain", "silo"]
"""The smallest group that is to have a promise of its own."""
CODE = 4
"""Numbers of a domain's code."""


class Whose(IntEnum):
    """Whose promise a silo has."""

    FEDERATION = 0
    """That of all silos together which have no smaller group's."""
    DOMAIN = 1
    """That of its domain's silos together which have none of their own."""
    SILO = 2
    """One of its own."""


NOBODY = -1.0
"""In place of one of these: a silo that was not counted has no promise."""
MIXED = "together, mixed as their calibration inputs are, not this silo by itself"
ABOUT = {
    Whose.FEDERATION: f"all silos like it {MIXED}",
    Whose.DOMAIN: f"the silos like it of its domain {MIXED}",
    Whose.SILO: "this silo by itself",
}


def domain_code(name: str) -> Tensor:
    """(4,) int64 from 0 to 65535: what stands for a domain in messages, by which equal names are told from others."""
    digest = hashlib.sha256(name.encode()).digest()
    return torch.tensor([int.from_bytes(digest[2 * i : 2 * i + 2], "big") for i in range(CODE)])


def row_of(code: Tensor, domains: Tensor) -> int:
    """Where a domain's code (4,) stands among codes (G, 4), whose first row is the federation's; 0 if it does not."""
    found = (domains.cpu() == code.cpu()).all(-1).nonzero().flatten().tolist()
    return int(found[0]) if found else 0


def members(codes: Tensor, domains: Tensor) -> Tensor:
    """(G, K) float64: whether silo k, of codes (K, 4), belongs to group g: all to the first, the federation."""
    belongs = (domains[:, None] == codes[None]).all(-1)
    belongs[0] = True
    return belongs.double()


def known_domains(codes: Tensor) -> Tensor:
    """(G, 4): a row of -1 for the federation, then the different codes (K, 4) of its silos, ascending."""
    return torch.tensor([[-1] * CODE, *sorted({tuple(code) for code in codes.tolist()})])
