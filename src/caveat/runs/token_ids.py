"""Ids of tokens that a model has no row for, told before anything runs, and where inputs are predicted."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core import DataError, seeded


@torch.no_grad()
def check_ids(module: nn.Module, x: Tensor, where: str) -> None:
    """Raises DataError for inputs (N, T) int64, N > 0, with an id that the module cannot look up."""
    highest = x[int(x.flatten(1).amax(1).argmax())]
    embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    hooks = [part.register_forward_pre_hook(lambda part, given: _look_up(part, given[0], where)) for part in embeddings]
    try:
        with seeded("ids"):
            module.eval()(highest[None])
    except IndexError as error:
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
            "nn.Embedding a row for every id, or map rare ones to one id"
        )
