"""What a silo allows a federation, by its own `silo.toml` and its own ledgers; and what the server learns of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hospitals import Federation, hospital

from caveat.config import dump, load
from caveat.core import ConfigurationError, RunError, Update
from caveat.engines.flower_messages import NEVER, Order
from caveat.federation.request_terms import Terms
from caveat.federation.silo.app import without_details
from caveat.federation.silo.silo_file import BeyondLimits, Limits, read_silo_file
from caveat.files import Ledger, write_bytes
from caveat.wrappers.privacy import epsilon_against_server

NOISY = ("privacy.clip_norm=1", "privacy.noise_multiplier=4")
PLAIN = ("uncertainty.temperature_scaling=false", "uncertainty.familiarity=false")


@pytest.fixture
def terms(tmp_path: Path) -> Terms:
    """A federation of three rounds of fedavg among three silos, with noise."""
    return terms_of(Federation(tmp_path / "federation", "fedavg"), *NOISY)


def terms_of(federation: Federation, *sets: str, name: str = "a1") -> Terms:
    config = load(str(federation.folder / "config.toml"), [*PLAIN, *sets])
    return Terms(name, config, config.method.name, "", ("coast", "hill", "valley"))


def sent(state: Path, terms: Terms, *works: str) -> None:
    """What a silo keeps of a federation in which it has carried out these works."""
    home = state / terms.federation
    (home / terms.method).mkdir(parents=True, exist_ok=True)
    write_bytes(home / "config.toml", dump(terms.config).encode())
    ledger = Ledger(home / terms.method / "ledger.jsonl")
    ledger.recover(None)
    for t, task in enumerate(works):
        ledger.add({"hill": Update({}, 1)}, t=t, task=task)


def order(task: str = "base.train") -> Order:
    return Order(2, task, NEVER, "hill")


def test_methods_beside_are_held_against_the_list_too(terms: Terms, tmp_path: Path) -> None:
    Limits(methods=("fedavg",)).check_begin("hill", terms, tmp_path)
    beside = dataclasses.replace(terms, config=dataclasses.replace(terms.config, baselines=("fedbn",)))
    with pytest.raises(
        BeyondLimits, match=r"method 'fedbn' is not allowed by limits\.methods .* which allows fedavg"
    ) as no:
        Limits(methods=("fedavg",)).check_begin("hill", beside, tmp_path)
    assert no.value.told == "silo 'hill' refuses: limits.methods"
    with pytest.raises(BeyondLimits, match="which allows none"):
        Limits(methods=()).check_order("hill", terms, order(), tmp_path)


def test_rounds_are_counted_over_federations_and_again_when_asked_again(terms: Terms, tmp_path: Path) -> None:
    task = "base.train"
    Limits(rounds=3).check_begin("hill", terms, tmp_path)
    with pytest.raises(BeyondLimits, match=r"3 updates of training would have left this silo, .* allows 2") as refused:
        Limits(rounds=2).check_begin("hill", terms, tmp_path)
    assert refused.value.rule == "limits.rounds"
    sent(tmp_path, terms, task, task, "validation", "test")
    Limits(rounds=3).check_begin("hill", terms, tmp_path)  # what is begun is counted once
    Limits(rounds=3).check_order("hill", terms, order(), tmp_path)
    sent(tmp_path, terms, task)
    with pytest.raises(BeyondLimits, match="with this round 4 updates"):
        Limits(rounds=3).check_order("hill", terms, order(), tmp_path)
    Limits(rounds=3).check_order("hill", terms, order("test"), tmp_path)
    other = dataclasses.replace(terms, federation="b2")
    with pytest.raises(BeyondLimits, match="with all rounds of this federation 6 updates"):
        Limits(rounds=5).check_begin("hill", other, tmp_path)
    Limits(rounds=6).check_begin("hill", other, tmp_path)


def test_what_is_no_training_is_answered_once_and_counts_if_it_is_asked_for_again(terms: Terms, tmp_path: Path) -> None:
    """`fedpn` sends densities, and a measurement sums, of whichever model the server has sent."""
    sent(tmp_path, terms, "base.train", "test")
    asked = Order(1, "test", NEVER, "hill")
    with pytest.raises(BeyondLimits, match="with this repeated answer 1 update of training and 1 repeated answer"):
        Limits(rounds=1).check_order("hill", terms, asked, tmp_path)
    Limits(rounds=2).check_order("hill", terms, asked, tmp_path)
    Limits(rounds=1).check_order("hill", terms, Order(2, "test", NEVER, "hill"), tmp_path)
    sent(tmp_path, terms, "base.train", "test")
    with pytest.raises(BeyondLimits, match="3 updates of training and 1 repeated answer"):
        Limits(rounds=3).check_order("hill", terms, order(), tmp_path)


def test_epsilon_is_that_of_the_accountant_towards_the_server(terms: Terms, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    three, four = (epsilon_against_server(4.0, rounds, 3, 1e-5) for rounds in (3, 4))
    Limits(epsilon=three).check_begin("hill", terms, tmp_path)
    with pytest.raises(BeyondLimits, match=rf"would reach epsilon {three:.3g}, .* at a delta of 1e-05") as refused:
        Limits(epsilon=0.99 * three).check_begin("hill", terms, tmp_path)
    assert refused.value.rule == "limits.epsilon"
    with pytest.raises(BeyondLimits):
        Limits(epsilon=three, delta=1e-6).check_begin("hill", terms, tmp_path)
    sent(tmp_path, terms, "base.train", "base.train", "base.train")
    with pytest.raises(BeyondLimits):
        Limits(epsilon=0.99 * four).check_order("hill", terms, order(), tmp_path)
    Limits(epsilon=four).check_order("hill", terms, order(), tmp_path)


def test_updates_without_noise_of_a_known_size_have_no_epsilon(tmp_path: Path) -> None:
    """The share of a silo's noise is the server's to say where the configuration does not say how many there are."""
    pytest.importorskip("dp_accounting")
    federation = Federation(tmp_path / "federation", "fedavg")
    file = federation.folder / "config.toml"
    limits, state = Limits(epsilon=1000), tmp_path / "state"
    with pytest.raises(BeyondLimits, match=r"an infinite epsilon, as \[privacy\] is not set"):
        limits.check_begin("hill", terms_of(federation), state)
    file.write_text(file.read_text().replace("min_available_silos = 3\nquorum = 2\n", ""))
    with pytest.raises(BeyondLimits):
        limits.check_begin("hill", terms_of(federation, *NOISY), state)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("round = 3", "unknown key limits.round; available: methods, rounds, epsilon, delta"),
        ("rounds = 0", "limits.rounds = 0, expected a whole number, 1 or more"),
        ("rounds = 2.5", "limits.rounds = 2.5, expected a whole number, 1 or more"),
        ("rounds = true", "limits.rounds = True, expected a whole number"),
        ("epsilon = 0", "limits.epsilon = 0, expected a finite number above 0"),
        ("delta = 1", "limits.delta = 1, expected a number between 0 and 1"),
        ('methods = "fedavg"', "limits.methods = 'fedavg', expected a list of names"),
    ],
)
def test_a_limit_that_is_none_is_named(line: str, told: str, tmp_path: Path) -> None:
    path = hospital(tmp_path, "hill", 1) / "silo.toml"
    text = path.read_text()
    path.write_text(f"{text}[limits]\n{line}\n")
    with pytest.raises(ConfigurationError) as refused:
        read_silo_file(path)
    assert str(refused.value).startswith(f"{path}: {told}")
    path.write_text(f'{text}[limits]\nmethods = ["fedavg"]\nrounds = 9\nepsilon = 8\n')
    assert read_silo_file(path).limits == Limits(("fedavg",), 9, 8)


def test_the_server_learns_silo_and_rule_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    told = r"^silo 'hill' refuses: limits\.rounds; see the log at the silo$"
    with pytest.raises(RunError, match=told), without_details():
        raise BeyondLimits("a secret reason", "limits.rounds", "hill")
    assert "a secret reason" in capsys.readouterr().err


@pytest.mark.long
def test_a_silo_takes_part_until_its_own_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that has begun with fewer rounds, as far as the silo could see."""
    federation = Federation(tmp_path, "fedavg", rounds=2)
    file = federation.homes["hill"] / "silo.toml"
    text = file.read_text()

    def lower(reply: Any) -> Any:
        file.write_text(f"{text}[limits]\nrounds = 1\n")
        return reply

    file.write_text(f"{text}[limits]\nrounds = 2\n")
    federation.grid.tamper[federation.node["hill"]] = lower
    run = federation.serve(load(str(tmp_path / "config.toml"), list(PLAIN)))
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    why = {row["left_out"] for row in rows if row["silo"] == "hill" and "left_out" in row and "split" not in row}
    assert why == {"failed: silo 'hill' refuses: limits.rounds; see the log at the silo"}
    assert "with this round 2 updates of training would have left this silo" in capsys.readouterr().err
    again = Federation(tmp_path / "again", "fedavg", rounds=2)
    (again.homes["hill"] / "silo.toml").write_text(f'{text}[limits]\nmethods = ["scaffold"]\n')
    again.serve(load(str(tmp_path / "config.toml"), [*PLAIN, "federation.min_available_silos=2"]))
    assert any("introduce: failed: silo 'hill' refuses: limits.methods" in note for note in again.notes)
