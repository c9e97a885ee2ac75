"""Checks of silos against a specification, before anything runs: newcomers, and ids of tokens."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core import ConfigurationError, DataError, Decision, Method, SiloContext, SiloId, seeded


def check_newcomers(
    newcomers: Collection[SiloId],
    names: Sequence[SiloId],
    method: Method,
    context: Callable[[], SiloContext],
    seed: int,
) -> None:
    """Raises ConfigurationError for newcomers that are no silos, all of them, or left without a model.

    `context` makes the server's site.
    """
    if unknown := sorted({*newcomers} - {*names}):
        shown = f"{', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
        raise ConfigurationError(
            f"federation.newcomers: no silo {unknown[0]!r}, expected some of {shown}", "federation.newcomers"
        )
    if len(newcomers) == len(names):
        raise ConfigurationError(f"federation.newcomers names all {len(names)} silos, so that none takes part")
    if Decision.GLOBAL not in method.models and (kept := _kept(method, context(), seed)):
        raise ConfigurationError(
            f"federation.newcomers does not fit {method.name!r}: {kept[0]} stays at its silo, so that one "
            "that takes no part has only a random one; choose a method that sends silos a whole model"
        )


def _kept(method: Method, context: SiloContext, seed: int) -> list[str]:
    """Parameters that stay at silos, without those of normalisation, which start as the identity."""
    with seeded(seed, "init_server"):
        sent = method.broadcast(method.init_server(context)).get("model", {})
    # Of several models, such as those of clusters, each has a number before its names.
    there = {*sent, *(name.partition(".")[2] for name in sent if name.partition(".")[0].isdigit())}
    parts = [(path, part) for path, part in context.module.named_modules() if not isinstance(part, _BatchNorm)]
    names = [f"{path}.{name}".lstrip(".") for path, part in parts for name, _ in part.named_parameters(recurse=False)]
    return [name for name in names if name not in there]


@torch.no_grad()
def check_ids(module: nn.Module, x: Tensor, where: str) -> None:
    """Raises DataError for inputs (N, T) int64, N > 0, with an id that the module cannot look up."""
    if (lowest := int(x.min())) < 0:
        raise DataError(f"{where}: id {lowest} of a token, expected ids from 0")
    highest = x[int(x.flatten(1).amax(1).argmax())]
    embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    hooks = [part.register_forward_pre_hook(lambda part, given: _look_up(part, given[0], where)) for part in embeddings]
    try:
        with seeded("ids"):
            module.eval()(highest[None])
    except (IndexError, RuntimeError) as error:  # of a table of its own, of one_hot
        raise DataError(f"{where}: the model cannot look up the id {int(highest.max())}: {error}") from error
    finally:
        for hook in hooks:
            hook.remove()


def _look_up(embedding: nn.Module, ids: Tensor, where: str) -> None:
    """Raises DataError unless an embedding has a row for all ids."""
    known = int(embedding.num_embeddings)  # type: ignore[arg-type]
    if ids.numel() and int(ids.max()) >= known:
        raise DataError(
            f"{where}: id {int(ids.max())} of a token, but the model knows ids from 0 to {known - 1}: give its "
            f"nn.{type(embedding).__name__} a row for every id, or map rare ones to one id"
        )
