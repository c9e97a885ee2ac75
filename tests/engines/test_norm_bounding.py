"""Updates longer than the bound are scaled down or count as no change; all others keep their bits, on every engine."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from federations import ADAM, METHODS, WRAPPED, Federation, assert_same, model, silos
from flower_grid import Silos
from sampled import different
from torch import nn

from caveat.core import Data, Method, Payload, Round, SiloContext, State, Update
from caveat.core.errors import Diverged
from caveat.engines import norm_bounding, sums_on_arrival
from caveat.engines.norm_bounding import NOTHING, TIMES, WINDOW, Admission, NormBound
from caveat.engines.single_machine import SingleMachineEngine
from caveat.engines.sums_on_arrival import StreamingMean
from caveat.engines.vectorization import Vectorization
from caveat.methods import SCAFFOLD, FedAvg, FedProto

COUNT = 9


@dataclass(frozen=True)
class Liar(FedAvg):
    """FedAvg in which one silo multiplies its weights, or what it changed, from some round on."""

    times: float = 1e5
    since: int = 0
    change: bool = False

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        update, after = super().train(down, state, context)
        if context.id != "silo-4" or context.round < self.since:
            return update, after
        sent, told = down["model"], {}
        for name, tensor in update.payload["model"].items():
            known = sent[name] if self.change else torch.zeros_like(tensor)
            lie = known + self.times * (tensor - known)
            told[name] = lie if tensor.is_floating_point() and not name.endswith("running_var") else tensor
        return Update({"model": told}, update.examples), after


@dataclass(frozen=True)
class Kept(Liar):
    """The same without sums on the way."""

    linear = None


def nine(method: Method, folder: Path, workers: int = 1, bound: NormBound | None = None) -> Federation:
    federation = Federation(method, folder, workers, data=silos(COUNT))
    federation.run(norms=bound)
    return federation


def moves(federation: Federation) -> float:
    return max(float(t.double().abs().max()) for t in federation.server["model"].values())


@pytest.mark.parametrize("method", different(METHODS + WRAPPED), ids=lambda method: type(method).__name__)
@pytest.mark.long
def test_what_is_within_the_bound_has_the_bits_of_no_bound(method: Method, tmp_path: Path) -> None:
    bound = NormBound()
    off, on = Federation(method, tmp_path / "off"), Federation(method, tmp_path / "on")
    off.run()
    on.run(norms=bound)
    assert not [silo for done in on.done for silo, noted in done.noted.items() if noted.times_bound is not None]
    assert_same(off.server, on.server)
    bounded = any(rounds for task in bound.kept.values() for rounds in task.values())
    assert bounded == (method.federated and "fedproto" not in method.name)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", [Liar, Kept])
def test_a_malicious_silo_moves_the_model_little_and_is_named_whoever_answers_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, kind: type[Liar]
) -> None:
    monkeypatch.setattr(sums_on_arrival, "TOGETHER", 1)
    monkeypatch.setattr(sums_on_arrival, "FEWEST", 2)
    one = nine(Liar(rounds=3, training=ADAM), tmp_path / "one", 1, NormBound())
    other = nine(kind(rounds=3, training=ADAM), tmp_path / "other", workers, NormBound())
    assert_same(one.server, other.server)
    assert moves(one) < 10
    for done in other.done:
        assert list(done.noted) == ["silo-4"]
        assert (done.noted["silo-4"].times_bound or 0) > NOTHING
        assert (done.noted["silo-4"].times_far or 0) > norm_bounding.FAR


def test_without_a_bound_the_same_malicious_silo_moves_it_far(tmp_path: Path) -> None:
    assert moves(nine(Liar(rounds=1, training=ADAM), tmp_path)) > 1000


def test_flower_scales_the_same_updates_to_the_same_bits(tmp_path: Path) -> None:
    method = Liar(rounds=4, training=ADAM, times=8, change=True)
    flower = Silos(method, tmp_path / "flower", data=silos(COUNT))
    embedded, here, there = Federation(method, tmp_path / "here", data=silos(COUNT)), NormBound(), NormBound()
    embedded.run(norms=here)
    flower.federation.run(engine=nullcontext(flower.transport), norms=there)  # type: ignore[arg-type]
    assert_same(embedded.server, flower.federation.server)
    assert here.kept == there.kept
    assert any(done.noted for done in flower.federation.done)


def test_vectorized_silos_are_bounded_too(tmp_path: Path) -> None:
    bound = NormBound()
    method = FedAvg(rounds=3, training=ADAM)
    off, on = (Federation(method, tmp_path / name, data=silos(COUNT)) for name in ("off", "on"))
    off.run(engine=SingleMachineEngine(off.place, vectorization=Vectorization("on")))
    on.run(engine=SingleMachineEngine(on.place, vectorization=Vectorization("on")), norms=bound)
    assert_same(off.server, on.server)
    assert len(bound.kept["base.train"]["model"]) == 3


def test_a_malicious_silo_among_vectorized_silos_is_scaled_as_it_is_by_itself(tmp_path: Path) -> None:
    method = Liar(rounds=3, training=ADAM, times=8, change=True)
    alone, vectorized = (Federation(method, tmp_path / name, data=silos(COUNT)) for name in ("alone", "vectorized"))
    alone.run(norms=NormBound())
    vectorized.run(engine=SingleMachineEngine(vectorized.place, vectorization=Vectorization("on")), norms=NormBound())
    for name, tensor in alone.server["model"].items():
        torch.testing.assert_close(tensor, vectorized.server["model"][name], rtol=1e-3, atol=1e-4)
    assert [list(done.noted) for done in alone.done] == [list(done.noted) for done in vectorized.done]


def test_a_run_that_goes_on_has_the_bounds_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    method = Liar(rounds=5, training=ADAM, times=8, change=True, since=2)
    whole, begun = NormBound(), NormBound()
    one, two = (Federation(method, tmp_path / name, data=silos(COUNT)) for name in ("one", "two"))
    one.run(norms=whole)
    two.run(norms=begun, stop=3)
    two.run(norms=NormBound(kept=begun.kept), start=3)
    assert_same(one.server, two.server)
    assert any(done.noted for done in one.done)


# One round at a time


def sent(**tensors: torch.Tensor) -> Payload:
    return {"model": tensors}


def round_of(method: Method | None = None) -> Round:
    return next(iter((method or FedAvg()).schedule()))


def context(module: nn.Module | None = None) -> SiloContext:
    none = Data(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
    return SiloContext("server", none, none, none, module or model())


def asked(
    bound: NormBound, lengths: list[float], number: int = 4, before: float = 0.0
) -> tuple[Admission, dict[str, Update]]:
    """A round in which silos change a tensor of norm `before` by such lengths."""
    direction = torch.ones(number) / math.sqrt(number)
    admission = bound.admission(round_of(), sent(w=before * direction), context())
    assert admission is not None
    updates = {f"silo-{k:03d}": Update(sent(w=(before + length) * direction), 10) for k, length in enumerate(lengths)}
    return admission, admission.admit(updates)


def length(update: Update) -> float:
    return float(update.payload["model"]["w"].norm())


def test_the_bound_is_four_times_the_median_and_far_beyond_counts_as_no_change() -> None:
    bound = NormBound()
    admission, found = asked(bound, [1, 1, 1, TIMES, 2 * TIMES, TIMES * NOTHING * 1.5, 1, math.nan])
    assert [length(each) for each in found.values()] == pytest.approx([1, 1, 1, TIMES, TIMES, 0, 1, 0], rel=1e-5)
    assert math.isinf(admission.noted()["silo-007"].times_bound or 0)


def test_a_bound_follows_norms_that_have_changed_for_good() -> None:
    bound = NormBound()
    for lengths in [[1.0] * 5] * WINDOW + [[6.0] * 5] * WINDOW:
        admission, found = asked(bound, lengths)
        bound.remember(round_of(), admission)
    assert length(found["silo-000"]) == pytest.approx(6)  # no longer scaled
    assert bound.kept["train"]["model"] == pytest.approx([6.0] * WINDOW)


def test_rounds_that_are_wholly_of_one_malicious_silo_do_not_raise_the_bound_of_most() -> None:
    bound = NormBound()
    for _ in range(3):
        admission, _ = asked(bound, [1, 1, 1, 1e5])
        bound.remember(round_of(), admission)
    assert bound.kept["train"]["model"] == [1, 1, 1]


def test_a_round_of_which_most_are_liars_lifts_the_next_bound_and_no_more() -> None:
    bound = NormBound()
    for _ in range(4):
        bound.remember(round_of(), asked(bound, [1, 1, 1, 1])[0])
    bound.remember(round_of(), asked(bound, [1, 10, 10, 10])[0])
    admission, found = asked(bound, [1, 1, 1, 30])
    assert length(found["silo-003"]) == pytest.approx(30)
    bound.remember(round_of(), admission)
    assert length(asked(bound, [1, 1, 1, 30])[1]["silo-003"]) == 0


def test_training_of_which_most_updates_burst_has_diverged() -> None:
    bound = NormBound()
    bound.remember(round_of(), asked(bound, [1, 1, 1, 1], before=2)[0])
    asked(bound, [1, 1, 1e5, 1e5], before=2)[0].check_burst(round_of())
    # Silos of another size may all be asked at once: their updates are long, but not beside the model.
    admission, found = asked(bound, [20, 20, 20, 20], before=2)
    assert [length(each) for each in found.values()] == pytest.approx([2] * 4)
    admission.check_burst(round_of())
    with pytest.raises(Diverged, match="3 of 4 silos sent updates with over 16 times the usual norm"):
        bound.remember(round_of(), asked(bound, [1, 1e5, 1e5, math.nan], before=2)[0])


def test_buffers_are_bounded_by_themselves() -> None:
    """Running statistics are in units of their own, in which a malicious_silo could otherwise hide."""
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    down = {"model": {name: tensor.clone() for name, tensor in module.state_dict().items()}}
    admission = NormBound().admission(round_of(), down, context(module))
    assert admission is not None

    def update(by: float, statistics: float) -> Update:
        moved = {
            n: t + (statistics if "running" in n else by) for n, t in down["model"].items() if t.is_floating_point()
        }
        return Update({"model": down["model"] | moved}, 10)

    updates = {"a": update(0.1, 50), "b": update(0.1, 50), "c": update(0.1, 50), "d": update(1, 50)}
    found = admission.admit(updates)
    assert [found[silo] is updates[silo] for silo in "abcd"] == [True, True, True, False]
    assert torch.equal(found["d"].payload["model"]["1.running_var"], updates["d"].payload["model"]["1.running_var"])
    assert found["d"].payload["model"]["0.weight"].sub(down["model"]["0.weight"]).abs().max() < 0.5
    assert found["d"].payload["model"]["1.num_batches_tracked"] == 0


def test_changes_of_control_variates_are_no_new_values() -> None:
    step = round_of(SCAFFOLD())
    assert step.origin is not None
    control = {"control": {"w": torch.full((3,), 7.0)}}
    assert torch.equal(step.origin(sent(w=torch.ones(3)), control)["control"]["w"], torch.zeros(3))


def test_the_first_updates_by_name_are_waited_for_and_no_more() -> None:
    admission = NormBound().admission(round_of(), sent(w=torch.zeros(4)), context())
    assert admission is not None
    counts = {f"silo-{k:03d}": 10 for k in range(200)}
    first = StreamingMean(counts, 1 << 40, 1, None, admission)
    assert [len(group) for group in first.groups][:2] == [norm_bounding.BUFFERED, sums_on_arrival.FEWEST]
    assert sum(map(len, first.groups)) == 200
    later = StreamingMean(counts, 1 << 40, 1, None)
    assert len(later.groups[0]) == sums_on_arrival.FEWEST


@pytest.mark.parametrize("count", [65, 130])
def test_later_updates_are_bounded_by_the_first(count: int) -> None:
    lengths = [1.0] * norm_bounding.BUFFERED + [100.0] * (count - norm_bounding.BUFFERED)
    _, found = asked(NormBound(), lengths)
    assert all(length(each) == 0 for each in list(found.values())[norm_bounding.BUFFERED :])


def test_without_scaling_everything_is_counted_and_who_is_far_is_named() -> None:
    admission, found = asked(NormBound(scales=False), [1, 1.1, 0.9, 1.2, 1e5])
    assert length(found["silo-004"]) == pytest.approx(1e5)
    assert list(admission.noted()) == ["silo-004"]
    assert admission.noted()["silo-004"].times_bound is None


def test_measurements_are_not_looked_at() -> None:
    step = replace(round_of(), trains=False)
    assert NormBound().admission(step, sent(w=torch.zeros(4)), context()) is None


def test_a_sketch_tells_distances() -> None:
    bound = NormBound()
    admission = bound.admission(round_of(), sent(w=torch.zeros(20_000)), context())
    assert admission is not None
    torch.manual_seed(0)
    x, y = torch.randn(20_000), torch.randn(20_000)
    for silo, tensor in (("x", x), ("y", y)):
        admission.look(silo, sent(w=tensor))
    found = float((admission.sketches["x"] - admission.sketches["y"]).norm())
    assert found == pytest.approx(float((x - y).norm()), rel=0.15)


def test_prototypes_are_not_bounded() -> None:
    step = round_of(FedProto())
    assert step.origin is not None
    assert step.origin(sent(w=torch.zeros(3)), sent(w=torch.zeros(3))) == {}
