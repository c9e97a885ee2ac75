"""What a silo's own log says of what it refuses, beside what Flower says of each message."""

from __future__ import annotations

import logging

import pytest

from caveat.core import Refused, RunError
from caveat.federation.refusals import ToldRefusal
from caveat.federation.silo.app import without_details


def test_what_a_silo_refuses_is_a_sentence_in_its_log_and_flower_s(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """An engineer at the silo looks for what to change, among what Flower says of each message."""
    try:
        with without_details():
            try:
                raise Refused("line 8: 'age' is 'old'", "reading", "age")
            except Refused as error:
                raise ToldRefusal("silo 'hill' refuses, 'age'") from error
    except RunError as told:
        logging.getLogger("flwr").error("%s raised an exception", "ClientApp", exc_info=told)
    assert capsys.readouterr().err.splitlines() == [
        "caveat: line 8: 'age' is 'old'",
        "caveat: silo 'hill' refuses, 'age'",
    ]
    assert "Sent to the server: silo 'hill' refuses, 'age'; see the log at the silo" in caplog.text
    assert "Traceback" not in caplog.text
