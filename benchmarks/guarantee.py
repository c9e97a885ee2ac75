"""The `guaranteed` policy on finished runs, without training anew: what is promised, and what test data then show.

python benchmarks/guarantee.py RUN [RUN...]        seconds per run
"""

from __future__ import annotations

import json
import sys

import caveat
from caveat.core import Replies
from caveat.engines.one_thread import one_thread
from caveat.files.payloads import read_payload
from caveat.wrappers.guaranteed import Guaranteed

RISKS = (0.01, 0.02, 0.05, 0.1)
CONFIDENCE = 0.9


def agreed(run: caveat.Run, risk: float) -> tuple[str, float, float]:
    """The statement, and the share answered and the share of errors among those on all silos' test data."""
    experiment = run.experiment
    place = experiment.executor()
    method = Guaranteed(experiment.method, score=experiment.method.scores[-1], risk=risk, confidence=CONFIDENCE)
    down = read_payload(run.folder / "model" / "model.safetensors")
    t = json.loads((run.folder / "model" / "model.json").read_text())["t"]
    server = {"decision": {}}
    updates, states = {}, {}
    for name, silo in place.silos.items():
        state = place.state(name, experiment.kept(name, t))
        updates[name], states[name] = method.count(down, state, silo.site(place.module))
    server = method.test(server, Replies(updates, len(updates)), silo.site(place.module))
    answered = wrong = total = 0
    for name, silo in place.silos.items():
        decided = method.predict(
            down | {"decision": server["decision"]}, states[name], silo.site(place.module), silo.test.x
        )
        given = decided.decision != caveat.Decision.ABSTAIN
        answered += int(given.sum())
        wrong += int((given & (decided.label != silo.test.y)).sum())
        total += len(silo.test)
    statement = method.guarantee(server["decision"]["counts"]).statement
    return statement, answered / total, wrong / max(answered, 1)


def main() -> None:
    for folder in sys.argv[1:]:
        run = caveat.load(folder)
        for risk in RISKS:
            with one_thread():
                statement, coverage, realised = agreed(run, risk)
            print(f"{folder}: {statement}\n    on test data: {coverage:.1%} answered, {realised:.2%} of them wrong")


if __name__ == "__main__":
    main()
