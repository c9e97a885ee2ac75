"""An exported model answers and abstains as its run does, where neither caveat nor torch is."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sampled import sampled
from table_runs import table

import caveat
from caveat import METHODS, ConfigurationError, Run, Uncertainty, export_model
from caveat.export.export_model import ask_onnx, ask_torch, card_of
from caveat.export.exported_function import asked_at, outputs
from caveat.wrappers.alarms import GROUP

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
Array = NDArray[Any]
MLP = caveat.ModelSettings(name="mlp", width=8, features=6, hidden=8)
QUICK = caveat.Training(local_epochs=1, batch_size=16, lr=0.01)
FEW: dict[str, dict[str, Any]] = {
    "uefl": {"iterations": 2, "extra_rounds": 1, "codewords": 4},
    "fedpn": {"layers": 2, "personal_epochs": 1, "personal_steps": 0},
    "fedbabu": {"fine_tune_epochs": 1},
    "fedcr": {"head_epochs": 1},
}
TIED = 0.01
"""The largest share of inputs that may lie next to a tie or threshold: 2 of 200."""
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("torch", "caveat"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
"""


@cache
def silos() -> caveat.data.Silos:
    generator = np.random.default_rng(0)
    x = {f"silo-{k}": generator.normal(k, 1, (200, 3)).astype(np.float32) for k in range(2)}
    return caveat.data.from_arrays(
        {name: (each, (each.sum(1) > each.mean() * 3).astype(int) + (each[:, 0] > 1)) for name, each in x.items()}
    )


def trained(name: str = "fedavg", uncertainty: Uncertainty | None = None, **settings: Any) -> Run:
    training = dataclasses.replace(QUICK, optimizer="sgd") if name in ("scaffold", "feddc") else QUICK
    method = METHODS[name](rounds=1, training=training, **FEW.get(name, {}))
    given: dict[str, Any] = {"model": MLP, "every": 10, "uncertainty": uncertainty or Uncertainty(mc_samples=3)}
    return caveat.run(silos(), method, **given | settings)


def rows(count: int = 200) -> Array:
    found: Array = np.random.default_rng(1).normal(0.5, 2, (count, 3)).astype(np.float32)
    return found


def assert_same(found: dict[str, Array], run: Run, silo: str, x: Any, training_features: bool = False) -> None:
    """Without features of training inputs a file answers as a silo that has deleted them."""
    with pytest.MonkeyPatch.context() as patch:
        if not training_features:
            at = asked_at(run.experiment, silo, training_features=False)
            patch.setattr(type(run.experiment), "at", lambda self, name: at)
        expected = outputs(run.predictor(silo)(x))
    assert ("nearness" in expected) is (training_features and "familiarity" in expected)
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        assert found[name].shape == tuple(each.shape), name
        if name in ("label", "decision", "answered_by", "reason", "familiarity", "nearness", "sureness", "typicality",
                    "sets"):  # fmt: skip
            assert (found[name] != each.numpy()).mean() <= TIED, name
        elif name not in ("unfamiliar", "novel"):  # a whole step of its rounding may lie between
            np.testing.assert_allclose(found[name], each.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", sampled(METHODS))
def test_every_method_answers_as_its_run_does(name: str, tmp_path: Path) -> None:
    run = trained(name)
    path = export_model(run, "silo-1", "onnx", tmp_path / "model.onnx", training_features=True)
    assert_same(ask_onnx(path, rows()), run, "silo-1", rows(), training_features=True)
    assert ask_onnx(path, rows(1))["probs"].shape == (1, 3)


@pytest.mark.parametrize(("name", "uncertainty"), [
    ("fml", Uncertainty(mc_samples=3, policy="switch", abstain_rate=0.3, max_aleatoric=1.05, set_coverage=0.8)),
    ("fedper", Uncertainty(mc_samples=3, policy="guaranteed", risk=0.6, guarantee_scope="silo")),
    ("apfl", Uncertainty(mc_samples=3, policy="guaranteed", risk=0.5, set_coverage=0.99, label_shift=True)),
    ("fedavg", Uncertainty(mc_samples=3, source="laplace", policy="switch", score="logit_variance")),
    ("fedrod", Uncertainty(mc_samples=3, policy="best", set_coverage=0.8)),
    ("apfl", Uncertainty(mc_samples=3, policy="blend")),
    ("fedpn", Uncertainty(policy="surer", score="dirichlet_entropy")),
    ("fedbn", Uncertainty(source="ensemble", ensemble_size=2)),
    ("fedavg", Uncertainty(mc_samples=3, familiarity=False, temperature_scaling=False)),
    ("fedper", Uncertainty(mc_samples=3, class_bias=True)),
])  # fmt: skip
def test_every_policy_decides_as_its_run_does(name: str, uncertainty: Uncertainty, tmp_path: Path) -> None:
    run = trained(name, uncertainty)
    path = export_model(run, "silo-0", out=tmp_path / "model.onnx")
    found = ask_onnx(path, rows())
    assert_same(found, run, "silo-0", rows())
    if uncertainty.policy == "switch":
        assert 0 < (found["decision"] == 2).sum() < 200


@pytest.mark.parametrize(("name", "predict", "uncertainty"), [
    ("fedavg", "quantity", Uncertainty(mc_samples=3)),
    ("apfl", "quantity", Uncertainty(mc_samples=3, policy="guaranteed", risk=0.5, tolerance=3.0, interval=0.8)),
    ("fedavg", "quantity", Uncertainty(mc_samples=3, source="laplace", policy="switch", abstain_rate=0.3)),
    ("ditto", "time", Uncertainty(mc_samples=3, policy="switch", abstain_rate=0.3)),
])  # fmt: skip
def test_quantities_and_times_are_those_of_the_run(
    name: str, predict: Any, uncertainty: Uncertainty, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    given = {}
    for k in range(2):
        x = generator.normal(k, 1, (200, 3)).astype(np.float32)
        y = np.abs(x.sum(1) * 3 + generator.normal(size=200))
        given[f"silo-{k}"] = x, y if predict == "quantity" else np.column_stack([y, generator.random(200) < 0.7])
    keys: Any = {"horizons": (2.0, 8.0)} if predict == "time" else {}
    keys = keys if name != "apfl" else {"standardize_target": "silo"}
    made = caveat.data.from_arrays(given, predict=predict, **keys)
    run = caveat.run(made, METHODS[name](rounds=2, training=QUICK), model=MLP, every=10, uncertainty=uncertainty)
    figures = {
        "quantity": {"value", "mean", "low", "high", "spread"}, "time": {"median", "low", "risk_2", "risk_8", "spread"},
    }[predict]  # fmt: skip
    x = np.concatenate([rows(), np.full((1, 3), 3e38, np.float32)])  # probabilities of the last one are NaN
    for format, ask in (("onnx", ask_onnx), ("torch", ask_torch))[: 1 + (name == "ditto")]:
        found = ask(export_model(run, "silo-1", format, tmp_path / f"{format}.onnx"), x)
        assert figures <= found.keys()
        assert "label" not in found
        assert_same(found, run, "silo-1", x)
    about = json.loads(metadata(tmp_path / "onnx.onnx")["target"])
    assert (about["predicts"], tuple(about["edges"])) == (predict, run.predictor("silo-1")(x[:1]).target.edges)
    card = card_of(tmp_path / "onnx.onnx").read_text()
    assert "with a probability of at least" in card
    assert "label" not in card.split("## Limits")[0]


def test_images_go_in_as_pixels(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (150, 9, 9, 3), dtype=np.uint8), np.arange(150) % 3
    given = caveat.data.from_arrays({"a": (x, y), "b": (x[::-1].copy(), y)})
    model = caveat.ModelSettings(name="residual", width=4, hidden=8)
    run = caveat.run(given, caveat.FedAvg(rounds=1, training=QUICK), model=model, uncertainty=Uncertainty(mc_samples=3))
    path = export_model(run, "a", out=tmp_path / "model.onnx")
    assert_same(ask_onnx(path, x), run, "a", x)


ROWS = np.array([[61, np.nan, 1], [np.nan, 3.5, 0], [34, -1, -1], [52, 2, 7], [np.nan, np.nan, np.nan]], np.float32)


@pytest.mark.filterwarnings("ignore::caveat.core.DataWarning")
def test_rows_of_a_table_go_in_as_numbers_and_codes(tmp_path: Path) -> None:
    run = table(tmp_path)
    for silo in run.preparation.names:
        path = export_model(run, silo, out=tmp_path / f"{silo}.onnx")
        assert_same(ask_onnx(path, ROWS), run, silo, ROWS)
        about = json.loads(metadata(path)["inputs"])
        words = run.preparation.encoders[silo].table[2].categories
        assert about["columns"][2] == {"name": "smokes", "categories": list(words or ()), "unseen": []}


def metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def test_it_needs_neither_caveat_nor_torch(tmp_path: Path) -> None:
    run = trained(uncertainty=Uncertainty(mc_samples=3, policy="switch", abstain_rate=0.3))
    path = export_model(run, "silo-0", out=tmp_path / "model.onnx", training_features=True)
    np.save(tmp_path / "x.npy", rows())
    code = BLOCKED + (
        "import json, numpy, onnxruntime\n"
        "session = onnxruntime.InferenceSession('model.onnx', providers=['CPUExecutionProvider'])\n"
        "decision, probs = session.run(['decision', 'probs'], {'inputs': numpy.load('x.npy')})\n"
        "about = session.get_modelmeta().custom_metadata_map\n"
        "print(json.dumps([decision.tolist(), probs.sum().item(), json.loads(about['classes']), about['silo']]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=path.parent, capture_output=True, text=True, check=True)
    decision, total, classes, silo = json.loads(done.stdout)
    expected = run.predictor("silo-0")(rows())
    assert np.mean(np.array(decision) != expected.decision.numpy()) <= TIED
    assert (total, classes, silo) == (pytest.approx(200), ["0", "1", "2"], "silo-0")


def test_a_program_of_torch_answers_the_same(tmp_path: Path) -> None:
    run = trained(uncertainty=Uncertainty(mc_samples=3, policy="switch", abstain_rate=0.3))
    path = export_model(run, "silo-0", "torch", tmp_path / "model.pt2")
    found = torch.export.load(path).module()(torch.from_numpy(rows()))
    assert_same({name: each.numpy() for name, each in found.items()}, run, "silo-0", rows())


@pytest.mark.filterwarnings("ignore::caveat.core.DataWarning")
@pytest.mark.long
def test_mlflow_serves_what_it_has_logged_in_a_process_without_caveat(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    run = table(tmp_path)
    export_model(run, "coast", "mlflow", tmp_path / "model")
    code = BLOCKED + (
        "import json, warnings, numpy, pandas\n"
        "warnings.simplefilter('ignore')\n"
        "import mlflow\n"
        "rows = pandas.DataFrame({'age': [61, None], 'value': [None, 3.5], 'smokes': ['no', 'before']})\n"
        "mlflow.set_tracking_uri('sqlite:///logged.db')\n"
        "with mlflow.start_run() as logged:\n"
        "    mlflow.log_artifacts('model', 'model')\n"
        "found = mlflow.pyfunc.load_model(f'runs:/{logged.info.run_id}/model').predict(rows)\n"
        "print(json.dumps([found['probs'].tolist(), found['decision'].tolist()]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    probs, decision = json.loads(done.stdout.splitlines()[-1])
    expected = run.predictor("coast")(ROWS[:2])
    np.testing.assert_allclose(probs, expected.probs.numpy(), atol=1e-5)
    assert decision == expected.decision.tolist()


def test_features_of_training_inputs_are_in_the_file_only_if_asked_for(tmp_path: Path) -> None:
    run = trained(uncertainty=Uncertainty(mc_samples=3, policy="guaranteed", risk=0.5))
    kept = run.experiment.at("silo-0").state[GROUP]["global.rows"].numpy()
    for asked in (False, True):
        path = export_model(run, "silo-0", out=tmp_path / f"{asked}.onnx", training_features=asked)
        shapes = [tuple(each.dims) for each in onnx.load(path).graph.initializer]
        assert (kept.shape in shapes or kept.T.shape in shapes) is asked
        data = path.read_bytes()
        assert any(row.tobytes() in data for row in (*kept, *kept.T)) is asked
        assert json.loads(metadata(path)["alarms"]) == ["unfamiliar", *["novel"] * asked, "unsure"]
        assert ("nearness" in ask_onnx(path, rows(3))) is asked
        card = card_of(path).read_text()
        assert ("of the model's last layer" in card) is asked
        assert ("cannot raise the alarm `novel`" in card) is not asked
        assert (run.summary["guarantee"]["statement"] in card) is asked
        assert ("Errors: no guarantee" in card) is not asked
        promised = json.loads(metadata(path).get("promised", "{}"))
        assert promised == ({"risk": 0.5, "tolerance": None, "ranked_among": None} if asked else {})


def test_no_number_of_a_calibration_input_is_in_the_file(tmp_path: Path) -> None:
    run = trained()
    path = export_model(run, "silo-0", out=tmp_path / "model.onnx")
    inputs = silos()["silo-0"].calibration.x.numpy()
    shapes = [tuple(each.dims) for each in onnx.load(path).graph.initializer]
    assert (len(inputs), inputs.shape[1]) not in shapes
    data = path.read_bytes()
    assert not any(row.tobytes() in data for row in inputs)


def test_the_card_says_what_it_is_and_what_it_promises(tmp_path: Path) -> None:
    run = trained(uncertainty=Uncertainty(mc_samples=3, policy="guaranteed", risk=0.5, set_coverage=0.8))
    export_model(run, "silo-0", out=tmp_path / "model.onnx", training_features=True)
    text = (tmp_path / "model.md").read_text()
    assert text.startswith("---\nlibrary_name: onnx\n")
    assert "license" not in text
    assert run.summary["guarantee"]["statement"] in text
    assert f"silo's {len(silos()['silo-0'].calibration)} calibration inputs" in text
    assert "2 abstain" in text


@pytest.mark.parametrize(("format", "silo", "out", "told"), [
    ("onx", "silo-0", "m.onnx", "format = 'onx': no such format; did you mean onnx?"),
    ("onnx", "silo-2", "m.onnx", "silo = 'silo-2': no such silo; did you mean silo-1?"),
    ("onnx", "silo-0", "none/m.onnx", "does not exist"),
    ("onnx", "silo-0", "there.onnx", "exists; choose another path"),
    ("onnx", "silo-0", "m.md", "the model card has the suffix .md"),
])  # fmt: skip
def test_mistakes_are_one_line_each(format: str, silo: str, out: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "there.onnx").write_text("")
    before = {*tmp_path.iterdir()}
    with pytest.raises(ConfigurationError) as error:
        export_model(one_run(), silo, format, tmp_path / out)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert {*tmp_path.iterdir()} == before


@cache
def one_run() -> Run:
    return trained()


def test_what_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caveat.export.export_model.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"needs onnx: pip install 'caveat\[onnx\]'"):
        export_model(one_run(), "silo-0", out=tmp_path / "m.onnx")


class Within(torch.nn.Module):
    """Drops units in a layer of its own, input by input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = torch.nn.Linear(3, 8), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.dropout(self.linear(x), 0.2, self.training)
        found: torch.Tensor = self.last(hidden)
        return found


def test_masks_of_every_input_are_refused_with_what_to_do(tmp_path: Path) -> None:
    model = caveat.ModelSettings(name="own", factory=Within)
    with pytest.raises(
        ConfigurationError, match=r"random numbers are drawn per input.*uncertainty.source = 'laplace'"
    ) as error:
        export_model(trained(model=model), "silo-0", out=tmp_path / "m.onnx")
    assert "\n" not in str(error.value)
    assert not any(tmp_path.iterdir())
    run = trained(model=model, uncertainty=Uncertainty(mc_samples=3, source="laplace"))
    path = export_model(run, "silo-0", out=tmp_path / "m.onnx")
    assert_same(ask_onnx(path, rows()), run, "silo-0", rows())
