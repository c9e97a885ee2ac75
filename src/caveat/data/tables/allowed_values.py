"""The values that a data dictionary allows in raw rows, and rows that are not answered because of their values.

Predictions, the service and exported models use these functions; exports record them as a graph.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core import Reason
from .declarations import DictionaryColumn
from .reading_settings import TableColumn

FORBIDDEN = 1
"""The code of a text that the data dictionary does not allow is this plus the number of categories."""


@dataclass(frozen=True)
class Limit:
    """The values that a data dictionary allows in a column of raw rows."""

    rule: DictionaryColumn
    empties: bool
    """Whether values that are not allowed count as missing; otherwise, rows with such values are not answered."""


def allowed(raw: Tensor, table: Sequence[TableColumn], limits: Mapping[int, Limit]) -> tuple[Tensor, Tensor]:
    """Return raw rows (N, D) without the values that the data dictionary treats as missing, and (N, D) bool: whether
    it refuses the row because of the value. Exported models record this function."""
    columns, refused = list(raw.unbind(1)), [torch.zeros_like(raw[:, 0], dtype=torch.bool)] * len(table)
    for i, limit in limits.items():
        value, categories, ends = columns[i], table[i].categories, limit.rule.range
        if categories is None:
            low, high = (torch.tensor(end, dtype=raw.dtype) for end in ends or (-math.inf, math.inf))
            outside, absent = (value < low) | (value > high), torch.tensor(math.nan, dtype=raw.dtype)
        else:
            outside = value == len(categories) + FORBIDDEN
            absent = torch.tensor(-1, dtype=raw.dtype)
        if limit.empties:
            columns[i] = torch.where(outside, absent, value)
        else:
            refused[i] = outside
    return torch.stack(columns, 1), torch.stack(refused, 1)


def usable(raw: Tensor, table: Sequence[TableColumn], limits: Mapping[int, Limit]) -> tuple[Tensor, Tensor]:
    """Return raw rows (N, D) with NaN or -1 for values that are not `allowed`, and (N,) int64 of Reason: OUTSIDE for
    rows with such a value, EMPTY for rows without any value. Exported models record this function."""
    raw, refused = allowed(raw, table, limits)
    columns, present = [], torch.zeros_like(raw[:, 0], dtype=torch.bool)
    for i, column in enumerate(table):
        value, numeric = raw[:, i], column.categories is None
        present = present | ~(value.isnan() if numeric else value.isnan() | (value == -1))
        absent = torch.tensor(math.nan if numeric else -1, dtype=raw.dtype)
        columns.append(torch.where(refused[:, i], absent, value) if i in limits else value)
    why = torch.where(present, int(Reason.NONE), int(Reason.EMPTY))
    return torch.stack(columns, 1), torch.where(refused.any(1), int(Reason.OUTSIDE), why)
