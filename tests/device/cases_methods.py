"""Every method, and all that is put around methods, on a device: the CPU's bits, and no waiting between batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import METHODS, WRAPPED, Federation, assert_same, assert_same_states
from on_devices import EVERY, TWO, every_method, measured
from shadow import SEEDS, Shadow, on_shadow, reads, without_double

from caveat.core import Method, Silo, key
from caveat.core.devices import CPU
from caveat.engines.executor import SiloError
from caveat.engines.single_machine import SingleMachineEngine
from caveat.engines.vectorization import Vectorization
from caveat.methods import FMLU, FedAvg, FedBABU, FedPN, FedRep
from caveat.testing.federation import newest_state, small_silos
from caveat.training.fit import Training
from caveat.training.vectorized_fit import Mask, drawn

on_shadow()
DEVICE = torch.device("shadow", 0)


@every_method
def test_a_device_comes_to_the_bits_of_the_cpu(method: Method, tmp_path: Path) -> None:
    """A tensor that was left on the device could not be compared with one on the CPU."""
    here, there = (Federation(method, tmp_path / d.type, data=TWO, device=d) for d in (CPU, DEVICE))
    assert_same(here.run(), there.run())
    assert_same_states(here.states(), there.states())
    assert_same_states(measured(here), measured(there))
    assert isinstance(next(there.place.workplace.module.parameters()), Shadow)


def test_silos_that_a_device_cannot_stack_are_carried_out_one_by_one(tmp_path: Path) -> None:
    """The stand-in knows no vmap: what is found out in a round changes no bit, and is told."""
    method = FedAvg(rounds=2, training=Training(batch_size=16, lr=0.05, optimizer="sgd"))
    apart, together = (Federation(method, tmp_path / name, device=DEVICE) for name in ("apart", "together"))
    apart.run()
    vectorization = Vectorization("on")
    together.run(engine=SingleMachineEngine(together.place, 1, vectorization=vectorization))
    assert all("in round 1 of the schedule" in record.why for record in vectorization.works.values())
    assert vectorization.works
    assert_same(apart.server, together.server)


def test_masks_of_vectorized_silos_are_drawn_there_at_once_and_nothing_is_waited_for() -> None:
    known = [Mask(torch.Size([16, 40]), torch.float32, 0.25), Mask(torch.Size([16]), torch.float32, 0.5)]
    generators = [torch.Generator().manual_seed(k) for k in range(3)]
    before = [generator.get_state() for generator in generators]
    with reads() as names:
        found = drawn(known, generators, [16, 9, 16], DEVICE)
    assert names == []
    for mask, each in zip(known, found, strict=True):
        assert isinstance(each, Shadow)
        assert each.shape == (3, *mask.shape)
        here = each.cpu()
        assert here.unique().tolist() == pytest.approx([0, 1 / (1 - mask.p)])
        assert float(here.mean()) == pytest.approx(1, abs=0.4)
        assert not torch.equal(here[0], here[2])
    assert all(torch.equal(a, b.get_state()) for a, b in zip(before, generators, strict=True))  # the CPU draws batches


def waits(method: Method, folder: Path, silo: Silo) -> dict[str, int]:
    """How often the host waits for the device in each of a method's works."""
    federation = Federation(method, folder, data={silo.name: silo}, device=DEVICE)
    perform, found = federation.place.perform, dict[str, int]()

    def counted(t: int, address: str, *more: Any) -> Any:
        with reads() as names:
            done = perform(t, address, *more)
        found[f"{t} {address}"] = len(names)
        return done

    federation.place.perform = counted  # type: ignore[method-assign]
    federation.run()
    return found


def longer(method: Method, steps: int) -> Method:
    """The method with so many steps in each of its trainings."""
    training = replace(method.training, local_steps=steps, local_epochs=None)  # type: ignore[attr-defined]
    epochs = {"personal_epochs": FedPN, "head_epochs": FedRep, "fine_tune_epochs": FedBABU}
    more = {name: steps for name, kind in epochs.items() if isinstance(method, kind)}
    return replace(method, training=training, **more)  # type: ignore[type-var]


TRAINED = EVERY[: len(METHODS)]


@pytest.mark.parametrize("method", TRAINED, ids=[f"{type(m).__name__}-{i}" for i, m in enumerate(TRAINED)])
def test_training_does_not_wait_for_the_device_between_batches(method: Method, tmp_path: Path) -> None:
    silo = TWO["silo-1"]
    few, many = (waits(longer(method, steps), tmp_path / str(steps), silo) for steps in (2, 6))
    assert few == many


ASKED = [EVERY[i] for i in (1, 12, 16, 18, 21, *range(len(METHODS), len(EVERY)))]


@pytest.mark.parametrize("method", ASKED, ids=[f"{type(m).__name__}-{i}" for i, m in enumerate(ASKED)])
def test_predictions_do_not_wait_for_the_device_between_batches(method: Method, tmp_path: Path) -> None:
    federation = Federation(method, tmp_path, data=TWO, device=DEVICE)
    federation.run()
    place, x = federation.place, TWO["silo-1"].test.x.repeat(60, 1)
    there, state = place.workplace, place.state("silo-1", newest_state(place.states, "silo-1"))
    down, kept = there.to_device(method.broadcast(federation.server)), there.to_device(state)
    found = []
    for inputs in (x[:600], x[:600], x):  # the first time constants are brought to the device
        with reads() as names, there.working("predict"):
            method.predict(down, kept, place.context_on_device("silo-1"), inputs.to(DEVICE))
        found.append(names)
    assert len(x) == 1200
    assert len(found[1]) == len(found[2]), found[1:]


def test_inputs_that_do_not_fit_come_to_the_device_batch_by_batch(tmp_path: Path) -> None:
    method = FedAvg(rounds=2)
    whole, streamed = (Federation(method, tmp_path / name, data=TWO, device=DEVICE) for name in ("whole", "streamed"))
    streamed.place.workplace.room = 0
    assert_same(whole.run(), streamed.run())
    assert_same_states(measured(whole), measured(streamed))
    there = streamed.place.workplace
    assert not isinstance(there.silo(TWO["silo-1"]).train.x, torch.Tensor)
    with reads() as names:
        for batch in method.training.batches(60, there.silo(TWO["silo-1"]).train.counted_on):
            x, y = there.silo(TWO["silo-1"]).train.batch(batch)
            assert isinstance(x, Shadow)
            assert isinstance(y, Shadow)
    assert names == []


def test_a_device_keeps_the_data_of_the_silos_that_fit_and_of_those_that_are_there(tmp_path: Path) -> None:
    silos = small_silos()
    there = Federation(FedAvg(rounds=1), tmp_path, data=silos, device=DEVICE).place.workplace
    there.room = 2000  # of 1600, 1920 and 2240 bytes that silos have
    first = silos["silo-0"]
    assert there.silo(first) is there.silo(first)
    room = there.room
    assert isinstance(there.silo(first).train.x, Shadow)
    assert not isinstance(there.silo(silos["silo-2"]).train.x, torch.Tensor)
    del first, silos
    assert there.room > room


def test_a_device_draws_by_the_same_keys_as_the_cpu(tmp_path: Path) -> None:
    federation = Federation(FedAvg(rounds=2), tmp_path, data=TWO, device=DEVICE)
    SEEDS.clear()
    federation.run()
    works = [key(0, "train", t, silo) for t in range(2) for silo in ("silo-1", "silo-0")]
    assert [seed for seed in SEEDS if seed in works] == works


def test_a_device_without_float64_trains_and_leaves_the_rest_to_the_cpu(tmp_path: Path) -> None:
    used = set[str]()
    here, there = (Federation(WRAPPED[14], tmp_path / d.type, data=TWO, device=d) for d in (CPU, DEVICE))
    perform = there.place.perform_on_device

    def noted(t: int, address: str, *more: Any) -> Any:
        used.add(address.rpartition(".")[2])
        return perform(t, address, *more)

    there.place.perform_on_device = noted  # type: ignore[method-assign]
    with without_double():
        assert_same(here.run(), there.run())
        assert_same_states(measured(here), measured(there))
    assert_same_states(here.states(), there.states())
    assert used == {"train"}


def test_a_method_that_trains_in_float64_says_so_where_there_is_none(tmp_path: Path) -> None:
    method = next(method for method in EVERY if isinstance(method, FMLU))
    with without_double(), pytest.raises(SiloError, match="'fmlu' trains in float64, which 'shadow' does not support"):
        Federation(method, tmp_path, data=TWO, device=DEVICE).run()


def test_what_cannot_be_repeated_is_refused_there_and_nowhere_else(tmp_path: Path) -> None:
    there = Federation(FedAvg(rounds=1), tmp_path, device=DEVICE).place.workplace
    x = torch.ones(3).to(DEVICE)
    assert x.cumsum(0).tolist() == [1, 2, 3]
    with there.working("test"), pytest.raises(RuntimeError, match="deterministic"):
        x.cumsum(0)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_stand_in_refuses_what_a_gpu_would_and_counts_what_the_host_reads() -> None:
    x, y = torch.ones(3, 2).to(DEVICE), torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="tensors on"):
        x @ y
    with reads() as names:
        x[x > 2], x.sum().item(), x.cpu(), x.nonzero(), x[:, 0].tolist()
        (x + 1).relu_().sum()
    assert names == ["index", "_local_scalar_dense", "_to_copy", "nonzero", "_to_copy"]
    assert not isinstance(x.cpu(), Shadow)
