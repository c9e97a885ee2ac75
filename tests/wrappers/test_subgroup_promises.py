"""Promises by subgroup hold for each subgroup, where promises about all inputs do not; what leaves a silo for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_prediction_sets import Logits
from told import NONE, OneTold, agreed
from torch import Tensor

from caveat.core import Data, Decision, Method, SiloContext, State
from caveat.core.errors import ConfigurationError
from caveat.methods import FedAvg
from caveat.wrappers.base import find
from caveat.wrappers.error_guarantee_policy import Guaranteed
from caveat.wrappers.prediction_sets import Conformal
from caveat.wrappers.uncertainty_settings import Uncertainty

NAMES = ("sex = f", "sex = m")
RISK, DELTA, COVERAGE = 0.05, 0.1, 0.9
LABELS = torch.long


def told(n: int, share: float, generator: torch.Generator, flipped: bool = False) -> tuple[Data, Tensor]:
    """Inputs and their subgroups: subgroup 0, a `share` of them, has three times the errors of 1 at any score."""
    subgroup = (torch.rand(n, generator=generator) >= share).long()
    score = torch.rand(n, generator=generator)
    wrong = torch.rand(n, generator=generator) < torch.where(subgroup == 0, 0.3, 0.1) * score
    wrong = ~wrong if flipped else wrong
    return Data(torch.stack([score, wrong.float()], 1), torch.zeros(n, dtype=LABELS)), subgroup


def site(name: str, n: int, share: float, seed: int, domain: str = "", flipped: bool = False) -> SiloContext:
    generator = torch.Generator().manual_seed(seed)
    (seen, of_seen), (calibration, of) = (told(n, share, generator, flipped) for _ in range(2))
    subgroups = {"train": of_seen, "validation": of_seen, "calibration": of}
    return SiloContext(name, seen, seen, calibration, NONE, domain=domain, subgroups=subgroups)


def without(context: SiloContext, subgroup: int, keep: int) -> SiloContext:
    """The same silo with `keep` calibration inputs of a subgroup."""
    of = context.subgroups["calibration"]
    kept = torch.cat([(of != subgroup).nonzero()[:, 0], (of == subgroup).nonzero()[:keep, 0]]).sort().values
    return replace(
        context, calibration=context.calibration.part(kept), subgroups={**context.subgroups, "calibration": of[kept]}
    )


def answered(method: Method, server: State, state: State, context: SiloContext, x: Tensor, of: Tensor) -> Tensor:
    found = method.predict(method.broadcast(server), state, replace(context, subgroup=of), x)
    return found.decision != Decision.ABSTAIN


@pytest.mark.parametrize("scope", ["federation", "silo"])
@pytest.mark.parametrize("familywise", [False, True])
def test_a_guarantee_holds_for_each_subgroup_where_that_of_all_inputs_does_not(scope: Any, familywise: bool) -> None:
    data, of = told(20_000, 0.5, torch.Generator().manual_seed(999))
    wrong, draws = data.x[:, 1] != 0, 60
    broken = {"by subgroup": torch.zeros(2), "all together": torch.zeros(2)}
    for draw in range(draws):
        sites = [site(f"silo-{k}", 1000, 0.25, 10 * draw + k) for k in range(2)]
        for name, subgroups in (("by subgroup", NAMES), ("all together", ())):
            method = Guaranteed(OneTold(), guarantee_scope=scope, familywise=familywise and bool(subgroups),
                                subgroups=subgroups)  # fmt: skip
            server, states = agreed(method, sites)
            given = answered(method, server, states["silo-0"], sites[0], data.x, of)
            for g in range(2):
                there = given & (of == g)
                broken[name][g] += float(wrong[there].double().mean()) > RISK if there.any() else 0.0
    share = {name: (count / draws).tolist() for name, count in broken.items()}
    # 60 draws of an event of probability .1: more than .22 of them in one of 200 cases.
    assert max(share["by subgroup"]) <= 0.22
    assert share["all together"][0] > 0.6


@pytest.mark.parametrize("flipped", [False, True])
def test_a_subgroup_with_too_few_inputs_is_pooled_whatever_their_labels(flipped: bool) -> None:
    method = Guaranteed(OneTold(), subgroups=("a", "b"))
    sites = [without(site(f"silo-{k}", 300, 0.3, k, flipped=flipped), 0, 38) for k in range(2)]
    server, _ = agreed(method, sites)
    outcome: Any = method.outcome(server)["guarantee"]
    total = sum(len(each.calibration) for each in sites)
    assert method.least == 77
    assert server["decision"]["pools"].tolist() == [[0, 0]]
    (pool,) = outcome["subgroups"]
    assert (pool["of"], pool["total"], outcome["total"]) == (["a", "b"], total, total)
    assert pool["statement"].startswith(
        "for a and b together, not each by itself, with fewer than the 77 calibration inputs that one needs: "
    )
    enough = [without(site(f"silo-{k}", 300, 0.3, k, flipped=flipped), 0, 39) for k in range(2)]
    server, _ = agreed(method, enough)
    assert server["decision"]["pools"].tolist() == [[0, 1]]
    outcome = method.outcome(server)["guarantee"]
    assert [(each["of"], each["total"]) for each in outcome["subgroups"]] == [(["a"], 78), (["b"], total - 76)]


def test_an_input_without_a_subgroup_has_the_guarantee_of_all_inputs() -> None:
    sites = [site(f"silo-{k}", 600, 0.3, k) for k in range(2)]
    by_subgroup, whole = Guaranteed(OneTold(), subgroups=NAMES), Guaranteed(OneTold())
    (server, states), (plain, plain_states) = agreed(by_subgroup, sites), agreed(whole, sites)
    data, of = told(500, 0.5, torch.Generator().manual_seed(5))
    unknown = torch.full_like(of, -1)
    expected = answered(whole, plain, plain_states["silo-0"], sites[0], data.x, of)
    assert torch.equal(answered(by_subgroup, server, states["silo-0"], sites[0], data.x, unknown), expected)
    missing = by_subgroup.predict(by_subgroup.broadcast(server), states["silo-0"], sites[0], data.x)
    assert torch.equal(missing.decision != Decision.ABSTAIN, expected)
    mixed = answered(by_subgroup, server, states["silo-0"], sites[0], data.x, torch.where(of == 0, of, -1))
    known = answered(by_subgroup, server, states["silo-0"], sites[0], data.x, of)
    assert torch.equal(mixed, torch.where(of == 0, known, expected))


def test_a_domain_and_a_silo_tell_the_guarantees_of_their_subgroups() -> None:
    for scope in ("domain", "silo"):
        method = Guaranteed(OneTold(), guarantee_scope=scope, subgroups=NAMES)  # type: ignore[arg-type]
        sites = [site(f"silo-{k}", 500, 0.4, k, domain=f"d{k}") for k in range(2)]
        sites.append(site("small", 40, 0.4, 7, domain="d1"))
        server, states = agreed(method, sites)
        down = method.broadcast(server)
        for context in sites:
            described = method.describe(down, states[context.id], context, context.calibration.x)
            found: Any = method.summarize(described)["promise"]
            alone = context.id != "small" or scope == "domain"
            expected = [["sex = f"], ["sex = m"]] if alone else [[*NAMES]]
            assert [each["of"] for each in found["subgroups"]] == expected
            assert sum(each["total"] for each in found["subgroups"]) == found["total"]


def labelled(n: int, generator: torch.Generator) -> tuple[Data, Tensor]:
    """Inputs of 5 classes and their subgroups: the model is far too sure of subgroup 0, a fifth of the inputs."""
    subgroup = (torch.rand(n, generator=generator) >= 0.2).long()
    x = 2 * torch.randn(n, 5, generator=generator)
    sharp = torch.where(subgroup == 0, 0.2, 1.5)[:, None]
    return Data(x, torch.multinomial((sharp * x).softmax(-1), 1, generator=generator)[:, 0]), subgroup


@pytest.mark.parametrize(("silos", "each"), [(1, 200), (30, 8)])
def test_sets_hold_the_label_of_each_subgroup_as_often_as_promised(silos: int, each: int) -> None:
    """By a silo's own quantiles, and by those of silos with too few inputs together."""
    covered = {NAMES: [torch.zeros(2)], (): [torch.zeros(2)]}
    for draw in range(40):
        generator = torch.Generator().manual_seed(draw)
        sites = []
        for k in range(silos):
            data, of = labelled(each, generator)
            split = dict.fromkeys(("train", "validation", "calibration"), of)
            sites.append(SiloContext(f"silo-{k}", data, data, data, NONE, subgroups=split))
        fresh, of = labelled(2000, generator)
        for subgroups, found in covered.items():
            method = Conformal(Logits(), COVERAGE, subgroups)
            server, states = agreed(method, sites)
            asked = replace(sites[0], subgroup=of)
            sets = method.predict(method.broadcast(server), states["silo-0"], asked, fresh.x).sets
            assert sets is not None
            held = sets.gather(1, fresh.y[:, None])[:, 0]
            found.append(torch.stack([held[of == g].double().mean() for g in range(2)]))
    means = {subgroups: torch.stack(found[1:]).mean(0).tolist() for subgroups, found in covered.items()}
    assert min(means[NAMES]) > COVERAGE - 0.015
    assert means[()][0] < 0.75


def test_a_silo_pools_a_subgroup_with_too_few_inputs_for_its_own_sets() -> None:
    method = Conformal(Logits(), COVERAGE, NAMES)
    generator = torch.Generator().manual_seed(0)
    data, _ = labelled(30, generator)
    of = torch.tensor([0] * 8 + [1] * 22)
    context = SiloContext("a", data, data, data, NONE, subgroups=dict.fromkeys(("validation", "calibration"), of))
    _, states = agreed(method, [context])
    assert method.least == 9
    kept = states["a"]["sets"]
    assert kept["pools"].tolist() == [0, 0]
    assert kept["limit"][0] == kept["limit"][1]
    of = torch.tensor([0] * 9 + [1] * 21)
    context = replace(context, subgroups=dict.fromkeys(("validation", "calibration"), of))
    kept = agreed(method, [context])[1]["a"]["sets"]
    assert kept["pools"].tolist() == [0, 1]
    assert kept["limit"][1] != kept["limit"][2]


def test_counts_by_subgroup_that_are_impossible_are_refused() -> None:
    from caveat.core.silo import SiloInfo

    card = SiloInfo("a", "", {"train": 9, "validation": 10, "calibration": 10, "test": 1}, (5, 4))
    counts = torch.zeros(3, 4096, dtype=torch.float64)
    counts[:, 0] = torch.tensor([10.0, 4.0, 6.0])
    conformal = Conformal(Logits(), COVERAGE, NAMES)
    assert conformal.wrong({"sets": {"surprise": counts}}, card) == ""
    counts[2, 0] = 7
    assert "surprise of subgroups" in conformal.wrong({"sets": {"surprise": counts}}, card)
    guaranteed = Guaranteed(OneTold(), subgroups=NAMES)
    assert "subgroups" in guaranteed.wrong_survey({"decision": {"scores.global": counts}}, card)
    sizes = torch.tensor([10.0, 9.0, 2.0])
    assert "sizes" in guaranteed.wrong_survey({"decision": {"sizes": sizes}}, card)


def test_settings_of_subgroups() -> None:
    settings = Uncertainty(policy="guaranteed", set_coverage=0.9)
    method = settings.around(FedAvg(), subgroups=NAMES)
    for kind in (Conformal, Guaranteed):
        found = find(method, kind)
        assert found is not None
        assert found.subgroups == NAMES
    plain = replace(settings, by_subgroup=False).around(FedAvg(), subgroups=NAMES)
    assert plain == settings.around(FedAvg())
    Uncertainty(policy="guaranteed", familywise=True).around(FedAvg(), subgroups=NAMES)
    with pytest.raises(ConfigurationError, match="cannot be combined with sets by subgroup"):
        Uncertainty(set_coverage=0.9, label_shift=True).around(FedAvg(), subgroups=NAMES)
