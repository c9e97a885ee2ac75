"""`run.json`: the description of a run, whether the command line, a federation's server or a Python program made it."""

from typing import Any, ClassVar

from .record import File, Finite, Record


class GivenConfiguration(Record):
    """What the user gave to `caveat run`."""

    source: str  # a recipe's name, or a TOML file
    sets: list[str] = []  # the --set overrides, SECTION.KEY=VALUE


class DataFingerprint(Record):
    """What the data of a run mean, and what `splits.json` leaves out."""

    classes: list[str]
    columns: str  # SHA-256 of the names and categories of all columns of a table
    others: str | None = None  # SHA-256 of the record of the splits of silos that are not measured


class CodeFingerprint(Record):
    """What the user's code of models and methods was, and what it computed, when the run began."""

    OMITTED: ClassVar = frozenset({"model", "says", "method", "plugins", "models"})

    model: str | None = None  # SHA-256 of the names, shapes and values of all tensors of the initial models
    says: tuple[tuple[Finite, ...], ...] = ()  # each model's output for fixed inputs, in evaluation and in training
    method: str | None = None  # SHA-256 of the source text of the method's classes
    plugins: list[str] = []  # the values of --plugin
    models: list[str] = []  # the values that --model needs


class RunFile(File):
    """`run.json`. `spec` has the keys of a configuration; under `method` also those of `[training]` and `rounds`."""

    SEALED: ClassVar = True
    OMITTED: ClassVar = frozenset({"given", "data", "code", "init_model", "rounds"})

    spec: dict[str, Any]  # what decides the results: RunSpec
    engine: dict[str, Any]  # where and how fast it is computed: EngineSettings
    given: GivenConfiguration | None = None
    data: DataFingerprint | None = None  # None where silos keep their data on their own machines
    code: CodeFingerprint | None = None  # None for models and methods of caveat
    init_model: str | None = None  # SHA-256 of the model of another run with which this one began
    rounds: list[int] = []  # of a run that was extended: every number of rounds that was asked for

    @property
    def in_python(self) -> bool:
        """Whether a Python program made the run, from data that only that program has."""
        return self.spec["data"] is None

    @property
    def federated(self) -> bool:
        """Whether Flower carries the run, so that its project continues it."""
        return bool(self.engine.get("name") == "flower")

    @property
    def codes(self) -> list[str]:
        """The names of the user's code that makes models."""
        models = [self.spec["model"], *self.spec["personal"]]
        return list(dict.fromkeys(str(m[key]) for m in models for key in ("factory", "encoder") if m.get(key)))
