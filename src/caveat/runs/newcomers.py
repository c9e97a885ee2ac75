"""Check newcomers: silos that take no part in the training, but predict with the trained model."""

from collections.abc import Callable, Collection, Sequence

from torch.nn.modules.batchnorm import _BatchNorm

from ..core import ConfigurationError, Decision, Method, SiloContext, SiloId, seeded


def check_newcomers(
    newcomers: Collection[SiloId],
    names: Sequence[SiloId],
    method: Method,
    context: Callable[[], SiloContext],
    seed: int,
) -> None:
    """Raise ConfigurationError for newcomers that are unknown, all silos, or left without a trained model. `context`
    returns the server's context."""
    if unknown := sorted({*newcomers} - {*names}):
        shown = f"{', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
        raise ConfigurationError(
            f"federation.newcomers: no silo {unknown[0]!r}, expected names among {shown}", "federation.newcomers"
        )
    if len(newcomers) == len(names):
        raise ConfigurationError(f"federation.newcomers contains all {len(names)} silos, so no silo would take part")
    if Decision.GLOBAL not in method.models and (kept := _kept(method, context(), seed)):
        raise ConfigurationError(
            f"federation.newcomers does not fit {method.name!r}: {kept[0]} stays at its silo and would be random at a "
            "newcomer; choose a method that sends silos a whole model"
        )


def _kept(method: Method, context: SiloContext, seed: int) -> list[str]:
    """Return parameters that stay at silos, except for normalization, which starts as the identity."""
    with seeded(seed, "init_server"):
        sent = method.broadcast(method.init_server(context)).get("model", {})
    # If there are several models, such as cluster models, each has a numeric prefix.
    there = {*sent, *(name.partition(".")[2] for name in sent if name.partition(".")[0].isdigit())}
    parts = [(path, part) for path, part in context.module.named_modules() if not isinstance(part, _BatchNorm)]
    names = [f"{path}.{name}".lstrip(".") for path, part in parts for name, _ in part.named_parameters(recurse=False)]
    return [name for name in names if name not in there]
