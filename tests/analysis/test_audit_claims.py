"""Every finding of an audit, on runs whose uncertainties are known."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from caveat.analysis.audit import claim_tests, fusing_copied_opinions
from caveat.analysis.audit.calibration import among_seeds, among_silos, calibration
from caveat.analysis.audit.claim_tests import disagreement
from caveat.analysis.audit.run_predictions import Observation, Observed
from caveat.analysis.audit.seed_statistics import (
    Jackknifed,
    Spread,
    log_log_slope,
    partial_correlation,
    rank_correlation,
)
from caveat.core import Prediction
from caveat.core.text import MINUS
from caveat.files.schema import Summary
from caveat.html.audit_data_fractions import sweep_chart
from caveat.uncertainty import dirichlet, entropy

SEEDS = (0, 1, 2)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def observation(epistemic: Tensor, aleatoric: Tensor | None = None, probs: Tensor | None = None) -> Observation:
    aleatoric = uniform(len(epistemic), seed=99) if aleatoric is None else aleatoric
    probs = torch.full((len(epistemic), 2), 0.5, dtype=torch.float64) if probs is None else probs
    parts = {"epistemic": epistemic, "aleatoric": aleatoric, "total": epistemic + aleatoric}
    return Observation(probs, torch.zeros(len(epistemic), dtype=torch.int64), parts)


def rows(epistemic: Callable[[float, int], float], seeds: Sequence[int] = SEEDS) -> list[dict[str, float]]:
    """A row per size and seed, sizes not in order."""
    return [{"seed": s, "n": n, "epistemic": epistemic(n, s)} for n in (80.0, 10.0, 40.0, 20.0) for s in seeds]


# More data


@pytest.mark.parametrize(
    ("exponent", "verdict"), [(-1, "holds"), (-0.5, "holds"), (0, "does not hold"), (0.5, "does not hold")]
)
def test_powers_of_n_have_their_exponent(exponent: float, verdict: str) -> None:
    found = claim_tests.sample_size(rows(lambda n, seed: (1 + seed) * n**exponent), "epistemic")
    assert found.measured["exponent"]["by_seed"] == pytest.approx([exponent] * 3)
    assert found.measured["ratio_last_to_first"] == pytest.approx(8**exponent)
    assert found.verdict == verdict
    assert ("is not epistemic" in found.sentence) == (exponent >= 0)


def test_the_exponent_of_aleatoric_uncertainty_stands_beside_that_of_epistemic() -> None:
    made = [row | {"aleatoric": 3 * row["n"] ** -0.5} for row in rows(lambda n, seed: 1 / n)]
    assert claim_tests.sample_size(made, "epistemic").measured["aleatoric_exponent"]["by_seed"] == pytest.approx(
        [-0.5] * 3
    )
    assert "aleatoric_exponent" not in claim_tests.sample_size(rows(lambda n, seed: 1 / n), "epistemic").measured


def test_epistemic_uncertainty_that_is_practically_zero_is_said_though_it_falls() -> None:
    for share, zero in ((1e-4, True), (1e-2, False)):
        made = [row | {"total": row["epistemic"] / share} for row in rows(lambda n, seed: (1 + seed) / n)]
        found = claim_tests.sample_size(made, "epistemic")
        assert (found.verdict, found.measured["practically_zero"]) == ("holds", zero)
        assert ("practically zero: 0.010 % of total" in found.sentence) == zero


def test_a_slope_has_the_ratio_of_the_means_that_the_table_shows() -> None:
    made = [{"n": n, "seed": seed, "epistemic": value, "total": 1.0} for n, seed, value in
            ((14, 0, 0.10), (111.7, 0, 0.02), (14, 1, 0.02), (111.7, 1, 0.01))]  # fmt: skip
    assert "on 8 times the data it is multiplied by 0.25." in claim_tests.sample_size(made, "epistemic").sentence


@pytest.mark.parametrize(
    ("by_seed", "verdict", "words", "reason"),
    [
        ((-1, -1, -1), "holds", "falls, with", "A variance falls as"),
        ((-0.21, -0.2, -0.19), "does not hold", "falls slowly, with", "Epistemic uncertainty falls faster"),
        ((-0.1, -0.05, 0.03), "does not hold", "hardly falls, with", "Epistemic uncertainty falls faster"),
        ((0.1, 0.05, -0.03), "does not hold", "hardly rises, with", "is not epistemic"),
        ((0.11, 0.1, 0.09), "does not hold", "rises slowly, with", "is not epistemic"),
        ((0.6, 0.5, 0.4), "does not hold", "rises, with", "is not epistemic"),
        ((0, 0, 0), "does not hold", "stays the same, with", "is not epistemic"),
        (
            (-0.9, -0.2, 0.4),
            "cannot say",
            "falls slowly, with",
            "from -1.85 to 1.38 (95 % interval), on either side of",
        ),
        (
            (-0.91, -0.6),
            "cannot say",
            "falls, with",
            "from -2.72 to 1.21 (95 % interval), on either side of the limit -0.25",
        ),
        ((-0.2,), "cannot say", "falls slowly, with", "One seed has no spread"),
        ((-2,), "cannot say", "falls, with", "One seed has no spread"),
    ],
)
def test_the_words_for_a_slope_fit_its_numbers(by_seed: Sequence[float], verdict: str, words: str, reason: str) -> None:
    made = rows(lambda n, seed: n ** by_seed[seed], seeds=range(len(by_seed)))
    found = claim_tests.sample_size(made, "epistemic")
    assert found.verdict == verdict
    assert found.sentence.startswith(f"Mean epistemic uncertainty {words} n to the power of")
    assert reason.replace("-", MINUS) in found.sentence
    assert ("not epistemic" in found.sentence) == (reason == "is not epistemic")


def test_one_seed_and_seeds_that_disagree_decide_nothing() -> None:
    alone = claim_tests.sample_size(rows(lambda n, seed: 1 / n, seeds=[4]), "epistemic")
    torn = claim_tests.sample_size(rows(lambda n, seed: n ** -float(seed)), "epistemic")
    assert (alone.verdict, torn.verdict) == ("cannot say", "cannot say")
    assert alone.measured["exponent"]["mean"] == pytest.approx(-1)
    assert "One seed" in alone.sentence
    assert torn.sentence.endswith(f"on either side of the limit {MINUS}0.25.")


def test_no_uncertainty_has_no_slope() -> None:
    zero = claim_tests.sample_size(rows(lambda n, seed: 1e-15), "epistemic")
    assert (zero.verdict, zero.sentence) == ("cannot say", claim_tests.SILENT)
    single = claim_tests.sample_size([{"seed": s, "n": 10.0, "epistemic": 1.0} for s in SEEDS], "epistemic")
    assert single.verdict == "cannot say"


def test_the_interval_over_seeds_is_students() -> None:
    """Of 1, 2, 3: mean 2, deviation 1, and 4.302653 / sqrt(3) is half the width."""
    low, high = Spread((1.0, 2.0, 3.0)).interval
    assert (low, high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)
    assert math.isinf(Spread((1.0,)).half)


def test_a_slope_is_that_of_least_squares_on_logarithms() -> None:
    assert log_log_slope([1, math.e, math.e**2], [1, math.e**2, 1]) == pytest.approx(0)
    assert log_log_slope([1, math.e, math.e**2], [1, 1, math.e]) == pytest.approx(0.5)


# Aleatoric and epistemic


@pytest.mark.parametrize("turn", [1, -1])
def test_names_for_one_thing_are_found_out(turn: int) -> None:
    """Also through a function that changes from silo to silo, and where one is the other turned round."""
    runs: list[Observed] = [
        {s: observation(e := uniform(50, seed=seed), (turn * 3 * e + k).exp()) for k, s in enumerate("ab")}
        for seed in SEEDS
    ]
    found = claim_tests.two_things(runs)
    assert found.measured["rank_correlation"]["by_seed"] == pytest.approx([turn] * 3)
    assert found.verdict == "does not hold"
    assert ("one of them reversed" in found.sentence) == (turn < 0)


def test_two_things_are_two_things() -> None:
    found = claim_tests.two_things([{"a": observation(uniform(400, seed=s), uniform(400, seed=s + 10))} for s in SEEDS])
    assert found.verdict == "holds"
    assert abs(found.measured["rank_correlation"]["mean"]) < 0.1


def test_a_model_without_epistemic_uncertainty_is_told_so() -> None:
    runs: list[Observed] = [{"a": observation(torch.zeros(30, dtype=torch.float64))} for _ in SEEDS]
    for finding in (claim_tests.two_things, claim_tests.seeds_agree, disagreement):
        assert (finding(runs).verdict, finding(runs).sentence) == ("cannot say", claim_tests.SILENT)


def test_what_is_constant_ranks_nothing() -> None:
    assert rank_correlation(torch.ones(5), torch.arange(5)) is None
    assert rank_correlation(torch.arange(5), torch.arange(5) ** 3) == pytest.approx(1)
    assert claim_tests.two_things([{"a": observation(uniform(9), torch.ones(9))}] * 3).verdict == "cannot say"


# Seeds


def test_seeds_that_find_the_same_inputs_uncertain_agree() -> None:
    shared = uniform(200)
    runs: list[Observed] = [{"a": observation(shared * (1 + s) + 0.01 * uniform(200, seed=s))} for s in SEEDS]
    found = claim_tests.seeds_agree(runs)
    assert (found.verdict, found.measured["labels_changed"]) == ("holds", 0)
    assert found.measured["relative_spread"] == pytest.approx(0.5, abs=0.01)  # of 1, 2 and 3
    alone, pair = claim_tests.seeds_agree(runs[:1]), claim_tests.seeds_agree(runs[:2])
    assert (alone.verdict, alone.sentence) == ("cannot say", "One seed cannot be compared.")
    assert pair.verdict == "cannot say"
    assert "Two seeds make one pair" in pair.sentence
    assert "One seed" not in pair.sentence
    assert "over pairs" not in pair.sentence


def test_seeds_that_share_nothing_are_luck() -> None:
    probs = [torch.eye(2, dtype=torch.float64)[torch.full((200,), label)] for label in (0, 0, 1)]
    runs: list[Observed] = [{"a": observation(uniform(200, seed=s), probs=probs[s])} for s in SEEDS]
    found = claim_tests.seeds_agree(runs)
    assert (found.verdict, found.measured["labels_changed"]) == ("does not hold", pytest.approx(2 / 3))
    assert '%), less than to the seed. The alarm "unfamiliar" is of another score' in found.sentence
    runs = agreeing(6, 0.55, torch.Generator().manual_seed(0))
    found = claim_tests.seeds_agree(runs)
    assert found.verdict == "does not hold"
    assert found.measured["rank_correlation"]["high"] > 0.5
    assert "less than to the seed" not in found.sentence
    share = 100 * found.measured["rank_correlation"]["mean"]
    assert f" {share:.0f} % of the variance of ranks is due to the input (95 % interval " in found.sentence


@pytest.mark.parametrize(("honest", "verdict"), [(True, "holds"), (False, "does not hold")])
def test_epistemic_uncertainty_is_held_against_real_disagreement(honest: bool, verdict: str) -> None:
    """Models that scatter around 1/2 by as much as each says it does, or by what it says of another input."""
    says = uniform(2000)
    real = says if honest else says.flip(0)
    chances = [0.5 + 0.25 * real * (2 * uniform(2000, seed=5 + s) - 1) for s in SEEDS]
    runs: list[Observed] = [{"a": observation(says, probs=torch.stack([p, 1 - p], 1))} for p in chances]
    found = disagreement(runs)
    assert found.verdict == verdict
    assert abs(found.measured["aleatoric"]) < 0.1


def of_silos(*silos: tuple[int, float, float]) -> Summary:
    """Silos by test inputs, mean confidence and accuracy, all of it in one bin."""
    found = [
        {
            "name": f"silo-{i}",
            "reliability": {"count": [n], "confidence": [confidence * n], "correct": [round(accuracy * n)]},
        }
        for i, (n, confidence, accuracy) in enumerate(silos)
    ]
    return Summary.model_validate({"schema": 1, "method": "x", "rounds_run": 1, "complete": True, "silos": found})


FINE, OFF = (200, 0.9, 0.9), (200, 0.9, 0.5)


@pytest.mark.parametrize("count", [1, 9, 40])
def test_a_single_miscalibrated_silo_is_enough(count: int) -> None:
    """An ECE of .40, of which no number of silos or seeds made more than one finding of chance before."""
    for seeds in (2, 3, 8):
        found = calibration([of_silos(OFF, *[FINE] * (count - 1))] * seeds)
        assert found.verdict == "does not hold"
        assert "worst in silo-0 (by 0.3" in found.sentence
    assert calibration([of_silos(*[FINE] * count)] * 3).verdict == "holds"
    assert calibration([of_silos(OFF)]).verdict == "cannot say"


def test_calibration_errors_are_counted_in_whole_tests() -> None:
    said = calibration([of_silos(OFF, FINE, FINE)] * 3).sentence.replace("\N{NO-BREAK SPACE}", " ")
    assert "explains in 3 of 9 tests (3 silos with 3 seeds), where 0.45 are expected for a calibrated model." in said
    assert " above that of such a model. For all silos together p < 0.001." in said
    said = calibration([of_silos((100, 0.9, 0.9), (100, 0.9, 0.9))] * 3).sentence.replace("\N{NO-BREAK SPACE}", " ")
    assert "For all silos together p > 0.99." in said
    assert "0.000" not in said


def test_so_few_inputs_that_nothing_would_show_do_not_hold() -> None:
    found = calibration([of_silos((20, 0.9, 0.85))] * 3)
    assert (found.verdict, found.measured["p"] > 0.5) == ("cannot say", True)
    inputs, needed = found.measured["inputs"], found.measured["inputs_needed"]
    assert (inputs, needed) == (20, 320)
    assert calibration([of_silos((needed, 0.9, 0.9))] * 3).verdict == "holds"
    assert calibration([of_silos((needed // 4, 0.9, 0.9))] * 3).verdict == "cannot say"
    assert "confidences may be off by 0.05" in found.sentence


def test_what_small_silos_hide_is_not_said_to_hold() -> None:
    """An error of 0.05 or 0.06 at all of six silos of 100 inputs, which exceeds what chance shows by half of that."""
    for accuracy in (0.85, 0.84):
        found = calibration([of_silos(*[(100, 0.9, accuracy)] * 6)] * 3)
        assert found.verdict != "holds"
        assert found.measured["excess_at_most"] < 0.05  # by which alone it held
    assert calibration([of_silos(*[(2000, 0.9, 0.9)] * 6)] * 3).verdict == "holds"


def test_most_of_the_seeds_have_to_be_miscalibrated() -> None:
    off, fine = of_silos(*[OFF] * 3), of_silos(*[FINE] * 3)
    assert calibration([off, fine]).verdict == "cannot say"
    assert calibration([off, off, fine]).verdict == "does not hold"
    assert calibration([off, fine, fine]).verdict == "cannot say"


def test_p_values_of_calibrated_models_are_hardly_ever_small() -> None:
    """Of independent silos, and of seeds that share all, some or nothing of their test inputs."""
    generator = np.random.default_rng(0)
    silos = generator.random((4000, 9))
    assert np.mean([among_silos(ps) < 0.05 for ps in silos]) < 0.05
    assert among_silos([0.03]) == 0.03
    for shared in (0.0, 0.7, 1.0):
        normal = shared**0.5 * generator.standard_normal((4000, 1))
        normal = normal + (1 - shared) ** 0.5 * generator.standard_normal((4000, 5))
        assert np.mean([among_seeds(ps) < 0.05 for ps in norm.sf(normal)]) < 0.06
    assert among_seeds([0.01, 0.2, 0.02]) == pytest.approx(1.5 * 0.02)


@pytest.mark.long
def test_more_seeds_say_more_of_overconfidence() -> None:
    generator = np.random.default_rng(0)

    def found(seeds: int) -> str:
        summaries = [of_silos(*((400, 0.9, p) for p in generator.binomial(400, 0.87, 6) / 400)) for _ in range(seeds)]
        return calibration(summaries).verdict

    few, many = ([found(seeds) == "does not hold" for _ in range(25)] for seeds in (3, 9))
    assert np.mean(few) <= np.mean(many)
    assert np.mean(many) > 0.9


def agreeing(seeds: int, correlation: float, generator: torch.Generator) -> list[Observed]:
    """Models whose epistemic uncertainties correlate by about as much, some seeds' more and some less."""
    common, runs = torch.randn(300, generator=generator, dtype=torch.float64), list[Observed]()
    for _ in range(seeds):
        own = min(correlation + 0.1 * float(torch.randn(1, generator=generator)), 0.99)
        noise = torch.randn(300, generator=generator, dtype=torch.float64)
        runs.append({"a": observation((own**0.5 * common + (1 - own) ** 0.5 * noise).exp())})
    return runs


@pytest.mark.parametrize(("correlation", "verdict"), [(0.64, "does not hold"), (0.85, "holds")])
@pytest.mark.long
def test_more_seeds_say_more_of_whether_seeds_agree(correlation: float, verdict: str) -> None:
    """The range over pairs, which decided before, only ever grows: "cannot say" in 9 of 10 cases with 20 seeds."""
    generator = torch.Generator().manual_seed(0)
    shares = [
        np.mean(
            [claim_tests.seeds_agree(agreeing(seeds, correlation, generator)).verdict == verdict for _ in range(20)]
        )
        for seeds in (3, 6, 20)
    ]
    assert shares == sorted(shares)
    assert shares[-1] >= 0.75 > shares[0]


def test_the_jackknife_of_a_mean_is_students_interval() -> None:
    values = [0.2, 0.5, 0.9, 0.7]
    without = tuple((sum(values) - value) / 3 for value in values)
    assert Jackknifed(0.575, without).interval == pytest.approx(Spread(tuple(values)).interval)
    assert math.isinf(Jackknifed(0.5, (0.4, 0.6)).half)


def test_the_jackknife_over_seeds_covers_the_mean_over_pairs() -> None:
    """Of products of seeds' normal numbers around 1, whose mean over pairs is 1."""
    generator, covered = np.random.default_rng(0), 0
    for _ in range(600):
        x = 1 + 0.5 * generator.standard_normal(6)
        pairs = {(i, j): float(x[i] * x[j]) for i in range(6) for j in range(i)}
        low, high = Jackknifed(float(np.mean(list(pairs.values()))), claim_tests._means_without(pairs)).interval
        covered += low <= 1 <= high
    assert 0.91 < covered / 600 < 0.97


def in_doubt(seeds: int, honest: bool, generator: torch.Generator) -> list[Observed]:
    """Models that scatter about a common one by as much as each says, or all alike and each says its entropy."""
    common = 1.5 * torch.randn(300, generator=generator, dtype=torch.float64)
    scatter = 0.5 * (0.7 * torch.randn(300, generator=generator, dtype=torch.float64)).exp()
    scatter, runs = scatter if honest else torch.full_like(scatter, 0.5), list[Observed]()
    for _ in range(seeds):
        p = (common + scatter * torch.randn(300, generator=generator, dtype=torch.float64)).sigmoid()
        probs, noise = torch.stack([p, 1 - p], 1), torch.randn(300, generator=generator, dtype=torch.float64)
        said = scatter**2 * p * (1 - p) if honest else entropy(probs)
        runs.append({"a": observation(said * (0.3 * noise).exp(), entropy(probs), probs)})
    return runs


@pytest.mark.parametrize(("seeds", "found_out"), [(5, 5), (12, 10)])
def test_an_entropy_that_knows_nothing_of_disagreement_does_not_tell_it(seeds: int, found_out: int) -> None:
    """Though it correlates with it: where models are in doubt they differ. That alone made for "holds" before."""
    generator = torch.Generator().manual_seed(0)
    entropies = [disagreement(in_doubt(seeds, False, generator)) for _ in range(12)]
    assert min(found.measured["rank_correlation"]["mean"] for found in entropies) > 0.15
    assert {found.verdict for found in entropies} <= {"does not hold", "cannot say"}
    assert [found.verdict for found in entropies].count("does not hold") >= found_out
    assert {disagreement(in_doubt(seeds, True, generator)).verdict for _ in range(12)} == {"holds"}


def test_what_orders_inputs_as_aleatoric_uncertainty_does_adds_nothing() -> None:
    runs = in_doubt(4, False, torch.Generator().manual_seed(0))
    said = [run["a"].uncertainty["aleatoric"] for run in runs]
    same: list[Observed] = [
        {"a": observation(3 * each, each, run["a"].probs)} for each, run in zip(said, runs, strict=True)
    ]
    found = disagreement(same)
    assert (found.verdict, found.measured["partial"]["mean"]) == ("does not hold", 0)
    assert disagreement(same[:2]).verdict == "cannot say"
    assert "Two seeds are too few for the jackknife" in disagreement(same[:2]).sentence


def test_a_partial_correlation_is_that_of_what_is_left_of_both() -> None:
    generator = np.random.default_rng(0)
    c = generator.standard_normal(500)
    a, b = c + generator.standard_normal(500), c - 0.4 * generator.standard_normal(500)
    left = [x - np.polyval(np.polyfit(c, x, 1), c) for x in (a, b)]
    ab, ac, bc = (float(np.corrcoef(x, y)[0, 1]) for x, y in ((a, b), (a, c), (b, c)))
    assert partial_correlation(ab, ac, bc) == pytest.approx(float(np.corrcoef(*left)[0, 1]))


# Fusion with copies


def opinion(evidence: Sequence[float]) -> Observation:
    log_alpha = (torch.tensor([evidence], dtype=torch.float64) + 1).log()
    return Observation.of(Prediction.from_dirichlet(log_alpha), torch.zeros(1, dtype=torch.int64))


def test_evidence_is_found_again_in_a_prediction() -> None:
    found = fusing_copied_opinions.log_evidence(opinion([7.0, 0.0, 1e-3, 1e12])).exp()
    assert found[0].tolist() == pytest.approx([7, 0, 1e-3, 1e12], rel=1e-9, abs=1e-3)
    assert fusing_copied_opinions.log_evidence(opinion([2.0, 1.0]))[0].exp().tolist() == pytest.approx(
        [2, 1], rel=1e-12
    )


def test_copies_are_evidence_to_dempster_and_none_to_averaging() -> None:
    """With evidence for one class alone Dempster's rule multiplies 1 + e / K = 1 / u: k copies leave u^k."""
    runs: list[Observed] = [{"a": opinion([3.0, 0.0])} for _ in SEEDS]
    by_rule = fusing_copied_opinions.fused_with_copies(runs)
    dempster, averaging = (
        fusing_copied_opinions.copies_are_no_evidence(name, by_rule[name]) for name in fusing_copied_opinions.RULES
    )
    vacuity = [row["vacuity"] for row in dempster.measured["by_copies"][0]]
    assert vacuity == pytest.approx([0.4**k for k in range(1, 6)])
    assert (dempster.verdict, averaging.verdict) == ("does not hold", "holds")
    assert averaging.measured["vacuity_kept"]["mean"] == pytest.approx(1)
    assert dempster.measured["vacuity_kept"]["mean"] == pytest.approx(0.4**4)
    confidence = [row["confidence"] for row in dempster.measured["by_copies"][0]]
    assert confidence == pytest.approx([(2 / 0.4**k - 1) / (2 / 0.4**k) for k in range(1, 6)])


def test_opinions_without_evidence_do_not_hide_what_copies_do_to_others() -> None:
    evidence = torch.zeros(100, 2, dtype=torch.float64)
    evidence[0, 0] = 3.0
    seen = Observation.of(Prediction.from_dirichlet((evidence + 1).log()), torch.zeros(100, dtype=torch.int64))
    by_rule = fusing_copied_opinions.fused_with_copies([{"a": seen, "vacuous": opinion([0.0, 0.0])}] * 3)
    found = fusing_copied_opinions.copies_are_no_evidence("Dempster's rule", by_rule["Dempster's rule"])
    assert found.measured["by_copies"][0][-1]["vacuity"] > 0.99
    assert (found.verdict, found.measured["vacuity_kept"]["mean"]) == ("does not hold", pytest.approx(0.4**4))


def test_fusion_needs_opinions_that_hold_evidence() -> None:
    sampled: list[Observed] = [{"a": observation(uniform(5))}]
    assert fusing_copied_opinions.no_opinions(sampled) == fusing_copied_opinions.NO_DIRICHLET
    assert fusing_copied_opinions.no_opinions([{"a": opinion([1.0, 0.0])}]) is None
    found = fusing_copied_opinions.copies_are_no_evidence("averaging", fusing_copied_opinions.NO_DIRICHLET)
    assert (found.verdict, found.sentence) == ("does not apply", fusing_copied_opinions.NO_DIRICHLET)
    vacuous = fusing_copied_opinions.fused_with_copies([{"a": opinion([0.0, 0.0])}] * 3)
    assert fusing_copied_opinions.copies_are_no_evidence("averaging", vacuous["averaging"]).verdict == "cannot say"


def test_what_is_kept_of_a_dirichlet_is_its_vacuity() -> None:
    log_alpha = 3 * uniform(20, 4)
    seen = Observation.of(Prediction.from_dirichlet(log_alpha), torch.zeros(20, dtype=torch.int64))
    assert seen.means()["vacuity"] == pytest.approx(float(dirichlet.Dirichlet(log_alpha).vacuity.mean()))
    assert "dirichlet_entropy" not in seen.uncertainty


# The figure


def test_what_falls_as_a_variance_is_drawn_along_the_line_that_does() -> None:
    drawn = str(sweep_chart(rows(lambda n, seed: 0.3 / n)))
    ((x, y),) = re.findall(r'<line x1="[^"]*" y1="[^"]*" x2="([^"]*)" y2="([^"]*)" class="diagonal"', drawn)[1:]
    assert f'{x},{y}" class="stroke"' in drawn
    names = re.findall(r'<text x="([^"]*)" y="([^"]*)" text-anchor="start" class="note">([^<]*)<', drawn)
    assert [name for *_, name in names] == ["1/\N{SQUARE ROOT}n", "1/n"]
    assert all(float(left) > float(x) for left, *_ in names)
    assert float(names[0][1]) + 12 < float(names[1][1])
    assert sweep_chart(rows(lambda n, seed: 0.0)) is None


def test_an_interval_is_shown_within_what_a_number_can_be() -> None:
    spread = claim_tests.Spread((0.85, 0.999, 0.9))
    assert "from 0.73 to 1.00 (95 % interval)" in claim_tests.open_because("cannot say", 3, spread, 0.9, (-1, 1))
    for same in ((0.9, 0.9, 0.9), (math.nan, 0.9, 0.9)):
        assert "differ too much" in claim_tests.open_because("cannot say", 3, claim_tests.Spread(same), 0.9)
