"""Checks at a silo before it starts or joins: its file, key, certificate, data, and the server's address.

python -P -m caveat.federation.silo.start_checks SILO.toml KEY SERVER:PORT     in the project's folder
"""

import ssl
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ... import config as configuration
from ...config import Config, EngineSettings, MethodSettings, Uncertainty
from ...core import CaveatError, ConfigurationError, DataError, DataWarning
from ...data import DataSettings, survey
from ...data.tables.cell_formats import number
from ...data.tables.column_refusals import TELLING
from ...data.tables.declarations import DictionaryColumn
from ...training.fit import Training
from ...uncertainty.typicality import least
from ..keys import private_key_in
from ..refusals import ToldRefusal
from ..request_terms import Terms
from .member import SiloSide
from .silo_file import OWN_KEYS, BeyondLimits, Limits, SiloFile, read_silo_file

NAME = "check"
"""Placeholder for a federation's name, which a silo does not store."""
SHARED_KEYS = ("classes", "predict", "event", "dictionary", "categorical", "numeric", "decimal", "thousands",
               "missing", "separator", "groups", "time")  # fmt: skip
"""Keys of a configuration that apply to all silos' tables."""
UNKNOWN = ("a class of the server's", "another one")
"""Placeholders for undefined classes."""
OTHERS = "whether its columns, categories and shapes fit those of the other silos"
USUAL = "checked without the federation's configuration, with default fractions of splits: --config FILE includes it"
WITHOUT = (
    "the federation's configuration (classes, dictionary, target, method, rounds, batches, fractions of splits, for "
    "which the defaults were used): use --config FILE with the config.toml of the project to check it, too"
)


@dataclass(frozen=True)
class JoiningCheck:
    """A silo, and the information about the federation that it will join."""

    file: SiloFile
    config: Config | None = None
    """The federation's configuration; None if the silo does not have it."""
    dictionary: Sequence[DictionaryColumn] = ()
    """The data dictionary, if it is neither in the configuration nor in the silo's own file."""

    def survey(self) -> dict[str, Any]:
        """Describe the silo's source by `caveat.data.survey`, read according to its file and the federation. Without a
        configuration, a target with many different numbers is a quantity."""
        if not self.file.is_table:
            return survey(self.file.source)
        shared = {} if self.config is None else {key: getattr(self.config.data, key) for key in SHARED_KEYS}
        own = {key: value for key in OWN_KEYS if (value := getattr(self.file, key)) is not None}
        keys: dict[str, Any] = {"dictionary": self._dictionary} | shared | own
        found = survey(self.file.source, **keys)
        labels = found.get("classes", ())
        marks = keys.get("decimal", "."), keys.get("thousands", "")
        if self.config is None and len(labels) > TELLING and all(number(each, *marks) is not None for each in labels):
            return survey(self.file.source, **keys, predict="quantity")
        return found

    def check(self, found: Mapping[str, Any]) -> list[str]:
        """Run all checks of joining, with the same code; return a line for each check that was not possible.

        `found` is the result of `survey`. Without a configuration, classes come from the silo's file and table, and all
        other settings are defaults. Nothing is written. Raises DataError for a refusal, with what the server would
        learn; ConfigurationError as joining does.
        """
        if self.config is None and not self.file.is_table:
            return [WITHOUT, "the inputs, which are read according to the configuration", OTHERS]
        config, file = self.config, self.file
        if config is None:  # limits can be checked only with a configuration
            config, file = self._assumed(found), replace(file, limits=Limits())
        try:
            silos = SiloSide(file).check_joining(Terms(NAME, config, config.method.name, "", (file.silo,)))
        except (ToldRefusal, BeyondLimits) as error:
            whole, told = (error, error.told) if isinstance(error, BeyondLimits) else (error.__cause__, error)
            hint = "" if self.config is not None else f"\n{USUAL}"
            raise DataError(f"{whole}\nthe server would only learn: {told}{hint}") from error
        if told := no_alarm(len(silos[0].calibration), config.uncertainty):
            warnings.warn(told, DataWarning, stacklevel=2)
        unknown = [OTHERS, *self._units(found)]
        return unknown if self.config is not None else [WITHOUT, *unknown]

    def _units(self, found: Mapping[str, Any]) -> list[str]:
        """Return a line on numeric columns without a range that checks their unit."""
        dictionary = self._dictionary if self.config is None else self.config.data.dictionary
        ranged = {rule.name for rule in dictionary if rule.range is not None}
        names = [
            each["name"] for each in found.get("columns", ())
            if each["holds"] == "numbers" and each["becomes"].startswith("number") and each["name"] not in ranged
        ]  # fmt: skip
        told = ", ".join(names[:10]) + ", ..." * (len(names) > 10)
        return [f"whether other silos have the same units; no range in data.dictionary for: {told}"] if names else []

    @property
    def _dictionary(self) -> tuple[DictionaryColumn, ...]:
        return self.file.dictionary or tuple(self.dictionary)

    def _assumed(self, found: Mapping[str, Any]) -> Config:
        """Return a configuration that accepts whatever a server's configuration may accept, except split fractions."""
        return Config(
            data=DataSettings(
                source="on_site",
                target=self.file.target,
                dictionary=self._dictionary,
                **{"classes": self._classes(found)} if "classes" in found else {"predict": "quantity"},
            ),
            method=MethodSettings("fedavg"),
            training=Training(batch_size=2),
            engine=EngineSettings(name="flower"),
        )

    def _classes(self, found: Mapping[str, Any]) -> tuple[str, ...]:
        """Return classes that fit the silo's labels. Raises DataError for codes, which never fit a server's classes."""
        labels = [str(label) for label in found.get("classes", ())]
        if codes := [label for label in labels if number(label, ".") is not None]:
            raise DataError(
                f"{self.file.path}: data.target = {self.file.target!r} has labels that are codes, "
                f"{', '.join(codes[:10])}, but a federation names classes in words: declare their meanings in "
                f'[data.label_codes], such as {codes[0]} = "healthy"'
            )
        classes = tuple(dict.fromkeys([*(each.meaning for each in self.file.label_codes or ()), *labels]))
        return classes if len(classes) > 1 else (*classes, *UNKNOWN)[:2]


def no_alarm(calibration: int, uncertainty: Uncertainty) -> str:
    """Return a warning if there are too few calibration inputs for a silo's own alarms; "" if there are enough."""
    alarm = uncertainty.false_alarm_rate
    if not uncertainty.familiarity or not alarm or calibration >= least(alarm):
        return ""
    return (
        f"the calibration split has {calibration} inputs, but the silo's own alarms at {alarm:.0%} need at least "
        f"{least(alarm)}: the silo has only alarms that it shares with other small silos"
    )


def federation_of(config: Path) -> Config:
    """Read a federation's configuration like `caveat flower init`. Raises ConfigurationError for an invalid one."""
    return configuration.load(str(config), ["engine.name=flower"])


AUTHORITY = Path("certificates/ca.crt")


def check_start(file: Path, key: Path, server: str) -> list[str]:
    """Return warnings before a silo starts. Raises ConfigurationError, naming the file, if the silo cannot work."""
    silo = read_silo_file(file).silo
    private_key_in(key)
    _check_authority(AUTHORITY)
    host, colon, port = server.rpartition(":")
    numbered = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not (colon and host and numbered) or "/" in host or (":" in host and not host.startswith("[")):
        raise ConfigurationError(f"{server!r} is not an address: expected HOST:PORT, such as fed.example.org:8443")
    if key.name == silo:
        return []
    return [
        f"{key}: the key's name differs from the silo's, {silo!r} in {file}: a server with keys of silos looks for "
        f"this silo's key in {silo}.pub, and would refuse the name"
    ]


def _check_authority(path: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path.absolute()}: no such file; expected the server's certificates/ca.crt, which verifies the server"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path.absolute()}: cannot be read as a certificate ({error})") from None


def main() -> int:
    file, key, server = sys.argv[1:]
    try:
        for line in check_start(Path(file), Path(key), server):
            print(line, file=sys.stderr)
    except CaveatError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
