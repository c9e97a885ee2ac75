"""Values and texts that nobody thought of, by hypothesis: a configuration is refused, or is what was given."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from faults.fuzz_config import flat_keys, otherwise
from hypothesis import HealthCheck, configuration, given, settings
from hypothesis import strategies as st

from caveat.config import dump, load, loads
from caveat.core import ConfigurationError

configuration.set_hypothesis_home_dir(Path(tempfile.gettempdir(), "caveat-hypothesis"))
QUIET = settings(
    derandomize=True, database=None, deadline=None, max_examples=60, suppress_health_check=list(HealthCheck)
)  # fmt: skip
PLAIN = st.one_of(
    st.integers(), st.floats().map(lambda x: float(f"{x:.6g}")), st.booleans(),
    st.text(st.characters(codec="utf-8", exclude_characters="'\"\\", exclude_categories=["Cc", "Cs"]), max_size=12),
)  # fmt: skip
VALUE = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=4)


def toml(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else repr(value)


@pytest.mark.parametrize("subject", ["fedavg", "uefl"])
def test_a_value_is_refused_by_its_key_or_kept(subject: str) -> None:
    known = flat_keys(subject)

    @QUIET
    @given(st.sampled_from(known), VALUE)
    def set_one(key: str, value: object) -> None:
        try:
            config = load("digits", [f"method.name={subject}", f"{key}={toml(value)}"])
        except ConfigurationError as error:
            names = [key, *key.split("."), "--set"]
            unnamed = [line for line in str(error).splitlines() if not any(name in line for name in names)]
            assert not unnamed
            return
        assert loads(dump(config), "what was written") == config
        assert otherwise(key, toml(value), config) is None

    set_one()


@QUIET
@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from(["[", "]", "model", "=", "name", "1", '"', ".", "\n"])).map("".join)
)
def test_a_text_is_a_configuration_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        config = loads(text, "text.toml")
        assert loads(dump(config), "what was written") == config
