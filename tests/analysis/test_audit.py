"""Audits: nested shares, whole audits of real methods, the folder, the page and the command."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import TINY, caveat, files, one_error, sets
from html_page import Page

import caveat as library
from caveat.analysis.audit import claim_tests
from caveat.analysis.audit.data_fractions import nested_order, reduced, with_equal_steps
from caveat.analysis.audit.run_predictions import Observation
from caveat.core import ConfigurationError, DataError
from caveat.core.text import MINUS, percent
from caveat.data.silo_collection import Silos
from caveat.files.schema import AuditFile
from caveat.html.audit import fraction, render
from caveat.runs.progress import Silent

SMALL = library.ModelSettings(name="mlp", hidden=8)
QUICK = library.Training(local_epochs=1, batch_size=16, lr=0.01)


# Shares of the data


@pytest.fixture(scope="module")
def silos() -> Silos:
    return library.data.rotated(library.data.digits(), (0, 90), 1, samples_per_silo=200, test_per_silo=60, seed=0)


def test_every_beginning_of_the_order_has_the_classes_in_their_shares() -> None:
    y = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    order = nested_order(y, 0, "a")
    assert sorted(order.tolist()) == list(range(100))
    for size in (10, 33, 50):
        counts = torch.bincount(y[order[:size]], minlength=3)
        assert (counts - torch.tensor([0.6, 0.3, 0.1]) * size).abs().max() < 2
    assert order.tolist() != nested_order(y, 1, "a").tolist()


def test_shares_are_nested_and_all_other_splits_are_the_same(silos: Silos) -> None:
    eighth, half = (reduced(silos, share, 0) for share in (1 / 8, 1 / 2))
    for small, large, whole in zip(eighth, half, silos, strict=True):
        assert len(large.train) == round(len(whole.train) / 2)
        parts = [set(silo.indices["train"].tolist()) for silo in (small, large, whole)]
        assert parts[0] < parts[1] < parts[2]
        for split in ("validation", "calibration", "test"):
            assert getattr(small, split) is getattr(whole, split)
        at = [whole.indices["train"].tolist().index(i) for i in small.indices["train"].tolist()]
        assert torch.equal(small.train.x, whole.train.x[at])
    assert reduced(silos, 1, 0) is silos


def test_epochs_become_the_steps_of_a_silo_with_all_data(silos: Silos) -> None:
    method = library.FedAvg(training=library.Training(local_epochs=3, batch_size=32))
    per_epoch = sum(math.ceil(len(silo.train) / 32) for silo in silos) / len(silos)
    steps = with_equal_steps(method, silos).training  # type: ignore[attr-defined]
    assert (steps.local_epochs, steps.local_steps) == (None, round(3 * per_epoch))
    fixed = library.FedAvg(training=library.Training(local_steps=7))
    assert with_equal_steps(fixed, silos) is fixed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fractions": (1 / 2, 1.5, 1)}, r"fractions: 1\.5 is not a fraction"),
        ({"fractions": (0, 1)}, "fractions: 0 is not a fraction"),
        ({"fractions": (1 / 2,)}, "1 is missing"),
        ({"seeds": (1, 1)}, "seeds: 1, 1; expected different numbers"),
        ({"seeds": ()}, "seeds: expected"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(
    silos: Silos, tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        library.audit(silos, library.FedAvg(rounds=1), out=tmp_path / "out", **given)
    assert files(tmp_path) == set()


def test_a_silo_that_is_too_small_for_a_share_is_named(silos: Silos, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"fraction of 0\.005 of the training data: silo 'silo-0'"):
        library.audit(silos, library.FedAvg(rounds=1), fractions=(0.005, 1), out=tmp_path / "out")
    assert files(tmp_path) == set()


# Whole audits


@pytest.fixture(scope="module")
def audited(silos: Silos, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """FedAvg with dropout, two shares and two seeds."""
    folder = tmp_path_factory.mktemp("audits") / "one"
    method = library.FedAvg(mc_samples=3)
    return folder, library.audit(
        silos, method, rounds=1, seeds=(0, 1), fractions=(1 / 2, 1), model=SMALL, training=QUICK, out=folder
    )


def test_an_audit_of_sampled_predictions(audited: tuple[Path, Any]) -> None:
    folder, audit = audited
    assert json.loads((folder / "audit.json").read_text()) == json.loads(json.dumps(audit.record))
    verdicts = {finding.name: finding.verdict for finding in audit.findings}
    assert verdicts["fusion by Dempster's rule"] == verdicts["fusion by averaging"] == "does not apply"
    assert "vacuity and data" not in verdicts
    assert [(row["share"], row["seed"]) for row in audit.record["runs"]] == [(0.5, 0), (0.5, 1), (1, 0), (1, 1)]
    full = [row["accuracy"] for row in audit.record["runs"] if row["share"] == 1]
    assert audit.record["accuracy"]["mean"] == pytest.approx(sum(full) / 2)
    for finding in audit.findings:
        assert finding.name in str(audit)
        assert finding.verdict in str(audit)


def test_figures_are_those_of_the_runs_predictors(audited: tuple[Path, Any]) -> None:
    """Accuracy and entropies of a run's own test evaluation, which sums over the same predictions."""
    folder, audit = audited
    for row in audit.record["runs"]:
        mean = json.loads(
            (folder / "runs" / f"share-{row['share']:g}-seed-{row['seed']}" / "summary.json").read_text()
        )["mean"]
        for name, same in {"accuracy": "accuracy", "total": "entropy", "epistemic": "epistemic"}.items():
            assert row[name] == pytest.approx(mean[same]), name


def test_what_is_finished_is_not_run_again(audited: tuple[Path, Any], silos: Silos) -> None:
    folder, audit = audited
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/summary.json")}

    class Begun(Silent):
        def __init__(self) -> None:
            self.titles: list[str] = []

        def begin(self, title: str, rounds: int) -> None:
            self.titles.append(title)

    again = {"rounds": 1, "model": SMALL, "training": QUICK, "out": folder, "progress": (begun := Begun())}
    same = library.audit(silos, library.FedAvg(mc_samples=3), seeds=(0, 1), fractions=(1 / 2, 1), **again)
    assert (same.record, begun.titles) == (audit.record, [])
    library.audit(silos, library.FedAvg(mc_samples=3), seeds=(0, 1), fractions=(1 / 4, 1 / 2, 1), **again)
    assert [title.split(":")[1] for title in begun.titles] == [f" 0.25 of the data, seed {seed}" for seed in (0, 1)]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    with pytest.raises(ConfigurationError, match="different settings: method"):
        library.audit(silos, library.FedAvg(mc_samples=4), seeds=(0, 1), fractions=(1 / 2, 1), **again)


def test_an_audit_of_dirichlet_distributions(silos: Silos) -> None:
    method = library.FedPN(layers=2, personal_epochs=1, personal_steps=5, floor=-2)
    audit = library.audit(silos, method, rounds=1, seeds=(0, 1), fractions=(1 / 2, 1), model=SMALL, training=QUICK)
    verdicts = {finding.name: finding.verdict for finding in audit.findings}
    assert {"epistemic and data", "vacuity and data"} <= set(verdicts)
    assert "does not apply" not in verdicts.values()
    assert all("vacuity" in row for row in audit.record["runs"])
    assert "Opinions fused with copies" in render(audit.file)


def test_a_temperature_leaves_the_opinions_behind_probabilities_as_they_are(silos: Silos) -> None:
    """alpha = K p / vacuity, with p tempered and vacuity not, would be nobody's opinion."""
    fused = []
    for temperature in (True, False):
        audit = library.audit(
            silos, library.FedPN(layers=2, personal_epochs=1, personal_steps=5, floor=-2), rounds=1, seeds=(0,),
            fractions=(1,), model=SMALL, training=QUICK,
            uncertainty=library.Uncertainty(temperature_scaling=temperature, policy="always"),
        )  # fmt: skip
        fused.append(audit.record["fusion"])
    assert fused[0] == fused[1] != {}


def test_a_model_that_has_not_learnt_is_told_so_first(silos: Silos) -> None:
    untrained = library.Training(local_steps=1, batch_size=16, lr=1e-9)
    settings: dict[str, Any] = {"rounds": 1, "seeds": (0, 1), "fractions": (1 / 2, 1), "model": SMALL}
    audit = library.audit(silos, library.FedAvg(mc_samples=3), training=untrained, **settings)
    warning = "These models have not learned."
    assert audit.record["accuracy"]["warning"].startswith(warning)
    assert {f.verdict for f in audit.findings if f.name != "confidence"} == {"cannot say", "does not apply"}
    lines, text = str(audit).splitlines(), render(audit.file)
    assert "accuracy with all data " + percent(audit.record["accuracy"]["mean"]) in lines[0]
    assert lines[1].startswith(warning)
    assert text.index(warning) < text.index('aria-label="Verdicts"')


def test_the_page_has_shares_as_fractions() -> None:
    assert [fraction(share) for share in (1.0, 0.25, 1 / 3, 0.1, 0.1234567)] == [
        "1", "1/4", "1/3", "1/10", "0.123457",
    ]  # fmt: skip


def test_a_model_without_dropout_gives_no_epistemic_uncertainty(silos: Silos) -> None:
    model = replace(SMALL, dropout=0.0)
    audit = library.audit(
        silos, library.FedAvg(mc_samples=3), rounds=1, seeds=(0,), fractions=(1 / 2, 1), model=model, training=QUICK
    )
    silent = [finding.name for finding in audit.findings if finding.sentence == claim_tests.SILENT]
    assert silent == ["epistemic and data", "aleatoric and epistemic", "disagreement", "seeds"]
    assert "Not drawn because they contain zeros: epistemic" in render(audit.file)


def test_the_page_says_first_what_is_not_what_its_name_promises(audited: tuple[Path, Any]) -> None:
    record = audited[1].record
    record["findings"] = [finding | {"verdict": "holds"} for finding in record["findings"]]
    count = len(record["findings"])
    assert f"Of {count} promises of these uncertainties, {count} hold." in render(AuditFile.model_validate(record))
    record["findings"][0] |= {"verdict": "does not hold", "sentence": "It <rises>."}
    text = render(AuditFile.model_validate(record))
    parts = (
        f"1 does not hold and {count - 1} hold",
        "Do not read epistemic uncertainty as lack of data",
        "<svg",
        "It &lt;rises&gt;.",
    )
    assert sorted(parts, key=text.index) == list(parts)
    assert "Command" not in text
    page = Page(render(AuditFile.model_validate(record | {"command": "caveat audit 'a b'"})))
    assert "caveat audit 'a b'" in page.text
    assert not re.search(r'src=|href="(?!#)|url\(|@import', text)


def test_an_interval_on_the_page_is_that_of_the_number_that_it_names(audited: tuple[Path, Any], tmp_path: Path) -> None:
    """The interval of absolute values need not contain a negative mean."""
    values = torch.arange(50, dtype=torch.float64)
    runs = [{"a": Observation(torch.zeros(50, 2), torch.zeros(50), {"epistemic": values, "aleatoric": other})}
            for other in (-values, values.roll(9), values.roll(20))]  # fmt: skip
    found = claim_tests.two_things(runs)
    mean = found.measured["rank_correlation"]["mean"]
    assert mean < 0
    (tmp_path / "audit.json").write_text(json.dumps(audited[1].record | {"findings": [asdict(found)]}))
    text = render(AuditFile.model_validate_json((tmp_path / "audit.json").read_text()))
    of, low, high = re.findall(
        r"mean( of its absolute value)? over all possible seeds may be from (\S+) to (\S+)", text
    )[0]
    low, high = (float(end.replace(MINUS, "-")) for end in (low, high))
    assert low <= (abs(mean) if of else mean) <= high


def test_an_interrupted_audit_goes_on_where_it_was(silos: Silos, tmp_path: Path) -> None:
    """Interrupted in the second run: the first is kept."""

    class Impatient(Silent):
        begun = 0

        def begin(self, title: str, rounds: int) -> None:
            self.begun += 1
            if self.begun == 2:
                raise KeyboardInterrupt

    settings: dict[str, Any] = {"rounds": 1, "seeds": (0,), "fractions": (1 / 2, 1), "model": SMALL, "training": QUICK}
    with pytest.raises(KeyboardInterrupt):
        library.audit(silos, library.FedAvg(), out=tmp_path, progress=Impatient(), **settings)
    assert [path.parent.name for path in tmp_path.glob("runs/*/summary.json")] == ["share-0.5-seed-0"]
    resumed = library.audit(silos, library.FedAvg(), out=tmp_path, **settings)
    assert resumed.record == library.audit(silos, library.FedAvg(), **settings).record


# The command line


def test_the_command_writes_a_folder_and_continues_it(nowhere: Path) -> None:
    command = [
        "audit",
        *sets(*TINY, "data.samples_per_silo=60"),
        "--seeds",
        "0,1",
        "--fractions",
        "1/2,1",
        "--out",
        "here",
    ]
    result = caveat(*command)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-2:] == ["audit:  here/audit.json", "report: here/audit.html"]
    assert all(text in result.stdout for text in ("aleatoric and epistemic", "does not apply"))
    assert "run 4 of 4: 1 of the data, seed 1" in result.stderr
    before = (nowhere / "here" / "audit.json").read_bytes()
    again = caveat(*command)
    assert (again.stdout, again.stderr) == (result.stdout, "")
    assert (nowhere / "here" / "audit.json").read_bytes() == before
    assert "different settings: data" in one_error(caveat(*command, "--set", "seed=1"), 2)


def test_the_command_tells_what_is_wrong(nowhere: Path) -> None:
    assert "--fractions 1/0,1: expected comma-separated numbers" in one_error(
        caveat("audit", "--fractions", "1/0,1"), 2
    )
    assert "--seeds one: expected comma-separated numbers" in one_error(caveat("audit", "--seeds", "one"), 2)
    assert "fractions: 1 is missing" in one_error(caveat("audit", "--fractions", "1/2"), 2)
    (nowhere / "full").mkdir()
    (nowhere / "full" / "mine").write_text("")
    assert "exists and is not an audit" in one_error(caveat("audit", "--out", "full"), 2)
    assert files(nowhere) == {"full", "full/mine"}
