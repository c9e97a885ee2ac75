"""Every method on an own model between machines: the bits of one machine, after a kill too, decisions included."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from federations import METHODS, Federation, assert_same, assert_same_states
from flower_grid import Silos
from own_models import Unusual, model_of
from sampled import different

from caveat.core import Method
from caveat.testing.federation import newest_state
from caveat.wrappers.alarms import Familiar
from caveat.wrappers.error_guarantee_policy import Guaranteed

FIRST = {type(method): method for method in reversed(METHODS)}
EVERY = sorted(FIRST.values(), key=lambda method: method.name)


@pytest.mark.parametrize("method", different(EVERY), ids=lambda method: str(method.name))
@pytest.mark.long
def test_flower_gives_an_own_model_the_bits_of_one_machine_after_a_kill_too(method: Method, tmp_path: Path) -> None:
    whole, model = Guaranteed(Familiar(method), risk=0.9, confidence_level=0.6), partial(model_of, Unusual)
    here, there = Federation(whole, tmp_path / "here", model=model), Silos(whole, tmp_path / "there", model)
    there.federation.run(engine=nullcontext(there.transport), stop=2)  # type: ignore[arg-type]
    counted = dict(there.transport.counted)
    there.connect()
    there.transport.begin(2, counted, {})
    there.federation.run(engine=nullcontext(there.transport), start=2)  # type: ignore[arg-type]
    assert_same(here.run(), there.federation.server)
    assert_same_states(here.states(), there.states())
    down = whole.broadcast(here.server)
    for name, silo in here.place.silos.items():
        told = [
            whole.predict(down, place.state(name, newest_state(place.states, name)), place.context(name), silo.test.x)
            for place in (here.place, there.places[name])
        ]
        for prediction in told:
            assert prediction.familiarity is not None
            assert prediction.decision is not None
        assert told[0].probs.equal(told[1].probs)
        assert told[0].familiarity.equal(told[1].familiarity)  # type: ignore[union-attr]
        assert told[0].decision.equal(told[1].decision)  # type: ignore[union-attr]
