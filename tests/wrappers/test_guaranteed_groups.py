"""Whose promise a silo has: on which scale scores are ranked, who is counted, what leaves a silo, what is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from federations import flat
from scipy.stats import binom
from told import OneTold, agreed, drawn, told_site
from torch import Tensor

from caveat.core import Answers, Data, Decision, Payload, Prediction, SiloContext, State
from caveat.core.errors import ConfigurationError
from caveat.methods import FedAvg
from caveat.uncertainty.histograms import histogram
from caveat.uncertainty.selective_risk import answers_needed, counts, fixed_sequence, limits, ranks, score_edges
from caveat.uncertainty.typicality import conformal
from caveat.wrappers.alarms import among_others
from caveat.wrappers.error_guarantee_policy import Guaranteed
from caveat.wrappers.guarantee_groups import domain_code
from caveat.wrappers.uncertainty_settings import Uncertainty

RISK, CONFIDENCE, DELTA = 0.05, 0.9, 0.1
HARDNESS = (0.1, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 2.6)


def decided(method: Guaranteed, server: State, state: State, context: SiloContext, x: Tensor) -> Tensor:
    return method.predict(method.broadcast(server), state, context, x).decision != Decision.ABSTAIN


def told_promise(method: Guaranteed, server: State, state: State, context: SiloContext) -> dict[str, Any]:
    described = method.describe(method.broadcast(server), state, context, context.calibration.x)
    found = method.summarize(described)["promise"]
    assert isinstance(found, dict)
    return found


def test_a_limit_means_the_same_at_all_silos() -> None:
    """An easy silo answers nearly everything and a hard one little, at most 5 % of all of it wrong."""
    method = Guaranteed(OneTold())
    sites = [told_site(f"silo-{k}", 240, hardness, seed=k) for k, hardness in enumerate(HARDNESS)]
    server, states = agreed(method, sites)
    fresh = {f"silo-{k}": drawn(4000, h, torch.Generator().manual_seed(100 + k)) for k, h in enumerate(HARDNESS)}
    given = {context.id: decided(method, server, states[context.id], context, fresh[context.id].x) for context in sites}
    share = [float(each.double().mean()) for each in given.values()]
    assert share[0] > 0.95
    assert share[-1] < 0.7
    x, y = (torch.cat([getattr(each, part) for each in fresh.values()]) for part in ("x", "y"))
    answered = torch.cat(list(given.values()))
    assert float((x[answered, 1] != y[answered]).double().mean()) <= RISK
    order = x[:, 0].argsort()
    risk = (x[order, 1] != 0).double().cumsum(0) / torch.arange(1, len(x) + 1)
    oracle = float((risk <= RISK).nonzero().max() + 1) / len(x)
    assert float(answered.double().mean()) > 0.9 * oracle


def test_every_silo_has_a_promise_of_its_own() -> None:
    method = Guaranteed(OneTold(), guarantee_scope="silo")
    sites = [told_site(f"silo-{k}", 300, hardness, seed=k, domain=f"d{k}") for k, hardness in enumerate((0.1, 0.5))]
    server, states = agreed(method, sites)
    for context, least in zip(sites, (0.95, 0.3), strict=True):
        found = told_promise(method, server, states[context.id], context)
        x, y = context.calibration
        edges = score_edges("total", histogram("total", context.validation.x[:, 0]))
        alone = fixed_sequence(counts(ranks(edges, x[:, 0]), x[:, 1] != y), RISK, CONFIDENCE)
        assert (found["whose"], found["limit"], found["total"]) == ("silo", alone.limit, 300)
        assert found["statement"] == f"for this silo by itself: {alone.statement}, for each guarantee by itself"
        answered = decided(method, server, states[context.id], context, x)
        assert int(answered.sum()) == alone.answered > least * 300


@pytest.mark.parametrize("flipped", [False, True])
def test_too_few_inputs_have_the_promise_of_the_next_larger_group_whatever_their_labels(flipped: bool) -> None:
    method = Guaranteed(OneTold(), guarantee_scope="silo")
    few = method.least - 1
    assert method.least == answers_needed(1, RISK, DELTA) == 77
    sites = [
        told_site("a", few, 0.1, seed=0, domain="north"), told_site("b", 300, 0.1, seed=1, domain="north"),
        told_site("e", 40, 0.1, seed=4, domain="north"),
        told_site("c", few, 0.1, seed=2, domain="south"), told_site("d", few + 1, 0.1, seed=3, domain="west"),
    ]  # fmt: skip
    if flipped:
        sites = [replace(s, calibration=Data(s.calibration.x, 1 - s.calibration.y)) for s in sites]
    server, states = agreed(method, sites)
    found = {context.id: told_promise(method, server, states[context.id], context) for context in sites}
    assert {name: each["whose"] for name, each in found.items()} == {
        "a": "domain", "b": "silo", "c": "federation", "d": "silo", "e": "domain"
    }  # fmt: skip
    assert {name: each["total"] for name, each in found.items()} == {
        "a": few + 40, "b": 300, "c": few, "d": 77, "e": few + 40
    }  # fmt: skip
    assert found["a"]["statement"].startswith(
        "for the silos like it of its domain together, mixed in the proportions of their calibration inputs, not "
        "this silo by itself "
        "(its 76 calibration inputs are fewer than the 77 needed for its own guarantee): "
    )
    assert found["c"]["statement"].startswith(
        "for all silos like it together, mixed in the proportions of their calibration inputs, not"
    )


def test_domains_are_counted_apart_and_ranked_by_their_own_scores() -> None:
    method = Guaranteed(OneTold(), guarantee_scope="domain")
    sites = [
        told_site("a", 200, 0.1, seed=0, domain="easy"), told_site("b", 200, 1.0, seed=1, domain="hard"),
        told_site("c", 150, 0.1, seed=2, domain="easy"), told_site("e", 40, 0.1, seed=3, domain="small"),
    ]  # fmt: skip
    server, states = agreed(method, sites)
    found = {context.id: told_promise(method, server, states[context.id], context) for context in sites}
    assert [found[name]["total"] for name in "abce"] == [350, 200, 350, 40]
    assert [found[name]["whose"] for name in "abce"] == ["domain", "domain", "domain", "federation"]
    easy = [context for context in sites if context.domain == "easy"]
    edges = score_edges("total", sum(histogram("total", context.validation.x[:, 0]) for context in easy))
    parts = [counts(ranks(edges, s.calibration.x[:, 0]), s.calibration.x[:, 1] != 0) for s in easy]
    assert found["a"]["limit"] == fixed_sequence(torch.stack(parts).sum(0), RISK, CONFIDENCE).limit
    outcome: Any = method.outcome(server)
    assert outcome["policy"]["guarantee_scope"] == "domain"
    assert outcome["guarantee"]["statement"].startswith(
        "every domain has its own guarantee, at 90 % confidence for each guarantee by itself; with fewer than 77 "
        "calibration inputs, the guarantee of a group of such silos, the largest of which "
    )


@pytest.mark.parametrize(("guarantee_scope", "rows"), [("federation", 1), ("domain", 2), ("silo", 2)])
def test_what_leaves_a_silo_are_histograms_and_counts(guarantee_scope: Any, rows: int) -> None:
    method = Guaranteed(OneTold(), guarantee_scope=guarantee_scope)
    context = told_site("a", 100, 0.5, seed=0, domain="north")
    server, state = method.init_server(context), {}
    shapes = []
    for task in (method.survey, method.count):
        update, state = task(method.broadcast(server), state, context)
        shapes.append({name: tuple(tensor.shape) for name, tensor in flat(update.payload).items()})
    domain = {} if guarantee_scope == "federation" else {"decision/domain": (4,)}
    counted = {"decision/counts": (rows, 2, 100), "decision/inputs": (rows,)}
    assert shapes == [domain | {"decision/scores.global": (4096,)}, domain | counted]
    assert ("limits" in state["decision"]) == (guarantee_scope == "silo")


def test_promises_that_hold_at_once_are_tested_at_a_share_of_the_level() -> None:
    sites = [told_site(f"silo-{k}", 400, 0.4, seed=k) for k in range(4)]
    by_itself, at_once = (Guaranteed(OneTold(), guarantee_scope="silo", familywise=each) for each in (False, True))
    found = []
    for method, confidence in ((by_itself, CONFIDENCE), (at_once, 1 - DELTA / 4)):
        server, states = agreed(method, sites)
        told = told_promise(method, server, states["silo-0"], sites[0])
        summed = states["silo-0"]["decision"]["summed"][0]
        assert told["limit"] == fixed_sequence(summed, RISK, confidence).limit
        assert told["confidence_level"] == CONFIDENCE
        found.append(told)
    assert found[1]["answered"] < found[0]["answered"]
    assert found[0]["statement"].endswith("for each guarantee by itself")
    assert found[1]["statement"].endswith("for all guarantees at once")


def test_nothing_is_promised_about_a_silo_that_was_not_counted_and_the_others_stay_alike() -> None:
    method = Guaranteed(OneTold(), guarantee_scope="silo")
    sites = [told_site(f"silo-{k}", 200, 0.2, seed=k) for k in range(3)]
    server, states = agreed(method, sites[:2])
    assert not decided(method, server, {}, sites[2], sites[2].calibration.x).any()
    told = [
        method.describe(method.broadcast(server), states.get(context.id, {}), context, context.train.x)
        for context in sites
    ]
    assert told[2].keys() == told[0].keys()
    assert "promise" in method.summarize(told[0])
    assert "promise" not in method.summarize(told[2])


@dataclass(frozen=True)
class Alarmed(OneTold):
    """Calls unfamiliar what it is surest of."""

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        answers = super().answer(down, state, context, x)
        familiarity = torch.where(x[:, 0] < 0.1, 0.04, 0.06).double()
        p_values = dict.fromkeys(("familiarity", "nearness", "sureness", "typicality"), familiarity)
        return {w: replace(each, **p_values, false_alarm_rate=0.05, ranked_among=len(x)) for w, each in answers.items()}


@pytest.mark.parametrize("guarantee_scope", ["federation", "silo"])
def test_what_is_unfamiliar_is_left_out_of_counts_and_decisions_alike(guarantee_scope: Any) -> None:
    context = told_site("a", 2000, 0.3, seed=0)
    refused = context.calibration.x[:, 0] < 0.1
    assert refused.any()
    for base in (Alarmed(), OneTold()):
        method = Guaranteed(base, guarantee_scope=guarantee_scope)
        server, states = agreed(method, [context])
        given = decided(method, server, states["a"], context, context.calibration.x)
        kept = (states["a"] if guarantee_scope == "silo" else server)["decision"]
        counted, column = kept["summed"][0], round(float(kept["limits"][0]) * 100) - 1
        assert int(counted[0, column]) == int(given.sum()) > 500
        is_unfamiliar = isinstance(base, Alarmed)
        assert bool((given & refused).any()) is not is_unfamiliar
        assert counted[0, -1] == 2000 - int(refused.sum()) * is_unfamiliar
        assert (states["a"] if guarantee_scope == "silo" else server)["decision"]["totals"][0] == 2000


def test_a_calibration_input_is_judged_as_a_new_one_among_the_others() -> None:
    """Of n + 1 inputs alike each is called unfamiliar as often, whichever is new; ranked with itself it never was."""
    generator = torch.Generator().manual_seed(0)
    n, draws = 19, 2000
    new, own = [], []
    for _ in range(draws):
        far = torch.randn(n + 1, 1, generator=generator)
        calibration = Prediction(torch.full((n, 2), 0.5), {}, torch.zeros(n, dtype=torch.long))
        ranked = replace(calibration, typicality=conformal(far[:n], far[:n]), false_alarm_rate=0.05, ranked_among=n)
        assert not ranked.alarms.any()
        own.append(float(among_others(ranked).alarms.double().mean()))
        new.append(float((conformal(far[:n], far[n:]) <= 0.05).double().mean()))
    assert float(torch.tensor(own).mean()) == pytest.approx(float(torch.tensor(new).mean()), abs=0.02)


def test_calibration_inputs_with_equal_scores_are_counted_if_a_new_input_like_them_is_answered() -> None:
    """Five equal distances fill the places of alarms among 99; a sixth input like them has a p-value of 6 %."""
    distances = torch.cat([torch.zeros(94), torch.full((5,), 9.0)])[:, None].double()
    p = conformal(distances, distances)
    assert p[-5:].tolist() == pytest.approx([0.06] * 5)
    calibration = Prediction(torch.full((99, 2), 0.5), {}, torch.zeros(99, dtype=torch.long))
    counted = among_others(replace(calibration, typicality=p, false_alarm_rate=0.05, ranked_among=99))
    assert not counted.alarms.any()
    different = distances + torch.arange(99.0).double()[:, None] / 1000
    alone = replace(calibration, typicality=conformal(different, different), false_alarm_rate=0.05, ranked_among=99)
    assert int(among_others(alone).alarms.sum()) == 5


def test_easy_silos_do_not_vouch_for_those_that_have_too_few_inputs() -> None:
    """The promise of silos with too few calibration inputs is tested on such silos alone."""
    method = Guaranteed(OneTold(), guarantee_scope="silo")
    easy = [told_site(f"easy-{k}", 400, 0.05, seed=k) for k in range(4)]
    hard = [told_site(f"hard-{k}", 7, 1.0, seed=10 + k) for k in range(20)]
    server, states = agreed(method, [*easy, *hard])
    found = told_promise(method, server, states["hard-0"], hard[0])
    assert (found["whose"], found["total"]) == ("domain", 140)
    answered = torch.cat([decided(method, server, states[s.id], s, s.calibration.x) for s in hard])
    wrong = torch.cat([s.calibration.x[:, 1] != 0 for s in hard])
    assert float(wrong[answered].double().mean() if answered.any() else 0.0) <= RISK


def test_settings_of_groups() -> None:
    asked = Uncertainty(policy="guaranteed", guarantee_scope="silo", familywise=True)
    method = asked.around(FedAvg())
    assert isinstance(method, Guaranteed)
    assert (method.guarantee_scope, method.familywise) == ("silo", True)
    with pytest.raises(
        ConfigurationError, match=r"uncertainty\.familywise = true has no effect with a single guarantee"
    ):
        Uncertainty(policy="guaranteed", familywise=True).around(FedAvg())
    with pytest.raises(
        ConfigurationError, match=r"uncertainty\.guarantee_scope = 'silo' is not used by policy 'switch'"
    ):
        Uncertainty(policy="switch", guarantee_scope="silo")


def test_codes_of_domains_tell_them_apart() -> None:
    codes = {tuple(domain_code(name).tolist()) for name in ("", "north", "south", "noord")}
    assert len(codes) == 4
    assert all(0 <= number < 2**16 for code in codes for number in code)


# Whether promises are kept, in simulated silos: exact in everything but the draws of calibration inputs.

Law = Callable[[Tensor], Tensor]
LAWS: dict[str, tuple[float, Law]] = {
    "easy": (0.1, lambda score: score**3 / 2),
    "usual": (0.4, lambda score: score**3 / 2),
    "2.6 times the errors": (0.4, lambda score: 1.3 * score**3),
    "at the promise": (1.0, lambda score: torch.full_like(score, RISK)),
    "a little above it": (1.0, lambda score: torch.full_like(score, 0.06)),
    "surest are worst": (1.0, lambda score: torch.where(score < 0.3, 0.12, 0.01)),
}


@pytest.mark.parametrize("n", [60, 100, 300])
@pytest.mark.long
def test_every_silo_s_promise_is_kept(n: int) -> None:
    """The probability of a broken promise is at most 10 % for every silo by itself, whatever its errors are like."""
    draws = 400
    allowed = binom.ppf(0.999, draws, DELTA) / draws
    for seed, (name, (hardness, law)) in enumerate(LAWS.items()):
        generator = torch.Generator().manual_seed(1000 * n + seed)
        seen, fresh = (1 - torch.rand(size, generator=generator) ** hardness for size in (n, 40_000))
        edges = score_edges("total", histogram("total", seen))
        rank = ranks(edges, fresh)[:, None] <= limits()
        risk = (rank * law(fresh).clamp(0, 1)[:, None]).sum(0) / rank.sum(0).clamp_min(1)
        broken = 0
        for _ in range(draws):
            score = 1 - torch.rand(n, generator=generator) ** hardness
            wrong = torch.rand(n, generator=generator) < law(score).clamp(0, 1)
            found = fixed_sequence(counts(ranks(edges, score), wrong), RISK, CONFIDENCE)
            if found.limit is not None:
                broken += bool(risk[round(found.limit * 100) - 1] > RISK)
        assert broken / draws <= allowed, name


def test_with_enough_inputs_a_silo_answers_most_of_what_could_be() -> None:
    hardness, answered = 0.4, {}
    generator = torch.Generator().manual_seed(0)
    score = (1 - torch.rand(100_000, generator=generator) ** hardness).sort().values
    risk = (score**3 / 2).cumsum(0) / torch.arange(1, len(score) + 1)
    oracle = float((risk <= RISK).double().mean())
    assert oracle > 0.75
    for n in (100, 200, 400):
        shares = []
        for _ in range(200):
            data, seen = drawn(n, hardness, generator), drawn(n, hardness, generator)
            edges = score_edges("total", histogram("total", seen.x[:, 0]))
            found = fixed_sequence(counts(ranks(edges, data.x[:, 0]), data.x[:, 1] != 0), RISK, CONFIDENCE)
            shares.append(found.coverage)
        answered[n] = float(np.mean(shares)) / oracle
    assert answered[100] > 0.25
    assert answered[200] > 0.75
    assert answered[400] > 0.85
