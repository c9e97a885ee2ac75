"""What one sees first: the sentence of result, the pictures of silos and of their features, and how to run it again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from fake_run import DOMAINS, describe, fake_run, interrupted_run, minimal_run, write_json
from html_page import Page
from scipy.stats import ttest_1samp

from caveat.core import DataError
from caveat.files import RunFolder, read_run
from caveat.html.run.feature_plots import scatter
from caveat.html.run.overview import overview
from caveat.html.run.page import again, render, write_report
from caveat.html.run.trust import trust


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "full")


@pytest.fixture(scope="module")
def run(full: Path) -> RunFolder:
    return read_run(full)


def said(run: RunFolder) -> str:
    found = overview(run)
    assert found is not None
    return re.sub("<[^>]*>", "", " ".join([found.sentence, *(str(each.text) for each in found.notes)]))


def changed(folder: Path, **test: float) -> RunFolder:
    """The run with other figures of its first silo."""
    content = json.loads((folder / "summary.json").read_text())
    content["silos"][0]["test"] |= test
    write_json(folder / "summary.json", content)
    return read_run(folder)


def test_the_result_is_told_in_a_sentence(run: RunFolder) -> None:
    assert said(run).startswith(
        "uefl predicts 94.7 % of 1,800 test inputs correctly (95 % interval over inputs 93.6 % to 95.6 %), mean "
        "over 9 silos; "
        "the lowest is 92.6 % at silo-8 (185 of 200). "
        "fedavg is right for 87.7 %."
    )
    assert "nats" not in said(run)  # which says nothing of whether it can be trusted


def test_the_lowest_of_silos_that_are_tied_is_not_a_single_one(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run")
    lowest = json.loads((folder / "summary.json").read_text())["worst"]["accuracy"]
    assert f"lowest is {100 * lowest:.1f} % at 2 silos. " in said(changed(folder, accuracy=lowest))


def test_a_difference_comes_with_the_interval_of_paired_silos(tmp_path: Path) -> None:
    run = changed(fake_run(tmp_path / "run"), accuracy=0.5)
    pairs = zip(run.silos, run.baselines["fedavg"].silos, strict=True)
    differences = [100 * ((mine.test.accuracy or 0) - (its.test.accuracy or 0)) for mine, its in pairs]
    interval = ttest_1samp(differences, 0).confidence_interval(0.95)
    written = (
        f"95 % interval of the difference over silos \N{MINUS SIGN}{-interval.low:.1f} to +{interval.high:.1f}). "
        "Chance can explain this, so neither is shown to be better."
    )
    assert interval.low < 0 < interval.high
    assert written in said(run)


def test_a_clear_difference_is_called_one(run: RunFolder) -> None:
    said_of = "It is 7.0 points ahead of fedavg in mean accuracy (95 % interval of the difference over silos +7.0 "
    said_of += "to +7.0), more than chance explains."
    assert said_of in said(run)


def test_an_unfinished_run_tells_validation_figures_as_such(tmp_path: Path) -> None:
    assert "validation inputs correctly" in said(read_run(interrupted_run(tmp_path / "half")))


def test_features_lie_where_they_are_on_the_same_axes_before_and_after(full: Path, run: RunFolder) -> None:
    found = scatter(run.features, list(DOMAINS))
    assert found is not None
    content = json.loads((full / "features.json").read_text())["silos"][0]
    frames = []
    for figure, stage in zip(found.figures, ("encoder", "discretised"), strict=True):
        (inside,) = re.findall(r'<g class="c0" data-name="silo-0">(.*?)</g>', figure.drawing)
        edges = re.findall(r'd="M([\d.]+),([\d.]+)a([\d.]+),', inside)  # a disc's path starts at its left
        drawn = [(float(x) + float(r), float(y), float(r)) for x, y, r in edges]
        places = np.array(list(dict.fromkeys(map(tuple, content["points"][stage]))))
        assert len(drawn) == len(places)
        x, y, radius = np.array(drawn).T
        frames.append([*np.polyfit(places[:, 0], x, 1), *np.polyfit(places[:, 1], y, 1)])
        np.testing.assert_allclose(np.polyval(frames[-1][:2], places[:, 0]), x, atol=0.02)
        np.testing.assert_allclose(np.polyval(frames[-1][2:], places[:, 1]), y, atol=0.02)
        assert (radius**2).sum() == pytest.approx(60 * 2.6**2, rel=0.01)  # an equal area per input
    assert frames[0] == pytest.approx(frames[1], rel=1e-3)
    assert [name for _, name in found.legend] == list(DOMAINS)
    assert "75 % of the variance" in found.note


def test_features_of_some_test_inputs_say_of_how_many(run: RunFolder) -> None:
    sizes = {silo.name: 60 for silo in run.silos}
    for most, told in ((60, False), (61, True)):
        found = scatter(run.features, list(DOMAINS), 9, sizes | {run.silos[0].name: most})
        assert found is not None
        assert ("Of each silo, at most 60 test inputs are shown." in found.note) == told


def test_features_of_some_silos_say_of_how_many(run: RunFolder) -> None:
    found = scatter(run.features, list(DOMAINS), 40)
    assert found is not None
    assert "features of 9 of 40 silos, chosen from every domain in turn, vary most" in found.note


def test_the_page_of_a_folder_with_features_of_some_silos_says_of_how_many(tmp_path: Path) -> None:
    """Of the first 20 of 40 silos, which are in two of three domains."""
    text = Page(render(read_run(fake_run(tmp_path / "run", beside=False, silos=40)))).text
    assert "features of 20 of 40 silos vary most" in text
    assert "all 20 silos" not in text
    assert "from every domain" not in text


def test_features_of_a_method_without_codebook_are_one_picture(run: RunFolder) -> None:
    found = scatter(run.baselines["fedavg"].features, [])
    assert found is not None
    assert len(found.figures) == 1
    assert scatter(None, []) is None


def test_damaged_features_are_named(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run", beside=False)
    content = json.loads((folder / "features.json").read_text())
    del content["silos"][3]["points"]["encoder"]
    write_json(folder / "features.json", content)
    with pytest.raises(DataError, match=r"features\.json: .*points of every stage"):
        write_report(folder)


def test_the_contents_lead_to_every_section(full: Path) -> None:
    text = write_report(full).read_text()
    links = [a["href"] for a in Page(text).all("a")]
    assert links[0] == "#main"
    assert links[1:] == [f"#{name}" for name in Page(text).sections]


def test_the_command_that_the_user_gave_is_shown(tmp_path: Path) -> None:
    folder = minimal_run(tmp_path / "run")
    assert again(read_run(folder)).given == ""
    describe(folder, "fedavg", given={"source": "digits", "sets": ["rounds=3", "data.source=npz:a b.npz"]})
    expected = "caveat run digits --set rounds=3 --set 'data.source=npz:a b.npz' --out NEW"
    assert again(read_run(folder)).given == expected
    assert expected in " ".join(Page(write_report(folder).read_text()).text.split())


@pytest.mark.parametrize(("accuracy", "told"), [(0.5, True), (0.8, False)])
def test_the_lowest_domain_of_small_silos_is_told_if_its_inputs_show_it(
    tmp_path: Path, accuracy: float, told: bool
) -> None:
    domains = [("low", accuracy)] * 10 + [("other", 0.9)] * 10
    silos = [
        {"name": f"silo-{i:02}", "domain": domain, "n_train": 40, "n_test": 10, "test": {"accuracy": right}}
        for i, (domain, right) in enumerate(domains)
    ]
    run = minimal_run(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    write_json(run / "summary.json", summary | {"silos": silos})
    found = overview(read_run(run))
    assert found is not None
    lowest = "<b>Lowest accuracy in domain low</b>: right for 50.0 % (50 of 100 right, 95 % interval 40.4 % to 59.6 %)"
    assert [each.text for each in found.notes] == [f"{lowest}. Elsewhere, it is right for 90.0 %."] * told
    for each in silos:
        each["reliability"] = {
            "count": [0, 10],
            "confidence": [0, 8.0],
            "correct": [0, round(10 * each["test"]["accuracy"])],
        }
    write_json(run / "summary.json", summary | {"silos": silos})
    known = overview(read_run(run))
    assert known is not None
    assert all(each.text.count("80.0 % sure on average") == 2 for each in known.notes)
    assert len(known.notes) == told


@pytest.mark.parametrize(("beside", "exception"), [(0.7, True), (0.4, False)])
def test_gain_and_advice_tell_the_errors_of_the_lowest_domain(tmp_path: Path, beside: float, exception: bool) -> None:
    run = minimal_run(tmp_path / "run")
    local = minimal_run(tmp_path / "run" / "baselines" / "local")
    summary = json.loads((run / "summary.json").read_text())
    curve = {"coverage": [0.5, 0.9, 1.0], "risk": [0.02, 0.2, 0.3]}
    for folder, low, high in ((run, 0.5, 0.9), (local, beside, 0.2)):
        silos = [
            {"name": f"silo-{i:02}", "domain": domain, "n_train": 40, "n_test": 10, "test": {"accuracy": right}}
            for i, (domain, right) in enumerate([("low", low)] * 10 + [("other", high)] * 10)
        ]
        method = "local" if folder == local else "fedavg"
        write_json(folder / "summary.json", summary | {"silos": silos, "method": method, "risk_coverage": curve})
    found = overview(read_run(run))
    assert found is not None
    (ahead,) = (each.text for each in found.notes if each.kind == "good")
    assert ahead.endswith(
        ", more than chance explains. In domain low, it is not ahead." if exception else "chance explains."
    )
    told = trust(read_run(run))
    assert told is not None
    (check,) = (str(step) for step in told.advice if "every prediction" in step)
    assert check.endswith(" At silos of domain low, 50.0 % (50 of 100) are wrong.")
