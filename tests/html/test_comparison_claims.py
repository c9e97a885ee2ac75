"""Headlines and advice of comparisons claim what their records show, on a hundred generated ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from fake_comparison import MEASURES, fake_comparison, table_of
from scipy.stats import binomtest

from caveat.files.schema import Comparison
from caveat.html.comparison.advice import next_steps
from caveat.html.comparison.verdict import barely, verdict

METHODS = ("fedavg", "ditto", "local")


def generated(random: np.random.Generator) -> tuple[Comparison, float, dict[str, tuple[int, int]]]:
    """A comparison of models that have learned everything, something or nothing, on few or many inputs and seeds, the
    most frequent class's accuracy, and the mean inputs that only a method, and only that class, is right for."""
    methods = METHODS[: int(random.integers(1, 4))]
    seeds, silos = int(random.choice([1, 2, 3, 10])), int(random.choice([1, 2, 9]))
    inputs, most = int(random.choice([3, 10, 40, 400])), float(random.choice([0.1, 0.5, 0.9, 1.0]))
    frequent = random.random((silos, inputs)) < most  # whether an input has its silo's most frequent class
    skill = {name: random.choice([0.0, 0.05, 0.5, 1.0]) + 0.1 * random.random() for name in methods}
    content = fake_comparison(methods=methods, seeds=seeds, silos=silos, paper=False, tuned=False)
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in methods}
    for cell in content["cells"]:
        learned = random.random((silos, inputs)) < skill[cell["row"]]
        right = learned | (random.random((silos, inputs)) < np.where(frequent, most, 1 - most))
        only = int((right & ~frequent).sum()), int((frequent & ~right).sum())
        found[cell["row"]].append(only)
        cell["majority"] = {"accuracy": float(frequent.mean()), "gained": only[0], "lost": only[1]}
        for silo, share in zip(cell["silos"], right.mean(1), strict=True):
            silo["figures"]["accuracy"] = float(share)
    content["tables"][0] = table_of(content["cells"], methods, "", MEASURES[0])
    sides = {
        name: tuple(round(float(np.mean(side))) for side in zip(*each, strict=True)) for name, each in found.items()
    }
    return Comparison.model_validate(content), float(frequent.mean()), {n: (s[0], s[1]) for n, s in sides.items()}


@pytest.mark.parametrize("seed", range(100))
def test_no_headline_claims_more_than_its_record_holds(seed: int) -> None:
    record, most, only = generated(np.random.default_rng(seed))
    setting = record.columns[0]
    advice = next_steps(record, setting)
    said, steps = verdict(record, setting), " ".join(step.step for step in advice)
    rows: dict[str, Any] = {row.row: row for row in record.tables[0].rows}
    best = max(rows, key=lambda name: rows[name].mean)
    ps = {n: binomtest(a, a + b, alternative="greater").pvalue if a + b else 1.0 for n, (a, b) in only.items()}
    missed = {name for name, p in ps.items() if p >= 0.05 / len(ps)} if most < 1 else set()
    possible = rows[best].mean >= most + 0.2 * (1 - most)
    if len(rows) > 1:
        lines, _, tail = said.partition("Not shown to be better than always predicting the most frequent class")
        assert ("rank methods" in lines) == (best in missed)
        assert set(re.findall("fedavg|ditto|local", tail)) == (set() if best in missed else missed)
        assert said.startswith("No method is shown") == (missed == set(rows))
        assert "more than barely" not in said or not possible
    assert barely(record, setting) == (not possible and most < 1)
    assert "Train for more rounds or" not in steps or not possible
    assert "All methods" not in said + steps
    assert f"{best} is not shown to be better" not in steps or best in missed
    pairs = {(pair.a, pair.b): pair for pair in record.tables[0].pairs}
    for a, b in re.findall(r"(\w+) is ahead of (\w+) by", said):
        pair = pairs.get((a, b)) or pairs[b, a]
        assert a == best
        assert rows[a].mean > rows[b].mean
        assert ("difference is significant" in said) == (pair.p_adjusted is not None)
        assert pair.p_adjusted is None or pair.p_adjusted < 0.05
    if within := re.search(r"^No difference in accuracy is shown .* \(all within ([\d.]+) points", said):
        assert len(pairs) == 3
        assert all((pair.p_adjusted or 0) >= 0.05 for pair in pairs.values())
        ends = [abs(end) for pair in pairs.values() for end in (pair.low, pair.high) if end is not None]
        assert float(within[1]) == pytest.approx(100 * max(ends), abs=0.051)
        assert "ahead" not in said
    if used := re.search(r"Use (\w+) on silos", steps):
        assert used[1] == best
        assert best not in missed
        assert any(best in pair and (each.p_adjusted or 0) < 0.05 for pair, each in pairs.items())
    assert "nan" not in said + steps
