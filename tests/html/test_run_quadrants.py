"""The report shows what was known of which test inputs: quadrants, and examples of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fake_run import decided_run, fake_run, quadrant_run, write_json
from html_page import Page

from caveat.core import DataError
from caveat.files.schema import Gallery, GallerySilo, Item, Quadrant
from caveat.html.run.page import within_budget, write_report


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return (
        write_report(quadrant_run(tmp_path_factory.mktemp("runs") / "quadrants"))
        .read_text()
        .replace("\N{NO-BREAK SPACE}", " ")
    )


def quadrant_rows(page: str) -> list[list[str]]:
    """The cells of the table of quadrants, without their markup and what quadrants mean."""
    (table,) = [t for t in re.findall(r"<table>.*?</table>", page, re.DOTALL) if ">quadrant</th>" in t]
    rows = [re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in table.split("</tr>")]
    texts = [[re.sub(r'<span class="meaning">.*?</span>|<[^>]*>', "", cell).strip() for cell in row] for row in rows]
    return [row for row in texts if row]


def test_quadrants_stand_by_streams_with_counts_and_shares(page: str) -> None:
    assert quadrant_rows(page) == [
        ["quadrant", "ind", "ood_local", "ood_global"],  # mix has none
        ["known knowns", "140 70.0 %", "20 10.0 %", "4 2.0 %"],
        ["known unknowns", "2 1.0 %", "0 0.0 %", "1 0.5 %"],
        ["unknown knowns", "40 20.0 %", "120 60.0 %", "36 18.0 %"],
        ["unknown unknowns", "18 9.0 %", "60 30.0 %", "159 79.5 %"],
    ]
    best = (
        "Ideally, inputs of ind (silos' own) are known knowns, those of ood_local (known to other silos only) are "
        "unknown knowns, those of ood_global (known to no silo) are unknown unknowns."
    )
    assert best in Page(page).text


def test_examples_stand_by_quadrant_and_stream(page: str) -> None:
    tables = re.findall(r'<table class="quadrants">.*?</table>', page, re.DOTALL)
    assert len(tables) == 2  # one per silo
    rows = [re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in tables[0].split("</tr>")[:4]]
    assert rows[0] == ["quadrant", "ind", "ood_local", "ood_global"]
    assert [row[0] for row in rows[1:]] == ["known knowns", "unknown knowns", "unknown unknowns"]
    assert [[cell.count("<img") for cell in row[1:]] for row in rows[1:]] == [[3, 0, 0], [0, 3, 0], [0, 0, 3]]
    assert "label ill" in re.sub(r'\w+="[^"]*"', "", rows[2][2])  # where the prediction is another class
    assert 'alt="test input, label not a class of the model"' in rows[3][3]


def test_the_page_is_well_formed_and_says_what_it_draws(page: str) -> None:
    found = Page(page)  # which checks that elements are closed where they should be
    assert all(a["aria-label"] for a in found.all("svg") if a.get("aria-hidden") != "true")
    assert all(a["alt"] for a in found.all("img"))
    assert len(found.all("figure")) == len(found.all("figcaption"))


def test_a_run_without_quadrants_shows_none(tmp_path: Path) -> None:
    for run in (decided_run(tmp_path / "decided"), fake_run(tmp_path / "full", beside=False)):
        text = write_report(run).read_text()
        assert "quadrant</th>" not in text


def test_one_model_that_abstains_has_examples_but_no_quadrants(tmp_path: Path) -> None:
    run = quadrant_run(tmp_path / "run")
    content = json.loads((run / "summary.json").read_text())
    for stream in content["streams"].values():
        stream["models"] = {"global": stream["models"]["global"]}
    write_json(run / "summary.json", content)
    text = write_report(run).read_text()
    assert "unknown knowns" not in text
    assert '<th scope="row" class="words">abstained</th>' in text


def test_images_of_quadrants_never_displace_those_of_the_most_and_least_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    item = Item(image="abcd", label=0, predicted=0, probability=1.0)
    cell = Quadrant(stream="ind", model="local", abstained=False, items=[item] * 2)
    silos = [GallerySilo(name=str(i), certain=[item], uncertain=[item], quadrants=[cell]) for i in range(8)]
    monkeypatch.setattr("caveat.html.run.page._IMAGE_BUDGET", 4 * (16 + 3))
    kept = within_budget(Gallery(silos=silos))
    assert kept is not None
    assert all(one.image for silo in kept.silos for one in [*silo.certain, *silo.uncertain])
    images = [[one.image is not None for one in q.items] for silo in kept.silos for q in silo.quadrants]
    assert images == [[True, True], [True, False], [False, False], [False, False], [False, False]]


@pytest.mark.parametrize("damaged", [{"from": [0.0], "count": []}, {"from": [10.0, 0.0], "count": [1.0, 1.0]}])
def test_a_histogram_whose_steps_do_not_fit_is_named(tmp_path: Path, damaged: dict[str, list[float]]) -> None:
    run = quadrant_run(tmp_path / "run")
    content = json.loads((run / "summary.json").read_text())
    content["streams"]["ind"]["models"]["local"]["log_evidence"] = damaged
    write_json(run / "summary.json", content)
    with pytest.raises(DataError, match=r"log_evidence: .*from must ascend"):
        write_report(run)
