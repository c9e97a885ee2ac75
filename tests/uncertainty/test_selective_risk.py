"""Ranks, quantiles and guaranteed limits: closed forms, brute force, and whether promises are kept in simulation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.signal import fftconvolve
from scipy.stats import binom, binomtest
from torch import Tensor

from caveat.uncertainty.histograms import finite_sample_quantile, histogram
from caveat.uncertainty.selective_risk import (
    PAIR,
    Guarantee,
    answers_needed,
    bounded,
    clopper_pearson_upper,
    counts,
    fixed_sequence,
    inputs_needed,
    limits,
    policy_counts,
    ranks,
    score_edges,
    starting_columns,
)

RISK, CONFIDENCE, DELTA = 0.05, 0.9, 0.1
SILOS, FEDERATIONS, REFERENCE = 10, 1000, 200


# Quantiles and ranks.


@pytest.mark.parametrize(("n", "level", "index"), [(9, 0.9, 9), (99, 0.07, 7), (19, 1 - 0.95, 1), (20, 0.9, 19)])
def test_quantile_is_an_order_statistic(n: int, level: float, index: int) -> None:
    scores = torch.randperm(n, generator=torch.Generator().manual_seed(0)) + 1.0
    assert finite_sample_quantile(scores, level) == index


def test_quantile_of_too_few_scores_accepts_everything() -> None:
    assert finite_sample_quantile(torch.arange(8.0), 0.9) == math.inf
    assert finite_sample_quantile(torch.arange(9.0), 0.9) == 8
    assert finite_sample_quantile(torch.empty(0), 0.5) == math.inf
    assert finite_sample_quantile(torch.arange(50.0), 1.0) == math.inf


def test_quantile_covers_a_new_score_as_often_as_promised() -> None:
    scores = torch.randn(20_000, 24, generator=torch.Generator().manual_seed(0))
    covered = [float(row[0]) <= finite_sample_quantile(row[1:], 0.8) for row in scores]
    exact = math.ceil(24 * 0.8) / 24  # 20 of 24 positions that a new score may take
    assert np.mean(covered) == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000))


def test_nan_scores_are_dropped_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="dropped 2 of 5"):
        assert finite_sample_quantile(torch.tensor([3.0, math.nan, 1.0, 2.0, math.nan]), 0.75) == 3
    with pytest.warns(UserWarning, match="dropped 2 of 2"):
        assert finite_sample_quantile(torch.tensor([math.nan, math.nan]), 0.5) == math.inf


@pytest.mark.parametrize("level", [0.0, -0.1, 1.1, math.nan])
def test_impossible_level(level: float) -> None:
    with pytest.raises(ValueError, match="level"):
        finite_sample_quantile(torch.arange(3.0), level)


def edges_of(scores: Tensor, size: int = 100) -> Tensor:
    return score_edges("total", histogram("total", scores), size)


def test_edges_are_quantiles_of_the_scores_that_were_counted() -> None:
    reference = torch.rand(997, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    edges = edges_of(reference, 20)
    exact = reference.sort().values[torch.tensor([math.ceil(997 * j / 20) - 1 for j in range(1, 20)])]
    assert (edges[:-1] >= exact).all()  # upper edges of bins
    torch.testing.assert_close(edges[:-1], exact, rtol=0.007, atol=1e-6)
    assert edges[-1] == torch.finfo(torch.float64).max
    share = torch.stack([(ranks(edges, reference) <= limit).double().mean() for limit in limits(20)])
    torch.testing.assert_close(share, limits(20), rtol=0, atol=0.01)


def test_ranks_count_the_edges_below_a_score() -> None:
    edges = torch.tensor([1.0, 1.0, 2.0, torch.finfo(torch.float64).max], dtype=torch.float64)
    scores = torch.tensor([-math.inf, 1.0, 1.5, 2.0, 3.0, math.inf, math.nan])
    assert ranks(edges, scores).tolist() == [0.25, 0.25, 0.75, 0.75, 1.0, 1.0, 1.0]


def test_without_scores_to_rank_by_nothing_is_answered_before_all_is() -> None:
    assert ranks(edges_of(torch.zeros(0)), torch.tensor([-1.0, 0.0, 9.0])).tolist() == [1.0] * 3


# Counts.


def sample(n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ranks of two models, among them some that equal a limit or each other, and what each got wrong."""
    generator = torch.Generator().manual_seed(seed)
    r = torch.randint(1, 61, (2, n), generator=generator) / 60.0
    wrong = torch.rand(2, n, generator=generator) < 0.3
    return r[0].double(), r[1].double(), wrong[0], wrong[1]


def test_counts_of_the_policy_by_a_loop() -> None:
    r_local, r_global, wrong_local, wrong_global = sample(150)
    found = policy_counts(r_local, r_global, wrong_local, wrong_global, 20)
    for j, limit in enumerate(limits(20).tolist()):
        answered = errors = 0
        for rl, rg, wl, wg in zip(r_local, r_global, wrong_local, wrong_global, strict=True):
            if rl <= limit:
                answered, errors = answered + 1, errors + int(wl)
            elif rg <= limit:
                answered, errors = answered + 1, errors + int(wg)
        assert found[:, j].tolist() == [answered, errors]


def test_one_model_is_either_alone() -> None:
    r, _, wrong, _ = sample(80)
    expected = torch.stack([(r[:, None] <= limits()).sum(0), ((r[:, None] <= limits()) & wrong[:, None]).sum(0)])
    assert torch.equal(counts(r, wrong), expected.double())
    assert torch.equal(policy_counts(None, r, None, wrong), expected.double())
    assert torch.equal(policy_counts(r, torch.ones_like(r), wrong, ~wrong)[:, :-1], expected[:, :-1].double())
    assert torch.equal(policy_counts(r, torch.full_like(r, math.inf), wrong, ~wrong), expected.double())
    half = torch.arange(80) < 40
    expected = torch.stack(
        [(r[half, None] <= limits()).sum(0), ((r[:, None] <= limits()) & (wrong & half)[:, None]).sum(0)]
    )
    assert torch.equal(counts(r.where(half, math.inf), wrong), expected.double())


def test_silos_merged_are_silos_pooled() -> None:
    columns = sample(301)
    cuts = [slice(0, 0), slice(0, 7), slice(7, 100), slice(100, 301)]
    merged = sum(policy_counts(*(column[cut] for column in columns)) for cut in cuts)
    assert torch.equal(merged, policy_counts(*columns))
    assert merged[0, -1] == 301


def test_counts_refuse_what_is_no_rank_and_what_does_not_fit() -> None:
    r, _, wrong, _ = sample(5)
    for bad in (r - 1, r + 1, r * math.nan, r - math.inf):
        with pytest.raises(ValueError, match=r"\(0, 1\]"):
            counts(bad, wrong)
    with pytest.raises(ValueError, match="shapes"):
        counts(r, wrong[:4])
    with pytest.raises(ValueError, match="at least one model"):
        policy_counts(None, None, None, None)
    with pytest.raises(ValueError, match="both ranks and errors"):
        policy_counts(r, r, wrong, None)


# The bound and the sequence.


def test_clopper_pearson_against_an_exact_test() -> None:
    for errors, answered in [(0, 45), (3, 20), (19, 20), (7, 1000), (20, 20), (1, 1)]:
        expected = binomtest(errors, answered, alternative="less").proportion_ci(CONFIDENCE, "exact").high
        found = float(clopper_pearson_upper(torch.tensor(errors), torch.tensor(answered), DELTA))
        assert found == pytest.approx(expected, rel=1e-9)
    assert float(clopper_pearson_upper(torch.tensor(0.0), torch.tensor(50.0), DELTA)) == pytest.approx(1 - 0.1**0.02)
    assert clopper_pearson_upper(torch.zeros(2), torch.zeros(2), DELTA).tolist() == [1, 1]


def test_bounded_is_what_the_bound_says() -> None:
    answered, errors = torch.meshgrid(torch.arange(300), torch.arange(300), indexing="ij")
    answered, errors = answered[errors <= answered], errors[errors <= answered]
    assert torch.equal(
        bounded(errors, answered, RISK, DELTA), clopper_pearson_upper(errors, answered, DELTA) <= RISK + 1e-12
    )
    assert not bool(bounded(torch.zeros(1), torch.zeros(1), RISK, DELTA))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0])
def test_impossible_delta(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        clopper_pearson_upper(torch.zeros(1), torch.ones(1), delta)


@pytest.mark.parametrize("risk", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("errors", [0, 1, 2, 17])
def test_answers_needed_is_the_first_that_passes(errors: int, risk: float) -> None:
    needed = answers_needed(errors, risk, DELTA)
    bound = clopper_pearson_upper(torch.tensor([errors, errors]), torch.tensor([needed - 1, needed]), DELTA)
    assert bound[1] <= risk < bound[0]


def test_one_test_keeps_its_level_with_silos_of_fixed_sizes() -> None:
    """Exactly, over all outcomes of two silos with different errors, the mixture's risk being what is promised."""
    generator = np.random.default_rng(0)
    levels = []
    for _ in range(60):
        n, share = generator.integers(5, 50, 2), generator.choice([0.05, 0.3, 0.8, 1.0], 2)
        mass = n * share
        first = generator.random() * min(1, 0.1 * mass.sum() / mass[0])
        second = (0.1 * mass.sum() - first * mass[0]) / mass[1]
        if second <= 1:
            a, b = (
                binom.pmf(np.arange(size + 1)[:, None], size, part)
                * binom.pmf(np.arange(size + 1), np.arange(size + 1)[:, None], risk)
                for size, part, risk in zip(n, share, (first, max(second, 0)), strict=True)
            )
            total = int(n.sum())
            answered, errors = torch.meshgrid(torch.arange(total + 1), torch.arange(total + 1), indexing="ij")
            passes = (clopper_pearson_upper(errors.minimum(answered), answered, DELTA) <= 0.1).numpy()
            levels.append(fftconvolve(a, b)[passes & (errors <= answered).numpy()].sum())
    assert len(levels) > 40
    assert 0.05 < max(levels) <= DELTA + 1e-9


def table(answered: list[int], errors: list[int]) -> Tensor:
    return torch.tensor([answered, errors], dtype=torch.float64)


def test_the_sequence_stops_at_its_first_failure() -> None:
    found = fixed_sequence(table([50, 100, 150, 1000], [0, 1, 30, 0]), RISK, CONFIDENCE, starts={0: 1})
    assert found.limit == 0.5
    assert (found.answered, found.errors, found.total, found.needed) == (100, 1, 1000, 0)
    assert found.upper == pytest.approx(binomtest(1, 100).proportion_ci(0.8, "exact").high)  # two-sided: 0.1 a side
    assert found.coverage == 0.1


def test_a_later_start_is_tested_at_its_own_level_and_inherits_that_of_a_sequence_without_failure() -> None:
    needed = {m: answers_needed(0, RISK, DELTA / m) for m in (1, 2)}
    assert needed[1] < needed[2]
    failed_first = table([10, 20, needed[2], needed[2]], [5, 5, 5, 5])
    assert fixed_sequence(failed_first, RISK, CONFIDENCE, starts={0: 0.5, 2: 0.5}).limit is None
    alone = table([0, 0, needed[2], needed[2]], [0, 0, 0, 0])
    assert fixed_sequence(alone, RISK, CONFIDENCE, starts={0: 0.5, 2: 0.5}).limit == 1
    inherits = table([needed[2], needed[2], 300, 300], [0, 0, 0, 9])
    # 9 of 300 pass at level 0.1 but not at 0.05.
    assert clopper_pearson_upper(inherits[1, 3], inherits[0, 3], DELTA) <= RISK
    assert clopper_pearson_upper(inherits[1, 3], inherits[0, 3], DELTA / 2) > RISK
    assert fixed_sequence(inherits, RISK, CONFIDENCE, starts={0: 0.5, 2: 0.5}).limit == 1
    inherits[0, :2] -= 1
    assert fixed_sequence(inherits, RISK, CONFIDENCE, starts={0: 0.5, 2: 0.5}).limit == 0.75


def test_starts_are_a_function_of_the_number_of_inputs() -> None:
    first = {m: answers_needed(2, RISK, DELTA / m) for m in (2, 3)}  # 133, 148
    columns = {n: starting_columns(n, RISK, CONFIDENCE) for n in (20, 60, 100, 200, 400, 10_000)}
    assert columns[20] == {99: 1}  # nothing but all inputs together may be enough
    assert columns[60] == {math.ceil(100 * answers_needed(0, RISK, DELTA) / 60) - 1: 1}
    for n in (100, 200):
        pair = [answers_needed(k, RISK, share * DELTA) for k, share in enumerate(PAIR)]
        assert columns[n] == {math.ceil(100 * a / n) - 1: share for a, share in zip(pair, PAIR, strict=True)}
    assert columns[400] == {math.ceil(first[2] / 4) - 1: 1 / 2, 49: 1 / 2}
    assert columns[10_000] == {math.ceil(first[3] / 100) - 1: 1 / 3, 24: 1 / 3, 49: 1 / 3}
    assert starting_columns(0, RISK, CONFIDENCE) == {99: 1}
    assert starting_columns(10**9, RISK, CONFIDENCE, 1) == {0: 1}


def test_few_inputs_of_which_the_surest_are_right_are_answered() -> None:
    """100 inputs of which the 70 surest are right and 10 of the others wrong: not nothing."""
    wrong = torch.zeros(100, dtype=torch.bool)
    wrong[70::3] = True
    found = fixed_sequence(counts((torch.arange(100) + 1) / 100, wrong), RISK, CONFIDENCE)
    assert (found.limit, found.answered, found.errors) == (0.7, 70, 0)


def test_inputs_that_no_limit_answers_count_as_inputs() -> None:
    answered = table([50, 100, 150], [0, 1, 2])
    found = fixed_sequence(answered, RISK, CONFIDENCE, starts={0: 1}, total=300)
    assert (found.coverage, found.total) == (0.5, 300)
    assert "answers 50 % of inputs" in found.statement
    with pytest.raises(ValueError, match="total = 149, but 150 inputs are answered"):
        fixed_sequence(answered, RISK, CONFIDENCE, total=149)


def test_what_more_answers_take_is_about_enough() -> None:
    """At the rate of errors that was seen, with one error added, so many inputs pass, and a tenth fewer do not."""
    seen = table([40, 100, 200], [0, 1, 60])
    inputs, share = inputs_needed(seen, 200, RISK, DELTA)
    assert share == 0.5
    for scale, passes in ((1.0, True), (0.8, False)):
        answered = math.floor(inputs * scale * share)
        errors = torch.tensor(math.ceil(answered * 2 / 100))
        assert bool(clopper_pearson_upper(errors, torch.tensor(answered), DELTA) <= RISK) is passes
    assert inputs_needed(table([20, 100], [3, 40]), 100, RISK, DELTA) == (770, 0.1)  # 77 answers with one error


def test_statements() -> None:
    granted = fixed_sequence(counts(torch.arange(1, 6001) / 6000.0, torch.arange(6000) >= 4900), RISK, CONFIDENCE)
    share = f"{100 * granted.answered / 6000:.1f}".removesuffix(".0")
    assert granted.statement == (
        f"answers {share} % of inputs with at most 5 % errors among them, at 90 % confidence "
        f"({granted.answered:,} of 6,000 calibration inputs, {granted.errors:,} wrong)"
    )
    assert 4900 < granted.answered < 5200
    refused = fixed_sequence(counts(torch.arange(1, 21) / 20.0, torch.zeros(20, dtype=torch.bool)), RISK, CONFIDENCE)
    assert refused.limit is None
    assert refused.coverage == 0
    assert refused.statement == (
        "no share of inputs can be answered with at most 5 % errors at 90 % confidence from 20 calibration inputs: "
        "0 of the 20 most certain are wrong, and at least 25 more error-free ones are needed there"
    )
    assert (refused.enough, round(refused.enough_share, 2)) == (770, 0.1)
    one = Guarantee(None, 0.05, 0.9, 68, 0, 288, 0.0503, needed=1)
    assert one.statement.endswith("wrong, and at least 1 more error-free one is needed there")
    nearly = Guarantee(0.99, 0.005, 0.95, 9999, 3, 10_000, 0.004)
    assert nearly.statement.startswith("answers 99.9 % of inputs with at most 0.5 % errors among them, at 95 % ")


@pytest.mark.parametrize("total", [0, 7, 44, 45, 180, 3000])
def test_what_is_said_to_be_needed_is_enough_and_no_more(total: int) -> None:
    wrong = torch.arange(total) % 4 == 1
    found = fixed_sequence(counts((torch.arange(total) + 1) / max(total, 1), wrong), RISK, CONFIDENCE)
    assert found.limit is None
    starts = starting_columns(total, RISK, CONFIDENCE)
    table = counts((torch.arange(total) + 1) / max(total, 1), wrong)
    levels = {int(table[0, column]): DELTA * share for column, share in starts.items()}
    for extra, passes in ((found.needed - 1, False), (found.needed, True)):
        answers = torch.tensor(found.answered + extra)
        bound = clopper_pearson_upper(torch.tensor(found.errors), answers, levels[found.answered])
        assert bool(bound <= RISK) is passes


def test_counts_that_are_no_counts() -> None:
    for bad in (table([5, 4], [0, 0]), table([4, 5], [0, 6]), table([4, 5], [-1, 0]), torch.full((2, 3), math.nan)):
        with pytest.raises(ValueError, match="inconsistent"):
            fixed_sequence(bad, RISK, CONFIDENCE)
    with pytest.raises(ValueError, match=r"\(2, J\)"):
        fixed_sequence(torch.zeros(3, 4), RISK, CONFIDENCE)
    for starts in ({}, {-1: 1.0}, {2: 1.0}, {0: 0.0}, {0: 0.7, 1: 0.7}):
        with pytest.raises(ValueError, match="starts"):
            fixed_sequence(table([4, 5], [0, 0]), RISK, CONFIDENCE, starts)
    for risk, confidence in ((0, 0.9), (1, 0.9), (0.1, 0), (0.1, 1)):
        with pytest.raises(ValueError, match="strictly between"):
            fixed_sequence(table([4, 5], [0, 0]), risk, confidence)


# Whether promises are kept, in simulated federations.

Inputs = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
Law = Callable[[int, int], Inputs]
"""Of `n` inputs of each of ten silos, from a seed: ranks and the probability of an error, silo by silo, per model."""


def ranked(generator: np.random.Generator, scores: np.ndarray, silo: int, model: str) -> Tensor:
    """Ranks among the silo's validation scores, which are the same in every federation."""
    reference = np.random.default_rng([silo, len(model)]).random(REFERENCE)
    return ranks(edges_of(torch.from_numpy(reference)), torch.from_numpy(scores))


def one_model(n: int, seed: int) -> Inputs:
    """Risk grows with the score; silos differ, and the last is bad even where it is most certain."""
    generator = np.random.default_rng(seed)
    rank, wrong = [], []
    for silo in range(SILOS):
        score = generator.random(n)
        bad = silo == SILOS - 1
        rank.append(ranked(generator, score, silo, "local"))
        wrong.append(torch.from_numpy(0.004 + 0.03 * bad + (0.25 + 0.02 * silo + 0.2 * bad) * score**3))
    return torch.cat(rank), None, torch.cat(wrong), None


def two_models(n: int, seed: int) -> Inputs:
    """A third of each silo's inputs is unknown to its own model, and the last silo's model does not notice."""
    generator = np.random.default_rng(seed)
    columns: list[tuple[Tensor, ...]] = []
    for silo in range(SILOS):
        difficulty, unknown = generator.random(n), generator.random(n) < 0.33
        noise = 0.6 * generator.random((2, n)) + 0.4 * difficulty
        local = np.where(unknown & (silo < SILOS - 1), 0.5 + 0.5 * noise[0], 0.6 * noise[0])
        columns.append(
            (
                ranked(generator, local, silo, "local"),
                ranked(generator, noise[1], silo, "global"),
                torch.from_numpy(np.where(unknown, 0.6, 0.005 + 0.1 * local**2)),
                torch.from_numpy(0.01 + 0.2 * noise[1] ** 3),
            )
        )
    return tuple(torch.cat(column) for column in zip(*columns, strict=True))  # type: ignore[return-value]


def promises(law: Law, n: int) -> dict[str, float]:
    """How often the guaranteed and the naive limit break the promise, and what they answer on average."""
    truth = policy_counts(*law(50_000, 0))
    risk, coverage = truth[1] / truth[0].clamp_min(1), truth[0] / truth[0, -1]
    r_local, r_global, *chances = law(n * FEDERATIONS, 1)
    generator = torch.Generator().manual_seed(2)
    wrong = [None if p is None else torch.rand(len(p), generator=generator, dtype=p.dtype) < p for p in chances]
    # Silo by silo, and each silo's inputs federation by federation, so that a federation is a slice per silo.
    per_federation = [
        None if t is None else t.view(SILOS, FEDERATIONS, n).transpose(0, 1).flatten(1)
        for t in (r_local, r_global, *wrong)
    ]
    broken, covered = {"guaranteed": 0.0, "naive": 0.0}, {"guaranteed": 0.0, "naive": 0.0}
    for federation in range(FEDERATIONS):
        summed = policy_counts(*(None if t is None else t[federation] for t in per_federation))
        guarantee = fixed_sequence(summed, RISK, CONFIDENCE)
        passing = (summed[1] <= RISK * summed[0]).nonzero().flatten()
        naive = int(passing[-1]) if len(passing) else None
        guaranteed = None if guarantee.limit is None else round(guarantee.limit * summed.shape[1]) - 1
        for rule, column in (("guaranteed", guaranteed), ("naive", naive)):
            if column is not None:
                broken[rule] += float(risk[column] > RISK) / FEDERATIONS
                covered[rule] += float(coverage[column]) / FEDERATIONS
    oracle = float(coverage[risk <= RISK].max())
    return {f"{rule} broken": broken[rule] for rule in broken} | {
        "guaranteed coverage": covered["guaranteed"],
        "naive coverage": covered["naive"],
        "oracle coverage": oracle,
    }


@pytest.mark.parametrize(("law", "sizes"), [(one_model, (50, 200, 1000)), (two_models, (50, 200, 500))])
@pytest.mark.long
def test_promises_are_kept_and_the_naive_limit_breaks_them(law: Law, sizes: tuple[int, ...]) -> None:
    allowed = DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / FEDERATIONS)
    found = [promises(law, n) for n in sizes]
    for result in found:
        assert result["guaranteed broken"] <= allowed
        assert result["naive broken"] > max(1.5 * allowed, 4 * result["guaranteed broken"])
        assert result["guaranteed coverage"] > 0.25 * result["oracle coverage"]
    coverage = [result["guaranteed coverage"] for result in found]
    assert coverage[0] < coverage[1] < coverage[2] <= found[2]["oracle coverage"]
    assert coverage[2] > 0.9 * found[2]["oracle coverage"]


def test_risk_of_the_two_model_law_falls_before_it_grows() -> None:
    """So that the simulation above is one where risk is not monotone in the limit."""
    answered, errors = policy_counts(*two_models(50_000, 0))
    risk = errors / answered.clamp_min(1)
    assert risk[1] > 1.5 * risk[9]
    assert risk[-1] > 4 * risk[9]
