"""Commands and models of one's own: code is imported where its user names it, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import Result
from commands import TINY, caveat, one_error, sets
from torch import nn

import caveat as library
from caveat.core import ConfigurationError, RunError
from caveat.nn.custom_model import KNOWN
from caveat.runs.user_code import allow

CODE = """
from pathlib import Path

import torch
from torch import nn

with Path("imports").open("a") as file:
    file.write("x")


class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, classes))

    def forward(self, x):
        return self.head(self.encoder(x))


def body(shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())


def fails(shape, classes):
    raise ValueError("no weights\\nfor this")
"""
SMALL = [each for each in TINY if not each.startswith(("model.", "method."))]


@pytest.fixture
def here(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a file of code in it, in a process that knows of none yet."""
    for name in list(KNOWN):
        monkeypatch.delitem(KNOWN, name)
    (nowhere / "net.py").write_text(CODE)
    yield nowhere
    KNOWN.clear()


def run(*more: str, out: str = "run") -> None:
    done = caveat("run", *sets(*SMALL, "method.name=fedavg", *more), "--out", out, "--quiet")
    assert done.exit_code == 0, done.stderr


def imports() -> int:
    return len(Path("imports").read_text()) if Path("imports").exists() else 0


def as_elsewhere() -> None:
    """As in another process."""
    KNOWN.clear()
    Path("imports").unlink(missing_ok=True)


def test_a_run_of_own_code_is_shown_without_importing_it(here: Path) -> None:
    run("model=net.py:Net")
    assert imports() == 1
    as_elsewhere()
    assert caveat("report", "run").exit_code == 0
    assert caveat("config", "run/config.toml").exit_code == 0
    assert caveat("resume", "run").exit_code == 0, "it is finished"
    assert caveat("flower", "ledger", "run").exit_code == 0
    for command in (("predict", "run", "digits.npz", "--silo", "silo-0"), ("ood", "run")):
        said = one_error(caveat(*command), 2)
        assert "'net.py:Net' is custom code, and a folder cannot make caveat import code" in said
        assert "--model net.py:Net" in said
    with pytest.raises(ConfigurationError, match=r"caveat\.load\(RUN, model=\.\.\.\)"):
        library.load("run")
    assert imports() == 0


def test_what_its_user_names_is_imported_to_predict(here: Path) -> None:
    run("model=net.py:Net")
    x = library.load("run", model="net.py:Net").silos[0].test.x
    as_elsewhere()
    first = library.load("run", model=["net.py:Net"]).predictor("silo-0")(x)
    assert imports() == 1
    as_elsewhere()
    namespace: dict[str, type] = {}
    exec(CODE, namespace)
    again = library.load("run", model=namespace["Net"]).predictor("silo-0")(x)
    assert first.probs.equal(again.probs)
    as_elsewhere()
    (here / "elsewhere").mkdir()
    (here / "net.py").rename(here / "elsewhere" / "net.py")
    moved = library.load("run", model="elsewhere/net.py:Net").predictor("silo-0")(x)
    assert first.probs.equal(moved.probs)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gone.py:Net", "'gone.py:Net': no such file"),
        ("net.py", "expected package.module:name or file.py:name"),
        ("net.py:Other", "'net.py:Other': net.py has no function or module 'Other'"),
        ("other.py:Net", "the code of the model has changed since the run started"),
    ],
)
def test_code_that_is_not_the_run_s_is_refused(name: str, text: str, here: Path) -> None:
    run("model=net.py:Net")
    as_elsewhere()
    (here / "other.py").write_text(CODE.replace("nn.ReLU()", "nn.Tanh()"))
    status = 4 if name == "other.py:Net" else 2
    assert text in one_error(caveat("predict", "run", "digits.npz", "--silo", "silo-0", "--model", name), status)


def test_code_may_have_another_name_by_then_where_there_is_one(here: Path) -> None:
    run("model=net.py:Net")
    as_elsewhere()
    (here / "net.py").rename(here / "renamed.py")
    assert library.load("run", model="renamed.py:Net").silos.names
    assert caveat("resume", "run", "--model", "renamed.py:Net").exit_code == 0
    with pytest.raises(ConfigurationError, match=r"is not the code of the run, which names net.py:Net"):
        allow(["net.py:Net"], ["renamed.py:Net", "renamed.py:body"])
    with pytest.raises(ConfigurationError, match=r"is not the code of the run, which names a.py:A, b.py:B"):
        allow(["a.py:A", "b.py:B"], ["renamed.py:Net"])


def test_a_run_of_caveat_s_own_models_takes_no_code(here: Path) -> None:
    run("model.name=mlp")
    said = one_error(caveat("resume", "run", "--model", "net.py:Net"), 2)
    assert "not the code of the run, which names no custom code" in said
    with pytest.raises(ConfigurationError, match="the run has no custom model"):
        library.load("run", model=lambda: None)


def test_an_interrupted_run_goes_on_with_its_code_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("model=net.py:Net", "rounds=2", out="whole")

    def stop(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("caveat.runs.recorder.Recorder.finish", stop)
        command = ["run", *sets(*SMALL, "method.name=fedavg", "model=net.py:Net", "rounds=2"), "--out", "run"]
        stopped = caveat(*command)
    assert "continue with `caveat resume run --model net.py:Net`" in stopped.stderr
    as_elsewhere()
    assert "--model net.py:Net" in one_error(caveat("resume", "run"), 2)
    assert imports() == 0
    (here / "net.py").write_text(CODE.replace("nn.ReLU()", "nn.Tanh()"))
    said = one_error(caveat("resume", "run", "--model", "net.py:Net", "--quiet"), 4)
    assert "the code of the model has changed since the run started" in said
    as_elsewhere()
    (here / "net.py").write_text(CODE)
    assert caveat("resume", "run", "--model", "net.py:Net", "--quiet").exit_code == 0
    for name in ("model/model.safetensors", "rounds.jsonl"):
        assert (here / "run" / name).read_bytes() == (here / "whole" / name).read_bytes()


def test_a_finished_run_goes_on_to_more_rounds_with_its_code_alone(here: Path) -> None:
    run("model=net.py:Net")
    run("model=net.py:Net", "rounds=2", out="whole")
    as_elsewhere()
    assert "--model net.py:Net" in one_error(caveat("resume", "run", "--rounds", "2"), 2)
    done = caveat("resume", "run", "--rounds", "2", "--model", "net.py:Net", "--quiet")
    assert done.exit_code == 0, done.stderr
    model = "model/model.safetensors"
    assert (here / "run" / model).read_bytes() == (here / "whole" / model).read_bytes()


def test_other_code_does_not_predict(here: Path) -> None:
    run("model.encoder=net.py:body", "model.frozen=true")
    as_elsewhere()
    (here / "net.py").write_text(CODE.replace("nn.ReLU()", "nn.Tanh()"))
    with pytest.raises(RunError, match="the code of the model has changed since the run started"):
        library.load("run", model="net.py:body")


@pytest.mark.parametrize(
    ("items", "text"),
    [
        (["model=net.py:Missing"], "model = 'net.py:Missing': net.py has no function or module 'Missing'"),
        (["model=gone.py:Net"], "model = 'gone.py:Net': no such file in"),
        (
            ["model=nowhere.models:make"],
            "no module 'nowhere' is installed, and none is in",
        ),
        (["model=net"], "model is a section: set its keys"),
        (["model=net.py:fails"], "classes = 10, fails: ValueError: no weights for this"),
        (["model=net.py:Net", "model.weights=gone.pt"], "model.weights = 'gone.pt': no such file"),
        (["model=net.py:Net", "model.frozen=true"], "model.frozen = True has no effect for model 'own'"),
        (["model=net.py:Net", "init_from=gone"], "init_from = 'gone' is not a finished run"),
        (
            ["model=net.py:body"],
            "returns (2, 8) float32 for 2 inputs, expected (2, 10) float32: a logit for each class",
        ),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_written(items: list[str], text: str, here: Path) -> None:
    said = one_error(caveat("run", *sets(*SMALL, "method.name=fedavg", *items), "--out", "run"), 2)
    assert text in said
    assert len(said.splitlines()) == 1
    assert not (here / "run").exists()


def test_a_broken_file_is_named_with_its_line(here: Path) -> None:
    (here / "net.py").write_text("import torch\n\nraise OSError('no disk')\n")
    said = one_error(caveat("run", *sets(*SMALL, "method.name=fedavg", "model=net.py:Net"), "--out", "run"), 2)
    assert "net.py:3: OSError: no disk" in said


def test_configurations_say_it_in_a_key_or_in_a_table(here: Path) -> None:
    (here / "short.toml").write_text('model = "net.py:Net"\nrounds = 1\n[method]\nname = "fedavg"\n')
    (here / "long.toml").write_text('rounds = 1\n[method]\nname = "fedavg"\n[model]\nfactory = "net.py:Net"\n')
    short, long = (caveat("config", name).stdout for name in ("short.toml", "long.toml"))
    assert short == long
    assert 'factory = "net.py:Net"' in short
    assert imports() == 0


def test_comparisons_and_audits_import_what_their_configuration_names(here: Path) -> None:
    items = [each for each in (*SMALL, "model=net.py:Net") if not each.startswith("baselines")]
    several = ["--methods", "fedavg,fedbn", "--seeds", "0"]
    compared = caveat("compare", *sets(*items), *several, "--out", "c", "--quiet")
    assert compared.exit_code == 0, compared.stderr
    as_elsewhere()
    items.remove("model=net.py:Net")
    row = ("--methods", "fedavg", "--variant", "own: method.name=fedavg model=net.py:Net", "--seeds", "0")
    varied = caveat("compare", *sets(*items), *row, "--out", "v", "--quiet")
    assert varied.exit_code == 0, varied.stderr
    audited = caveat(
        "audit", *sets(*SMALL, "model=net.py:Net", "method.name=fedavg"), "--seeds", "0,1", "--fractions", "1/2,1",
        "--out", "a", "--quiet",
    )  # fmt: skip
    assert audited.exit_code == 0, audited.stderr
    as_elsewhere()
    assert caveat("report", "c").exit_code == 0
    assert imports() == 0


def test_a_comparison_does_not_go_on_with_other_weights_than_its_finished_runs_began_with(here: Path) -> None:
    items = [each for each in (*SMALL, "model=net.py:Net", "model.weights=net.pt") if not each.startswith("baselines")]

    def compare(methods: str) -> Result:
        KNOWN.clear()
        return caveat("compare", *sets(*items), "--methods", methods, "--seeds", "0", "--out", "c", "--quiet")

    def weights(seed: int) -> None:
        torch.manual_seed(seed)
        parts = {"encoder.1": nn.Linear(64, 8), "head.1": nn.Linear(8, 10)}
        state = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
        torch.save(state, here / "net.pt")

    weights(0)
    done = compare("fedavg")
    assert done.exit_code == 0, done.stderr
    before = (here / "c" / "grid.json").read_bytes()
    weights(1)
    said = one_error(compare("fedavg,fedbn"), 4)
    assert "c/runs/fedavg/seed-0: the code of the model has changed" in said
    assert (here / "c" / "grid.json").read_bytes() == before
    weights(0)
    assert compare("fedavg,fedbn").exit_code == 0


def test_the_list_of_models_says_what_one_s_own_are() -> None:
    listed = dict(line.split(maxsplit=1) for line in caveat("list", "models").stdout.splitlines())
    assert {"own", "encoder", "residual"} <= set(listed)
    assert "model.factory" in listed["own"]
    assert "model.encoder" in listed["encoder"]


def test_the_folder_says_by_name_what_its_model_is(here: Path) -> None:
    run("model=net.py:Net")
    model = json.loads((here / "run" / "model" / "model.json").read_text())["model"]
    assert (model["name"], model["factory"]) == ("own", "net.py:Net")
    assert set(json.loads((here / "run" / "run.json").read_text())["code"]) == {"model", "says", "models"}
