"""One reference value or invariant per formula of the methods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from federations import ADAM, FAST, Federation, assert_same, model, silos
from torch import nn

import caveat
from caveat.config import load as load_config
from caveat.core import ConfigurationError, Data, Replies, SiloContext, Tensors, Update, seeded
from caveat.files import read
from caveat.files.schema import Summary
from caveat.methods import SCAFFOLD, UEFL, FedAvg, FedBN, FedProx, Local
from caveat.methods.uefl import Codebook
from caveat.nn.codebook import nearest
from caveat.nn.models import ModelSettings, build_model
from caveat.runs.start import start
from caveat.training.fit import Training
from caveat.training.modules import load, snapshot


def context(module: nn.Module, name: str = "silo-0") -> SiloContext:
    return silos()[name].context(module)


def test_fedavg_is_the_mean_weighted_by_examples() -> None:
    replies = Replies(
        {
            "b": Update({"model": {"w": torch.tensor([4.0])}}, 30),
            "a": Update({"model": {"w": torch.tensor([0.0])}}, 10),
        },
        population=2,
    )
    assert replies.mean("model")["w"].item() == 3.0
    assert list(replies.updates) == ["a", "b"]


def test_integer_buffers_are_copied_not_averaged() -> None:
    counters = [Update({"model": {"n": torch.tensor(k)}}, 1) for k in (3, 8)]
    mean = Replies({"a": counters[0], "b": counters[1]}, 2).mean("model")["n"]
    assert mean.dtype == torch.int64
    assert mean.item() == 3


def test_fedavg_with_one_step_is_one_step_on_pooled_data() -> None:
    """With equal silos, full batches and one SGD step, averaging models is averaging gradients."""
    training = Training(local_steps=1, batch_size=40, optimizer="sgd", lr=0.1)
    method = FedAvg(training=training)
    net = nn.Sequential(nn.Linear(2, 3))
    x, y = torch.randn(80, 2), torch.randint(3, (80,))
    start = snapshot(net)
    updates = {}
    for k in range(2):
        part = Data(x[40 * k : 40 * k + 40], y[40 * k : 40 * k + 40])
        with seeded(k):
            updates[str(k)], _ = method.train(
                {"model": start}, {"model": {}}, SiloContext(str(k), part, part, part, net)
            )
    mean = Replies(updates, 2).mean("model")
    load(net, start)
    net.zero_grad()
    F.cross_entropy(net(x), y).backward()
    torch.testing.assert_close(mean["0.weight"], start["0.weight"] - 0.1 * net[0].weight.grad)


def test_fedprox_adds_half_mu_times_the_squared_drift() -> None:
    net = nn.Sequential(nn.Linear(2, 3))
    start = snapshot(net)
    moved = {name: t + 2 for name, t in start.items()}
    x, y = torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1])
    load(net, moved)
    plain = FedAvg().objective(net, {"model": start})(x, y)
    proximal = FedProx(mu=0.3).objective(net, {"model": start})(x, y)
    torch.testing.assert_close(proximal - plain, torch.tensor(0.3 / 2 * 4 * (6 + 3)))


def test_fedprox_with_mu_0_is_fedavg(tmp_path: Path) -> None:
    prox, avg = FedProx(rounds=2, training=FAST, mu=0), FedAvg(rounds=2, training=FAST)
    assert_same(Federation(prox, tmp_path / "a").run(), Federation(avg, tmp_path / "b").run())


def test_fedbn_keeps_every_tensor_of_batchnorm_by_type() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Sequential(nn.BatchNorm1d(3, affine=False)))
    tensors = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert FedBN().private(net) == {f"1.{name}" for name in tensors} | {f"2.0.{name}" for name in tensors[2:]}


def test_local_sends_nothing_and_learns(tmp_path: Path) -> None:
    federation = Federation(Local(rounds=2, training=ADAM), tmp_path)
    before = federation.states()["silo-1"]["model"]["head.1.weight"]
    federation.run()
    assert all(not u.payload["model"] for done in federation.done for u in done.replies.updates.values())
    assert not torch.equal(federation.states()["silo-1"]["model"]["head.1.weight"], before)


def test_scaffold_first_round_is_fedavg(tmp_path: Path) -> None:
    scaffold = Federation(SCAFFOLD(rounds=1, training=FAST), tmp_path / "a").run()
    fedavg = Federation(FedAvg(rounds=1, training=FAST), tmp_path / "b").run()
    for name, tensor in fedavg["model"].items():
        torch.testing.assert_close(scaffold["model"][name], tensor)


@pytest.mark.parametrize("weights", ["examples", "silos"])
@pytest.mark.parametrize("rounds", [1, 5])
def test_scaffold_control_is_the_mean_of_the_silos_controls_even_with_partial_participation(
    tmp_path: Path, weights: str, rounds: int
) -> None:
    from caveat.engines.rounds import Participation

    federation = Federation(SCAFFOLD(rounds=rounds, training=FAST, weights=weights), tmp_path)  # type: ignore[arg-type]
    server = federation.run(participation=Participation(0, share=0.6))
    silos, states = federation.place.silos.values(), list(federation.states().values())
    took_part = [bool(state["control"]["head.4.bias"].any()) for state in states]
    assert took_part.count(True) == (2 if rounds == 1 else 3)
    n = [len(silo.train) if weights == "examples" else 1 for silo in silos]
    # One that has not taken part counts as the mean of those that have, with a control variate of 0.
    seen = [k for k, here in zip(n, took_part, strict=True) if here]
    shares = torch.tensor(n) / (3 * sum(seen) / len(seen))
    for name, control in server["control"].items():
        mean = torch.tensordot(shares, torch.stack([state["control"][name] for state in states]), 1)
        torch.testing.assert_close(control, mean, atol=1e-6, rtol=1e-4)
    assert any(control.abs().max() > 1e-3 for control in server["control"].values())


@pytest.mark.parametrize(("weights", "share"), [("examples", 1.0), ("examples", 0.6), ("silos", 0.6)])
def test_scaffold_comes_to_rest_where_the_gradient_of_its_own_objective_is_0(weights: str, share: float) -> None:
    """Silos of other sizes and labels, whose gradients at that point are far from 0, and from each other's."""
    generator = torch.Generator().manual_seed(0)
    data = {}
    for k, count in enumerate((20, 60, 200)):
        x = torch.randn(count, 2, generator=generator) + k
        y = torch.where(
            torch.rand(count, generator=generator) < 0.7, k, torch.randint(3, (count,), generator=generator)
        )
        data[f"silo-{k}"] = Data(x, y)
    net = nn.Sequential(nn.Linear(2, 3)).double()
    training = Training(local_steps=3, batch_size=1000, optimizer="sgd", lr=0.3)
    method = SCAFFOLD(training=training, weights=weights)  # type: ignore[arg-type]
    where = {name: SiloContext(name, Data(part.x.double(), part.y), part, part, net) for name, part in data.items()}
    server = method.init_server(where["silo-0"])
    states = {name: method.init_silo(each) for name, each in where.items()}
    draw = torch.Generator().manual_seed(1)
    for _ in range(300 if share == 1 else 500):
        cohort = sorted(data) if share == 1 else [f"silo-{k}" for k in torch.randperm(3, generator=draw)[:2].tolist()]
        updates = {}
        for name in cohort:
            updates[name], states[name] = method.train(method.broadcast(server), states[name], where[name])
        server = method.aggregate(server, Replies(updates, 3), where["silo-0"])
    load(net, server["model"])
    gradients = {}
    for name, each in where.items():
        net.zero_grad()
        F.cross_entropy(net(each.train.x), each.train.y).backward()
        gradients[name] = torch.cat([p.grad.flatten() for p in net.parameters()])
    n = torch.tensor([len(part) if weights == "examples" else 1 for part in data.values()]).double()
    mean = torch.tensordot(n / n.sum(), torch.stack(list(gradients.values())), 1)
    assert float(mean.norm()) < 1e-6
    assert min(float(each.norm()) for each in gradients.values()) > 0.05


def test_scaffold_control_of_a_silo_is_its_mean_gradient() -> None:
    """Option II: with c = c_k = 0, c_k+ is the sum of the steps over S lr; one step makes it the gradient itself."""
    net = nn.Sequential(nn.Linear(2, 3))
    method = SCAFFOLD(training=Training(local_steps=1, batch_size=64, optimizer="sgd", lr=0.2))
    data = Data(torch.randn(64, 2), torch.randint(3, (64,)))
    where = SiloContext("s", data, data, data, net)
    down = method.broadcast(method.init_server(where))
    _, state = method.train(down, method.init_silo(where), where)
    load(net, down["model"])
    net.zero_grad()
    F.cross_entropy(net(data.x), data.y).backward()
    torch.testing.assert_close(state["control"]["0.weight"], net[0].weight.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("bad", [{"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.9}])
def test_scaffold_refuses_optimisers_whose_steps_are_no_gradients(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="scaffold needs"):
        SCAFFOLD(training=Training(**bad))  # type: ignore[arg-type]


# UEFL


def uefl(**changes: object) -> UEFL:
    return replace(UEFL(rounds=2, extra_rounds=1, iterations=3, codewords=4, training=ADAM, mc_samples=5), **changes)  # type: ignore[arg-type]


def test_uefl_threshold_is_relative_to_the_lowest_entropy_with_a_floor() -> None:
    replies = Replies(
        {
            k: Update({"entropy": {"own": torch.tensor(e), "atleast": torch.tensor(e)}}, 1)
            for k, e in zip("abc", (0.2, 0.3, 0.5), strict=True)
        },
        3,
    )
    nowhere = context(uefl().build(model()))

    def after(**changes: object) -> dict[str, float]:
        method = uefl(**changes)
        return method.milestone(method.compare(method.init_server(nowhere), replies, nowhere))

    assert after(threshold=0.3) == pytest.approx(
        {"threshold": 0.26, "lowest": 0.2, "highest": 0.5, "surest": 0.5, "iteration": 1}
    )
    assert after(threshold=0.3, reference="mean")["threshold"] == pytest.approx(1.3 / 3)
    assert after(floor=0.4)["threshold"] == pytest.approx(0.4)


def test_uefl_recomputes_its_threshold_unless_told_not_to() -> None:
    nowhere = context(uefl().build(model()))

    def compared(method: UEFL, *lowest: float) -> float:
        server = method.init_server(nowhere)
        for e in lowest:
            update = Update({"entropy": {"own": torch.tensor(e), "atleast": torch.tensor(e)}}, 1)
            server = method.compare(server, Replies({"a": update}, 1), nowhere)
        return float(server["entropy"]["threshold"])

    assert compared(uefl(threshold=0.5), 0.4, 0.2) == pytest.approx(0.3)
    assert compared(uefl(threshold=0.5, refresh=False), 0.4, 0.2) == pytest.approx(0.6)


def test_uefl_extends_exactly_the_silos_above_the_threshold(tmp_path: Path) -> None:
    federation = Federation(uefl(threshold=0, margin=0.1, iterations=2, rounds=8, codewords=16), tmp_path)
    federation.run()
    scores = next(done for done in federation.done if done.step.name == "score")
    entropies = {silo: float(u.payload["entropy"]["own"]) for silo, u in scores.replies.updates.items()}
    least = {silo: float(u.payload["entropy"]["atleast"]) for silo, u in scores.replies.updates.items()}
    above = {silo for silo, e in least.items() if e > min(entropies.values())}
    used = {silo: int(state["model"]["codebook.used"]) for silo, state in federation.states().items()}
    assert above
    assert above != set(used)
    assert used == {silo: 16 if silo in above else 0 for silo in used}


def test_uefl_oracle_gives_silos_the_codewords_of_their_domain_and_no_others() -> None:
    """A silo uses and moves its domain's codewords alone, so that each domain's are the mean over its own silos."""
    method = uefl(iterations=1, domains=("east", "west"))
    module = method.build(model())
    east, west = (replace(context(module), id=name, domain=name) for name in ("east", "west"))
    server = method.init_server(east)
    updates = {
        where.id: method.train(method.broadcast(server), method.init_silo(where), where)[0] for where in (east, west)
    }
    after = method.aggregate(server, Replies(updates, 2), east)["model"]["codebook.shared"]
    used = {name: update.payload["use"]["shared"] for name, update in updates.items()}
    assert after.shape[0] == 2 * 4
    assert used["east"][:4].sum() == used["west"][4:].sum() > 0
    assert not used["east"][4:].any()
    assert not used["west"][:4].any()
    first = server["model"]["codebook.shared"]
    for name, mine in (("east", slice(0, 4)), ("west", slice(4, 8))):
        sent = updates[name].payload["model"]["codebook.shared"]
        moved = used[name][mine] > 0
        torch.testing.assert_close(after[mine][moved], sent[mine][moved])
        torch.testing.assert_close(after[mine][~moved], first[mine][~moved])
        assert not torch.equal(after[mine], first[mine])
    changed = {"model": server["model"] | {"codebook.shared": first.clone()}, "entropy": server["entropy"]}
    changed["model"]["codebook.shared"][4:] += 100
    asked = {}
    for where in (east, west):
        with seeded(0, "ask"):
            before = method.predict(method.broadcast(server), method.init_silo(where), where, where.validation.x)
        with seeded(0, "ask"):
            now = method.predict(method.broadcast(changed), method.init_silo(where), where, where.validation.x)
        asked[where.id] = torch.equal(before.probs, now.probs)
    assert asked == {"east": True, "west": False}


def test_uefl_oracle_answers_from_a_folder_as_it_did(tmp_path: Path) -> None:
    """A finished run is opened without the silos' data, which alone say of which domain they are."""
    sets = ["rounds=1", "baselines=[]", "method.iterations=1", "data.n_silos=2", "data.shift.angles=[0, 90]"]
    start(load_config("digits", [*sets, 'method.domains=["rotate(0)", "rotate(90)"]']), tmp_path / "run")
    run = caveat.load(tmp_path / "run")
    seen = read(tmp_path / "run" / "summary.json", Summary)
    for silo in run.silos:
        right = (run.predictor(silo.name)(silo.test.x).label == silo.test.y).double().mean()
        recorded = next(each for each in seen.silos if each.name == silo.name)
        assert float(right) == pytest.approx(recorded.test.accuracy)


def test_uefl_oracle_refuses_silos_of_other_domains_and_codebooks_that_grow() -> None:
    method = uefl(iterations=1, domains=("east", "west"))
    with pytest.raises(ConfigurationError, match=r"belongs to domain .south.; expected one of method\.domains"):
        method.init_silo(replace(context(method.build(model())), domain="south"))
    with pytest.raises(ConfigurationError, match=r"method\.iterations = 3 would extend the codebooks"):
        uefl(domains=("east", "west"))
    with pytest.raises(ConfigurationError, match="contains a name twice"):
        uefl(iterations=1, domains=("east", "east"))


def test_uefl_margin_is_in_standard_errors_of_the_mean() -> None:
    where = context(uefl().build(model()))
    sent = {}
    for margin in (0.0, 2.0):
        method = uefl(margin=margin)
        server, state = method.init_server(where), method.init_silo(where)
        sent[margin] = method.score(method.broadcast(server), state, where)[0].payload["entropy"]
        total = method.predict(method.broadcast(server), state, where, where.validation.x).total
    assert float(sent[0.0]["atleast"]) == float(sent[0.0]["own"]) == pytest.approx(float(total.mean()))
    expected = float(total.mean() - 2 * total.var().div(len(total)).sqrt())
    assert float(sent[2.0]["atleast"]) == pytest.approx(expected)


def test_uefl_chooses_codebooks_on_inputs_of_validation_alone() -> None:
    """A guarantee that is tested on the calibration split is of a model that knows none of it; nor of any labels."""
    method = uefl()
    where = context(method.build(model()))
    x, y = where.validation

    def sent(where: SiloContext) -> Tensors:
        with seeded(0, "score"):
            server = method.init_server(where)
            return method.score(method.broadcast(server), method.init_silo(where), where)[0].payload["entropy"]

    before = sent(where)
    assert before == sent(replace(where, calibration=where.train, validation=Data(x, 1 - y)))
    assert before["own"] != sent(replace(where, validation=where.train))["own"]


def test_uefl_silos_may_draw_masks_for_every_input() -> None:
    found = {}
    for masks in ("shared", "inputs"):
        method = uefl(masks=masks, mc_samples=200)
        where = context(method.build(model()))
        down = method.broadcast(method.init_server(where))
        x = where.validation.x[:1].expand(4, -1)
        found[masks] = method.predict(down, method.init_silo(where), where, x)
    torch.testing.assert_close(found["shared"].probs, found["shared"].probs[:1].expand(4, -1))
    assert not torch.allclose(found["inputs"].probs[0], found["inputs"].probs[1])
    torch.testing.assert_close(found["inputs"].probs, found["shared"].probs, atol=0.05, rtol=0)


@pytest.mark.parametrize(("until", "scored"), [("certain", [2]), ("end", [2, 3, 4])])
def test_uefl_stops_when_no_silo_is_uncertain_or_trains_on(until: str, scored: list[int], tmp_path: Path) -> None:
    federation = Federation(uefl(threshold=1000, until=until), tmp_path)
    federation.run()
    assert [done.number for done in federation.done if done.step.name == "score"] == scored
    assert federation.done[-1].step.name == "score"


@pytest.mark.parametrize(("growth", "keep", "sizes"), [
    ("add", "all", [4, 8]), ("double", "all", [4, 12]), ("add", "newest", [4, 4]), ("double", "newest", [4, 8]),
])  # fmt: skip
def test_uefl_private_codewords_grow_as_configured(growth: str, keep: str, sizes: list[int]) -> None:
    method = uefl(growth=growth, keep=keep)
    module = method.build(model())
    where = context(module)
    grown = []
    for _ in sizes:
        method.extend(module, where)  # type: ignore[arg-type]
        grown.append(int(module.codebook.used))  # type: ignore[union-attr,arg-type]
    assert grown == sizes


def test_uefl_new_codewords_are_kmeans_centres_of_the_silos_features() -> None:
    method = uefl()
    module = method.build(model())
    where = context(module)
    method.extend(module, where)  # type: ignore[arg-type]
    z, words = method.vectors(module, where.train.x), module.codebook.private[:4]  # type: ignore[arg-type,union-attr,index]
    index = nearest(z, words)
    for word in range(4):
        torch.testing.assert_close(words[word], z[index == word].mean(0), atol=1e-4, rtol=1e-3)


def test_uefl_shared_codewords_are_averaged_by_use_and_unused_ones_stay() -> None:
    method = uefl(codewords=3)
    module = method.build(model())
    where = context(module)
    server = method.init_server(where)
    updates = {}
    for silo, value, use in (("a", 1.0, [3, 0, 0]), ("b", 5.0, [1, 2, 0])):
        sent = dict(server["model"]) | {"codebook.shared": torch.full((3, 6), value)}
        updates[silo] = Update({"model": sent, "use": {"shared": torch.tensor(use, dtype=torch.float32)}}, 10)
    shared = method.aggregate(server, Replies(updates, 2), where)["model"]["codebook.shared"]
    torch.testing.assert_close(shared[0], torch.full((6,), 2.0))
    torch.testing.assert_close(shared[1], torch.full((6,), 5.0))
    torch.testing.assert_close(shared[2], server["model"]["codebook.shared"][2])


def test_uefl_tokens_that_cannot_be_cut_are_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"method\.segments = 4 does not divide the 6 features"):
        uefl(segments=4).build(model())


@pytest.mark.parametrize(("features", "segments"), [(32, 16), (6, 1), (84, 1)])
def test_uefl_cuts_tokens_into_sixteen_where_it_can(features: int, segments: int) -> None:
    built = uefl().build(build_model(ModelSettings(name="mlp", features=features), (5,), 3, 0))
    assert built.codebook.segments == segments


def test_one_iteration_never_extends_and_has_no_room_to(tmp_path: Path) -> None:
    federation = Federation(uefl(iterations=1, threshold=0), tmp_path)
    federation.run()
    assert isinstance(federation.place.module.codebook, Codebook)
    assert federation.place.module.codebook.private.shape[0] == 0
    assert federation.server["entropy"]["iteration"] == 1


def test_learning_rate_holds_and_then_decays_by_round_of_the_schedule() -> None:
    training = Training(lr=0.1, lr_decay=0.5, lr_hold=2)
    where = silos()["silo-0"]
    rates = [training.rate(where.context(nn.Linear(2, 3), t)) for t in range(5)]
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.025])


def test_learning_rate_of_the_round_is_what_a_silo_trains_with() -> None:
    """One SGD step per round from the same weights: the second round's change is half the first's."""
    net = nn.Sequential(nn.Linear(2, 3))
    data = Data(torch.randn(8, 2), torch.randint(3, (8,)))
    method = FedAvg(training=Training(local_steps=1, batch_size=8, optimizer="sgd", lr=0.1, lr_decay=0.5))
    start = snapshot(net)
    moved = []
    for t in (0, 1):
        where = SiloContext("s", data, data, data, net, round=t)
        update, _ = method.train({"model": start}, {"model": {}}, where)
        moved.append(update.payload["model"]["0.weight"] - start["0.weight"])
    torch.testing.assert_close(moved[1], moved[0] / 2)
