"""Newcomers: silos that take no part in a run, and are measured in the end with what a silo has that joins then."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch.nn.modules.batchnorm import _BatchNorm

from ..core import ConfigurationError, Decision, Method, SiloId, Site, seeded


def check_newcomers(
    newcomers: Collection[SiloId], names: Sequence[SiloId], method: Method, site: Callable[[], Site], seed: int
) -> None:
    """Raises ConfigurationError for newcomers that are no silos, all of them, or left without a model.

    `site` makes the server's site.
    """
    if unknown := sorted({*newcomers} - {*names}):
        shown = f"{', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
        raise ConfigurationError(
            f"federation.newcomers: no silo {unknown[0]!r}, expected some of {shown}", "federation.newcomers"
        )
    if len(newcomers) == len(names):
        raise ConfigurationError(f"federation.newcomers names all {len(names)} silos, so that none takes part")
    if Decision.GLOBAL not in method.models and (kept := _kept(method, site(), seed)):
        raise ConfigurationError(
            f"federation.newcomers does not fit {method.name!r}: {kept[0]} stays at its silo, so that one "
            "that takes no part has only a random one; choose a method that sends silos a whole model"
        )


def _kept(method: Method, site: Site, seed: int) -> list[str]:
    """Parameters that stay at silos, without those of normalisation, which start as the identity."""
    with seeded(seed, "init_server"):
        sent = method.broadcast(method.init_server(site)).get("model", {})
    # Of several models, such as those of clusters, each has a number before its names.
    there = {*sent, *(name.partition(".")[2] for name in sent if name.partition(".")[0].isdigit())}
    parts = [(path, part) for path, part in site.module.named_modules() if not isinstance(part, _BatchNorm)]
    names = [f"{path}.{name}".lstrip(".") for path, part in parts for name, _ in part.named_parameters(recurse=False)]
    return [name for name in names if name not in there]
