"""The contract of all methods: checks that raise `Violation`, with which built-in methods are tested, too.

This module also writes the files of `caveat new method`: a method that runs, its manifest, and its test.
"""

import importlib.util
import json
import re
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..config.settings import check_name
from ..core import ConfigurationError, Method, RunError
from ..core.errors import short_repr
from ..core.settings import help_of
from ..methods import METHODS, FedAvg
from ..training.modules import snapshot
from . import checks
from .federation import CheckedMethod, Manifest, SmallFederation, Violation, explained

CHECKS: dict[str, Callable[[CheckedMethod], None]] = {
    check_of.__name__: check_of
    for check_of in (
        checks.predictions_are_well_formed,
        checks.in_the_end_a_silo_can_ask_the_models_that_are_declared,
        checks.a_prediction_does_not_depend_on_the_inputs_beside_it,
        checks.a_prediction_needs_no_data_of_the_silo,
        checks.nothing_passed_in_is_mutated,
        checks.only_what_the_manifest_names_leaves_a_silo,
        checks.no_work_of_a_schedule_sees_the_test_split,
        checks.no_prediction_sees_a_label_of_the_test_split,
        checks.what_it_reports_has_names_of_its_own,
        checks.weights_left_in_the_workspace_mean_nothing,
        checks.two_workers_give_the_bits_of_one,
        checks.resumed_run_equals_uninterrupted,
        checks.a_round_done_twice_after_a_kill_changes_nothing,
        checks.order_in_which_silos_answer_is_free,
        checks.evaluation_changes_no_bit_of_training,
        checks.permuting_test_labels_changes_no_bit,
        checks.partial_participation_is_the_same_whatever_the_workers,
        checks.a_silo_that_joins_late_predicts_before_and_after_its_first_round,
    )
}
"""All checks by name."""


def read_manifest(file: Path) -> Manifest:
    """Read a manifest from a TOML file. Raises ConfigurationError for a missing or invalid file."""
    if not file.exists():
        raise ConfigurationError(f"{file}: no manifest, which lists all tensors that leave a silo")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file}: cannot be read as TOML: {error}") from None


def check_method(method: Method, manifest: Manifest | str | Path) -> None:
    """Check a method against the contract of all methods on small synthetic silos, which takes seconds.

    `manifest` lists the names of all tensors that leave a silo, as in `{"Ditto": {"model": ["*"]}}`, or is a TOML file
    with this content. Raises Violation, an AssertionError, with a sentence about the first failed check.
    """
    kind = type(method)
    if METHODS.get(method.name) is not kind:
        raise Violation(f"{kind.__name__} is not registered: put @caveat.register above @caveat.frozen_settings")
    settings: tuple[Field[Any], ...] = fields(method) if is_dataclass(method) else ()
    if bare := [each.name for each in settings if not help_of(kind, each.name)]:
        raise Violation(f"{method.name}: the setting {bare[0]} needs a docstring below it, which is its help text")
    declared = manifest if isinstance(manifest, Mapping) else read_manifest(Path(manifest))
    with tempfile.TemporaryDirectory(prefix="caveat-") as folder, explained(method.name):
        trial = CheckedMethod(method, Path(folder), declared)
        for name, each in CHECKS.items():
            try:
                each(trial)
            except Violation:
                checks.the_same_run_gives_the_same_bits(trial)  # an earlier Violation takes precedence over an error
                raise
            except RunError as error:
                raise Violation(f"a run fails in the check {name.replace('_', ' ')!r}: {error}") from error


FILES = {"method.txt": "{}.py", "manifest.txt": "{}.toml", "test_method.txt": "test_{}.py"}
"""The names of the files that are written, by template; "{}" is replaced by the name of the method."""


def write_method(name: str, base: str, folder: Path) -> list[Path]:
    """Write a method that is derived from another method, with its manifest and its test, and return the three files.
    Raises ConfigurationError for an invalid name or base, and if one of the files exists."""
    if not re.fullmatch(r"[a-z][a-z0-9]{0,39}", name):
        raise ConfigurationError(
            f"NAME = {short_repr(name)}: expected at most 40 lower-case letters and digits, such as ditto"
        )
    paths = {template: folder / called.format(name) for template, called in FILES.items()}
    if there := [str(path) for path in paths.values() if path.exists() or path.is_symlink()]:
        raise ConfigurationError(
            f"{there[0]} exists and is not overwritten; choose another name, or another folder (--out)"
        )
    kind = _check(name, base)
    values = {"NAME": name.capitalize(), "MODULE": name, "BASE": kind.__name__, "MODULE_OF_BASE": base}
    values["GROUPS"] = _groups(kind)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for template, path in paths.items():
            with path.open("x", encoding="utf-8") as file:
                text = (files(__package__) / "templates" / template).read_text(encoding="utf-8")
                file.write(re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], text))
    except OSError as error:
        raise ConfigurationError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return list(paths.values())


def _check(name: str, base: str) -> type[FedAvg]:
    """Return the class of the base method. Raises ConfigurationError for invalid names."""
    if name in METHODS:
        raise ConfigurationError(f"NAME = {name!r}: a method with this name exists; choose another name")
    if importlib.util.find_spec(name) is not None:
        raise ConfigurationError(f"NAME = {name!r}: {name}.py would hide the module {name}; choose another name")
    check_name(base, "--from")
    kind = METHODS[base]
    usable = [each for each, other in METHODS.items() if _has_objective(other)]
    if not _has_objective(kind):
        raise ConfigurationError(
            f"--from {base}: a loss term cannot be added to it; expected one of {', '.join(usable)}"
        )
    return kind  # type: ignore[return-value]


def _has_objective(kind: type[Method]) -> bool:
    """Return whether silos minimize `objective` for the global model, which is the average of the models they send."""
    return issubclass(kind, FedAvg) and kind.train is FedAvg.train and kind.aggregate is FedAvg.aggregate


def _groups(kind: type[FedAvg]) -> str:
    with tempfile.TemporaryDirectory(prefix="caveat-") as folder:
        federation = SmallFederation(kind(rounds=1), Path(folder))
        federation.run()
    whole = snapshot(federation.place.module).keys()
    sent = {
        group: sorted(named)
        for update in federation.done[0].replies.updates.values()
        for group, named in update.payload.items()
    }
    lines = (f"{group} = {json.dumps(['*'] if set(named) == whole else named)}" for group, named in sent.items())
    return "\n".join(lines)
