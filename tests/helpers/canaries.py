"""Canary values in silos' updates, what silos sent before it was masked, and the search for both at the server."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from caveat.core import Payload
from caveat.secure.fixed_point import FRACTION, encode


def plant(folder_class: Any, records: Path) -> None:
    """Have `SecureFolder` put two canary values into each floating-point tensor of a silo's training updates, and store
    what the silo sends, before it is masked, at `records/SILO`."""
    masked = folder_class.masked

    def planted(self: Any, order: Any, request: bytes, update: Any, weight: int, shares: int) -> Any:
        own = records / self.identity.silo
        own.mkdir(parents=True, exist_ok=True)
        flat = {f"{group}/{name}": each for group, named in update.payload.items() for name, each in named.items()}
        for tensor in flat.values():
            if order.task.endswith("train") and tensor.is_floating_point():
                tensor.view(-1)[:2] = canaries(own.name)[: tensor.numel()]
        sent = masked(self, order, request, update, weight, shares)
        kept = {name: each.contiguous() for name, each in flat.items()}
        save_file(kept, own / f"{order.t}-{order.task}.safetensors", {"weight": str(weight)})
        return sent

    folder_class.masked = planted


def canaries(silo: str) -> torch.Tensor:
    """Return two float32 values of a silo."""
    return torch.randn(2, generator=torch.Generator().manual_seed(zlib.crc32(silo.encode())))


class Recorded:
    """What silos sent in one task, before it was masked."""

    def __init__(self, records: Path, task: str, silos: Iterable[str]) -> None:
        self.payloads: dict[str, Payload] = {}
        self.weights: dict[str, int] = {}
        for silo in silos:
            with safe_open(records / silo / f"{task}.safetensors", "pt") as file:  # type: ignore[no-untyped-call]
                self.weights[silo] = int(file.metadata()["weight"])
                found: Payload = {}
                for flat in file.keys():  # noqa: SIM118
                    group, _, name = flat.partition("/")
                    found.setdefault(group, {})[name] = file.get_tensor(flat)
                self.payloads[silo] = found

    def compare(self, sums: Payload) -> tuple[int, float]:
        """Return how many of the sums count something, and the largest error of the others, as a share of its bound.
        Raises AssertionError for a count that differs."""
        counts, worst, n = 0, 0.0, len(self.payloads)
        for group, named in sums.items():
            for name, total in named.items():
                parts = [(self.weights[silo], each[group][name]) for silo, each in self.payloads.items()]
                whole = all(bool((part == part.round()).all()) for _, part in parts)
                if not parts[0][1].is_floating_point() or (whole and {weight for weight, _ in parts} == {1}):
                    assert torch.equal(sum(part.double() for _, part in parts), total.double()), name
                    counts += total.numel()
                    continue
                weighted = [weight * part.double() for weight, part in parts]
                plain, size = sum(weighted), sum(each.abs() for each in weighted)
                bound = n * 2.0 ** -(FRACTION + 1) + (n + 1) * 2.0**-53 * size
                worst = max(worst, float(((plain - total).abs() / bound).max()))
        return counts, worst

    def patterns(self, most: int = 3) -> Iterator[bytes]:
        """Yield a silo's numbers in the forms in which they could leave it: as the bytes of its tensors, of fixed-point
        numbers and as text. Left out are numbers that others could have by chance (`is_telling`), such as counts, and
        those that are the sum, because all other silos have 0."""
        yield from filter(is_telling, self._forms(most))

    def _forms(self, most: int) -> Iterator[bytes]:
        for silo, payload in self.payloads.items():
            for group, named in payload.items():
                for name, tensor in named.items():
                    several = sum((each[group][name] != 0).long() for each in self.payloads.values()) > 1
                    flat = tensor[several & (tensor * 2**16 != (tensor * 2**16).round())][:most]
                    if not tensor.is_floating_point() or not len(flat):
                        continue
                    words = encode({group: {name: flat}}, self.weights[silo], len(self.payloads))[2:]
                    yield from (word.tobytes() for word in words if word % 2**16)
                    yield from (np.float64(each).tobytes() for each in flat.tolist())
                    yield from (repr(each).encode() for each in flat.double().tolist())
                    if len(flat) > 1:
                        yield flat[:2].numpy().tobytes()


def is_telling(pattern: bytes) -> bool:
    """Return whether a pattern has six distinct bytes or more. Patterns with fewer may be in the memory of any program:
    3.9999999999999996 (the bytes ff ff ff ff ff ff 0f 40), 593.33333333333335 as text, and integers of 32 bits. Of
    eight random bytes, fewer than six are distinct in one of 16,000 cases."""
    return len(set(pattern)) >= 6


def where(patterns: Iterable[bytes], places: Iterable[tuple[str, bytes]]) -> list[str]:
    """Return the places that contain a pattern, of 6 bytes or more. Only where bytes 2 to 5 may fit are patterns
    compared, because a server's memory has hundreds of megabytes; the other bytes are often zeros."""
    wanted: dict[bytes, list[bytes]] = {}
    firsts, seconds = np.zeros(1 << 16, bool), np.zeros(1 << 16, bool)
    for each in set(patterns):
        wanted.setdefault(each[2:6], []).append(each)
        first, second = np.frombuffer(each[2:6], "<u2")
        firsts[first] = seconds[second] = True
    found: list[str] = []
    for name, content in (place for place in places if len(place[1]) > 4):
        for offset in (0, 1):
            pairs = np.frombuffer(content, "<u2", max(0, len(content) - offset) // 2, offset)
            for at in (2 * np.flatnonzero(firsts[pairs[:-1]] & seconds[pairs[1:]]) + offset).tolist():
                near = wanted.get(content[at : at + 4], ()) if at > 1 else ()
                here = [each for each in near if content.startswith(each, at - 2)]
                found += [f"{name}: {each.hex()}" for each in here]
    return found


def files_below(folder: Path) -> Iterator[tuple[str, bytes]]:
    yield from ((str(path), path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file())
