"""How frequent classes are at each silo, beside the others': what swapped labels would show in, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core import SiloId
from ..core.silo_info import SiloInfo

FAR = 0.2
"""A share of a class is far from others' from this difference on."""
MOST_CLASSES = 10
"""Classes of which shares are told one by one."""


def shares(card: SiloInfo, classes: Sequence[str]) -> dict[str, float]:
    """The share of each class in a silo's training examples."""
    total = sum(card.class_counts) or 1
    return {name: count / total for name, count in zip(classes, card.class_counts, strict=True)}


def told_shares(card: SiloInfo, classes: Sequence[str]) -> str:
    """Such shares in words; "" where classes are many."""
    if len(classes) > MOST_CLASSES:
        return ""
    return ", ".join(f"{name} {share:.0%}" for name, share in shares(card, classes).items())


def unlike_others(cards: Mapping[SiloId, SiloInfo], classes: Sequence[str]) -> list[str]:
    """A line for each silo where a class is much more or less frequent than at all others.

    That is, its share differs from the nearest other silo's by more than `FAR`, and by more than the shares of the
    others differ among themselves. Silos may differ so; swapped codes of classes look like that, too.
    """
    found = {silo: shares(card, classes) for silo, card in cards.items()}
    lines = []
    for silo, own in found.items():
        others = [each for name, each in found.items() if name != silo]
        for name in classes if others else ():
            theirs = [each[name] for each in others]
            gap = min(abs(own[name] - share) for share in theirs)
            if gap > max(FAR, max(theirs) - min(theirs)):
                lines.append(
                    f"silo {silo}: {own[name]:.0%} of its training examples are {name!r}, elsewhere "
                    f"{min(theirs):.0%} to {max(theirs):.0%}; check [data.labels] of its silo.toml"
                )
                break
    return lines
