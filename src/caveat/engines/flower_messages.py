"""The content of messages between a server and its silos, as Flower's records.

A request to a silo names the task and round, the last round in which its update was aggregated, and the terms of the
federation, followed by the payload's groups as arrays; replies have the same form. Nothing is pickled.
"""

from collections.abc import Mapping
from typing import NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from ..core import Payload, SiloId
from ..files.schema import NO_PART

NEVER = -1
"""The last aggregated round of a silo that has none."""
LONGEST = 500
"""Maximum length of a silo's message in a log."""

Words = Mapping[str, str | int]
"""The contents of a message other than its arrays."""


def comes_after(silo: SiloId) -> str:
    """Return the message about a silo that joined after training, or missed all of it."""
    remedy = f"add it with `caveat flower deliver RUN --silo {silo}` once the run is complete"
    return f"silo {silo} {NO_PART}, and is excluded from later rounds; {remedy}"


class Order(NamedTuple):
    """A request to a silo."""

    t: int
    task: str
    """Address of the task, e.g. "base.train"."""
    counted: int
    """The last round in which the silo's update was aggregated."""
    silo: SiloId
    """The silo that runs the task."""
    joins: bool = False
    """Whether the silo joins a finished federation, and runs the task only for itself."""
    rollbacks: int = 0
    """Number of rollbacks of the run by the server's operator."""
    secure: str = ""
    """The slot of a session of secure aggregation, by which the update is masked, see `flower_secure.Slot`."""

    @classmethod
    def of_words(cls, words: Words) -> "Order":
        """Return the order in the words of a request."""
        known = int(words["t"]), str(words["task"]), int(words["counted"]), str(words["silo"])
        return cls(*known, bool(words.get("joins")), int(words.get("rollbacks", 0)), str(words.get("secure", "")))


def pack(payload: Payload, **words: str | int) -> RecordDict:
    """Return a payload and words as Flower's records; groups may be empty, and their order is preserved."""
    records = RecordDict({"order": ConfigRecord({"groups": list(payload), **words})})
    for group, tensors in payload.items():
        records[f"group.{group}"] = ArrayRecord(torch_state_dict=dict(tensors))
    return records


def unpack(records: RecordDict) -> Payload:
    """Return the payload of records. Raises KeyError or ValueError for records not made by `pack`."""
    groups = records.config_records["order"]["groups"]
    if not isinstance(groups, list):
        raise ValueError(f"groups = {groups!r}, expected a list of names")
    if len(set(groups)) != len(groups):  # or groups would be decoded repeatedly
        raise ValueError(f"{len(groups)} groups, expected no duplicates")
    return {group: dict(records.array_records[f"group.{group}"].to_torch_state_dict()) for group in map(str, groups)}


def words_of(records: RecordDict) -> dict[str, str | int]:
    """Return the contents other than the arrays; empty for a message not made by `pack`."""
    found: Mapping[str, object] = records.config_records.get("order", {})
    return {key: value for key, value in found.items() if isinstance(value, str | int)}


def legible(text: str) -> str:
    """Return the beginning of an untrusted text, without control characters, for a log."""
    return "".join(character if character.isprintable() else " " for character in text[:LONGEST])
