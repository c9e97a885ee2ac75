"""Payloads as safetensors: no pickle, and nothing runs when one is read."""

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save

from ..core import Payload, RunError


def to_bytes(payload: Payload) -> bytes:
    """A payload in the safetensors format, tensors named "group/name"."""
    flat = {
        f"{group}/{name}": tensor.contiguous() for group, named in payload.items() for name, tensor in named.items()
    }
    # A group may be empty, and must still be there when the payload is read.
    return save(flat, {"groups": json.dumps(list(payload))})


def from_bytes(data: bytes) -> Payload:
    """The inverse of `to_bytes`; raises SafetensorError or ValueError on anything else."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    payload: Payload = {group: {} for group in json.loads(header["__metadata__"]["groups"])}
    for path, tensor in load(data).items():
        group, name = path.split("/", 1)
        payload[group][name] = tensor
    return payload


def payload_of(data: bytes, path: Path) -> Payload:
    """The payload in the bytes of a file. Raises RunError naming a file that holds none."""
    try:
        return from_bytes(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"cannot read {path}: {error}") from error


def read_payload(path: Path) -> Payload:
    """A payload from a file; raises RunError naming a file that cannot be read."""
    if not path.is_file():
        raise RunError(f"{path} is missing, or is no file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error}") from error
    return payload_of(data, path)
