"""The example of a method in a file of its own: Ditto keeps what it says, and is compared with FedAvg by name."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from commands import caveat, sets
from federations import FAST, Federation, assert_same, model

from caveat import METHODS, FedAvg
from caveat.methods.plugins import use
from caveat.testing import check_method

FILE = Path(__file__).parents[1] / "examples" / "ditto.py"
TINY = ["model.name=mlp", "model.hidden=8", "rounds=2", "training.local_epochs=1", "data.n_silos=3"]
TINY += ["uncertainty.mc_samples=2"]


@pytest.fixture(autouse=True)
def plugin(registry: None) -> None:
    use(str(FILE))


def ditto(**settings: object) -> FedAvg:
    return METHODS["myditto"](**settings)  # type: ignore[call-arg, return-value]


def test_it_is_short_and_needs_two_public_places() -> None:
    text = FILE.read_text()
    assert len(text.splitlines()) <= 60
    places = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert {place for place in places if str(place).startswith("caveat")} == {"caveat", "caveat.methods.tools"}


def test_it_keeps_the_contract() -> None:
    check_method(ditto(rounds=4, training=FAST), {"MyDitto": {"model": ["*"]}})


def test_the_federation_s_model_is_that_of_fedavg(tmp_path: Path) -> None:
    settings = {"rounds": 3, "training": FAST}
    own = Federation(ditto(**settings, lam=2.0), tmp_path / "ditto")
    assert_same(own.run(), Federation(FedAvg(**settings), tmp_path / "fedavg").run())


def test_the_loss_is_that_of_the_paper() -> None:
    own, other = model(0).eval(), {name: p.detach() for name, p in model(1).named_parameters()}
    x, y = torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1])
    parameters = dict(own.named_parameters())
    distance = sum((p.detach() - other[name]).double().square().sum().item() for name, p in parameters.items())
    loss = ditto(lam=0.3).near(own, {"model": other})(x, y)
    assert loss.item() == pytest.approx(F.cross_entropy(own(x), y).item() + 0.15 * distance, rel=1e-5)
    gradients = torch.autograd.grad(loss - F.cross_entropy(own(x), y), [*parameters.values()])
    for (name, p), gradient in zip(parameters.items(), gradients, strict=True):
        torch.testing.assert_close(gradient, 0.3 * (p - other[name]).detach(), rtol=1e-4, atol=1e-5)


def test_the_larger_lambda_the_nearer_are_silos_to_the_federation(tmp_path: Path) -> None:
    def apart(lam: float) -> float:
        federation = Federation(
            ditto(rounds=3, training=dataclasses.replace(FAST, lr=0.02), lam=lam), tmp_path / str(lam)
        )
        server = federation.run()["model"]
        names = [name for name, _ in federation.place.module.named_parameters()]
        return sum(float((s["own"][n] - server[n]).norm()) for s in federation.states().values() for n in names)

    far, near = apart(0.0), apart(5.0)
    assert near < far / 1.5


def test_it_is_compared_with_fedavg_by_name(nowhere: Path) -> None:
    command = ["compare", "digits", "--methods", "fedavg,myditto", "--plugin", FILE, "--seeds", "0,1", "--out", "both"]
    done = caveat(*command, *sets(*TINY), "--quiet")
    assert done.exit_code == 0, done.stderr
    comparison = json.loads((nowhere / "both" / "comparison.json").read_text())
    assert [cell["status"] for cell in comparison["cells"]] == ["done"] * 4
    assert [row["name"] for row in comparison["rows"]] == ["fedavg", "myditto"]
    assert "myditto" in (nowhere / "both" / "report.html").read_text()
    assert caveat("report", "both").exit_code == 0
