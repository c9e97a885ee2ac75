"""Rounds in which the server sees only sums over silos, for every engine."""

from collections.abc import Mapping, Sequence

from ..core import Method, Replies, RunError, SiloId, Update, Weights
from ..core.method import round_at
from ..secure.fixed_point import DecodedSum, Layout, sum_in_the_clear


def weights_of(method: Method, t: int, address: str) -> Weights | None:
    """Return the weights of silos in the sum of a task, in the round that a silo runs for this t and address; None if
    the updates are not summed, because the server needs each of them. Evaluations are sums. Raises RunError for an
    unknown address."""
    if address in method.evaluations:
        return "silos"
    if (step := round_at(list(method.schedule()), t, address)) is None:
        raise RunError(f"task {address!r} is neither a task of a round nor an evaluation")
    return step.summed


def weight_in(update: Update, weights: Weights) -> int:
    """Return the weight of an update in a sum."""
    return update.examples if weights == "examples" else 1


def summed_replies(
    layout: Layout, total: DecodedSum, examples: Mapping[SiloId, int], population: int, left_out: Mapping[SiloId, str]
) -> Replies:
    """Return the replies of silos if only their sum is known, with the numbers of examples that the silos reported."""
    form = layout.form()
    updates = {silo: Update(form, count) for silo, count in examples.items()}
    return Replies(updates, population, left_out, means=total.means(layout), totals=total.sums)


def sums_alone(replies: Replies, weights: Weights) -> Replies:
    """Return replies of which only the sum is known. The numbers are bit-identical to masked sums."""
    updates = replies.updates
    payloads = {silo: update.payload for silo, update in updates.items()}
    layout, total = sum_in_the_clear(
        payloads, {silo: weight_in(update, weights) for silo, update in updates.items()}, len(updates)
    )
    examples = {silo: update.examples for silo, update in updates.items()}
    return summed_replies(layout, total, examples, replies.population, replies.left_out)


def unsecured(method: Method) -> Sequence[str]:
    """Return the names of the rounds in which the server sees each silo's own update."""
    return list(dict.fromkeys(step.name for step in method.schedule() if step.summed is None))
