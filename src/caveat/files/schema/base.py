"""The base of all records of files: keys, versions and checksums."""

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler

from ...core import DataError

SCHEMA = 1
"""The version of the schemas of all files that this version of caveat reads and writes."""
FROM_FILE = {"from": "file"}
"""The context for validating a file, in contrast to a record that will be written."""


def _known_or_written(value: object, info: ValidationInfo) -> object:
    """Return None for a number in a file that is not finite. In a record that will be written, writing refuses it."""
    return _finite(value) if info.context is FROM_FILE else value


def _share(value: int | float | None) -> int | float | None:
    if value is not None and not 0 <= value <= 1 and math.isfinite(value):
        raise ValueError(f"{value:g}, expected a number from 0 to 1")
    return value


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Figure = Annotated[int | float | None, BeforeValidator(_known_or_written)]
"""A number that may be undefined, such as an AUROC without errors. NaN in a file becomes None."""
Share = Annotated[Figure, AfterValidator(_share)]
"""A metric from 0 to 1."""
Finite = Annotated[float | None, BeforeValidator(_finite)]
"""A number that becomes None if it is not finite, both in reading and in writing."""
Count = Annotated[int, Field(ge=0), PlainSerializer(float)]
"""A non-negative integer that is written as a float, such as 3.0, like sums."""
Size = Annotated[int, Field(ge=0)]
"""A non-negative integer, such as a number of bytes or of objects."""


class Record(BaseModel):
    """A part of a file. A record keeps its keys in the given order, with unknown keys at the end, and is written with
    exactly the given keys. An absent key has its default, which is never zero."""

    model_config = ConfigDict(frozen=True, extra="allow")
    SEALED: ClassVar[bool] = False
    """Whether the file has a checksum of its content, see `sealed`."""
    OMITTED: ClassVar[frozenset[str]] = frozenset()
    """Keys that are not written if they have their default values."""

    @model_validator(mode="wrap")
    @classmethod
    def _as_given(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(value, dict):
            return handler(value)
        if cls.OMITTED:
            defaults = {name: cls.model_fields[name].default for name in cls.OMITTED}
            value = {key: each for key, each in value.items() if key not in defaults or each != defaults[key]}
        record, names = handler(value), _names(cls)
        fields = record.__dict__
        given = {name: fields.pop(name) for key in value if (name := names.get(key))}
        defaults = dict(fields)
        fields.clear()
        fields.update(given | defaults)
        return record


@functools.cache
def _names(kind: type[Record]) -> dict[str, str]:
    """Return the names of a record's fields by their keys in a file."""
    return {field.alias or name: name for name, field in kind.model_fields.items()}


class File(Record):
    """A file with the version of its schema."""

    schema_version: int = Field(default=SCHEMA, alias="schema")


def as_json(record: Record) -> dict[str, Any]:
    """Return the JSON object of a record."""
    return record.model_dump(by_alias=True, exclude_unset=True)


SEAL = "sha256"
"""The key of the checksum, which is computed from all other keys."""


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object to which the SHA-256 of its content is added."""
    content = json.loads(json.dumps({key: each for key, each in value.items() if key != SEAL}, allow_nan=False))
    return {**content, SEAL: _digest(content)}


def check_seal(value: Any, where: str) -> None:
    """Raise DataError, naming the place, unless the value is a JSON object with a correct checksum."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a JSON object")
    if SEAL not in value:
        raise DataError(f"{where}: its checksum {SEAL!r} is missing: the file is damaged or was edited")
    if value[SEAL] != _digest({key: each for key, each in value.items() if key != SEAL}):
        raise DataError(f"{where}: its checksum does not match its content: the file is damaged or was edited")


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
