"""The descriptions of a run: `run.json`, `started.json`, `join.json`, `model/model.json`."""

from typing import Any, ClassVar

from pydantic import Field

from .base import Figure, File, Finite, Record


class GivenConfiguration(Record):
    """The arguments of `caveat run`."""

    source: str  # name of a recipe, or a TOML file
    sets: list[str] = []  # the --set overrides, SECTION.KEY=VALUE


class DataFingerprint(Record):
    """The classes of a run's data, and hashes of information that `splits.json` omits."""

    classes: list[str]
    columns: str  # SHA-256 of the names and categories of all columns of a table
    others: str | None = None  # SHA-256 of the record of the splits of silos that are not evaluated


class CodeFingerprint(Record):
    """Fingerprints of custom models and methods when the run started."""

    OMITTED: ClassVar = frozenset({"model", "says", "method", "plugins", "models"})

    model: str | None = None  # SHA-256 of the names, shapes and values of all tensors of the initial models
    says: tuple[tuple[Finite, ...], ...] = ()  # outputs of each model for fixed inputs, in evaluation and training mode
    method: str | None = None  # SHA-256 of the source text of the method's classes
    plugins: list[str] = []  # the values of the option --plugin
    models: list[str] = []  # the values of the option --model that are needed to load the run


class RunFile(File):
    """`run.json`. `spec` has the keys of a configuration; under `method`, it also has the keys of `[training]` and
    `rounds`."""

    SEALED: ClassVar = True
    OMITTED: ClassVar = frozenset({"given", "data", "code", "init_model", "rounds"})

    spec: dict[str, Any]  # the RunSpec, which determines the results
    engine: dict[str, Any]  # the EngineSettings, which do not determine the results
    given: GivenConfiguration | None = None
    data: DataFingerprint | None = None  # None if silos keep their data on their own machines
    code: CodeFingerprint | None = None  # None for built-in models and methods
    init_model: str | None = None  # SHA-256 of the model of another run from which this one started
    rounds: list[int] = []  # for an extended run, all requested numbers of rounds

    @property
    def in_python(self) -> bool:
        """Whether a Python program started the run, with data that only this program has."""
        return self.spec["data"] is None

    @property
    def federated(self) -> bool:
        """Whether the run uses Flower, so that it is continued from its project."""
        return bool(self.engine.get("name") == "flower")

    @property
    def codes(self) -> list[str]:
        """The names of the code of custom models."""
        models = [self.spec["model"], *self.spec["personal"]]
        return list(dict.fromkeys(str(m[key]) for m in models for key in ("factory", "encoder") if m.get(key)))


class Started(File):
    """`started.json`: the project that started the run of a federation, and the overrides."""

    project: str = ""
    sets: list[str] = Field(default=[], alias="set")


class JoinFile(File):
    """`join.json`: the finished federation that silos joined, and their metrics before joining."""

    SEALED: ClassVar = True

    federation: str  # the folder of the federation's run
    server: str  # SHA-256 of the server's last state
    rounds: int  # number of training rounds at the silos that joined
    before: dict[str, dict[str, Figure]] = {}  # test metrics by silo, with the model that every newcomer gets


class ModelFile(File):
    """`model/model.json`: the description of the weights in the same folder. A silo's copy has only the round."""

    OMITTED: ClassVar = frozenset({"personal"})

    method: dict[str, Any] = {}
    t: int  # position in the schedule after which the weights were sent
    model: dict[str, Any] = {}
    personal: dict[str, dict[str, Any]] = {}  # settings of personalized models, by silo
    shape: list[int] = []  # shape of one input
    classes: list[str] = []
