"""The contract of all methods, as functions that raise `Violation`; built-in methods are tested with them."""

import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from ..core import ConfigurationError, Method, RunError
from ..core.settings import help_of
from ..methods import METHODS
from . import checks
from .federation import CheckedMethod, Manifest, Violation, explained

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
    """Read a manifest from a TOML file. Raises ConfigurationError for an invalid file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file}: cannot be read as TOML: {error}") from None


def check_method(method: Method, manifest: Manifest | str | Path) -> None:
    """Check a method against the contract of all methods on small synthetic silos; takes seconds for a few rounds.

    `manifest` lists every name that leaves a silo, `{"Ditto": {"model": ["*"]}}`, or is a TOML file with this content.
    Raises Violation, an AssertionError, with one sentence about the first failed check.
    """
    kind = type(method)
    if METHODS.get(method.name) is not kind:
        raise Violation(f"{kind.__name__} is not registered: put @caveat.register above @caveat.frozen_settings")
    settings: tuple[Field[Any], ...] = fields(method) if is_dataclass(method) else ()
    if bare := [each.name for each in settings if not help_of(kind, each.name)]:
        raise Violation(f"{method.name}: the setting {bare[0]} has no docstring below it, which is its help text")
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
                raise Violation(f"it fails in the check that {name.replace('_', ' ')}: {error}") from error
