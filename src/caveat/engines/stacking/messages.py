"""Orders for chunks and what comes of them, as workers are sent them: JSON, with tensors in shared buffers."""

from __future__ import annotations

from typing import Any

from ...core import Payload
from ...files.schema.record import as_json
from ...files.schema.small_files import KeptState
from ..processes.shared_buffer import SharedBuffer
from .chunk import ChunkDone, ChunkOrder, ChunkPart
from .replies import SummedPart, summed


def as_order(order: ChunkOrder, down: dict[str, Any], linear: bool) -> dict[str, Any]:
    """An order whose payload lies in the buffer of what is sent."""
    return {
        "t": order.t, "work": order.address, "down": down, "silos": list(order.silos), "needed": list(order.needed),
        "kept": [as_json(kept) for kept in order.kept.values()], "stacked": dict(order.stacked), "linear": linear,
    }  # fmt: skip


def order_of(message: dict[str, Any], sent: Payload) -> ChunkOrder:
    kept = [KeptState.model_validate(each) for each in message["kept"]]
    return ChunkOrder(
        message["t"], message["work"], sent, message["silos"], {each.silo: each for each in kept}, message["needed"],
        message["stacked"],
    )  # fmt: skip


def as_answer(done: ChunkDone, up: SharedBuffer, linear: bool) -> dict[str, Any]:
    """What a chunk has come to, its tensors written to a buffer."""
    parts = []
    for part in done.parts:
        about: dict[str, Any] = {"silos": part.silos, "examples": part.examples}
        if linear:
            made = summed(part)
            about |= {"sums": up.write(made.sums), "first": up.write(made.first)}
        else:
            about["up"] = up.write(part.payload)
        parts.append(about)
    return {"parts": parts, "kept": [as_json(kept) for kept in done.kept], "one_by_one": done.one_by_one}


def parts_of(answer: dict[str, Any], up: SharedBuffer) -> list[ChunkPart | SummedPart]:
    return [
        ChunkPart(part["silos"], up.read(part["up"]), part["examples"])
        if "up" in part
        else SummedPart(part["silos"], part["examples"], up.read(part["sums"]), up.read(part["first"]))
        for part in answer["parts"]
    ]
