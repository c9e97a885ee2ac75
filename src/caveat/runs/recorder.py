"""What happens beside a run's rounds: evaluation, rows, checkpoints, progress, and the result at the end."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any

from ..core import Payload, RunError, SiloId, State
from ..core.aggregation import all_finite
from ..engines.rounds import Done
from ..files.atomic import append, write_bytes, write_json
from ..files.checkpoints import ServerStore
from ..files.ledger import Ledger, read_ledger
from ..files.payloads import to_bytes
from ..metrics import across, figures
from ..metrics.streams import INSIDE, summarise_streams
from ..wrappers.base import find
from ..wrappers.private import Private
from .base import BaseRun, Engine
from .progress import Progress
from .summary import RunState, rows, silo_record, summarise

SPLITS = ("validation", "test")
"""What the final model is measured on."""


class Recorder:
    """Keeps the books of a run: evaluates, appends rows, saves checkpoints, tells the progress."""

    def __init__(
        self, plan: BaseRun, engine: Engine, store: ServerStore, run_state: RunState, progress: Progress
    ) -> None:
        self.plan, self.engine, self.store = plan, engine, store
        self.run_state, self.progress = run_state, progress
        self.rows = plan.folder / "rounds.jsonl"
        self.ledger = Ledger(plan.folder / "ledger.jsonl")
        self.mark = time.perf_counter()

    def rewind(self) -> dict[SiloId, int]:
        """Drop what a round that was never completed has left; return the last counted round of each silo."""
        for part in self.plan.folder.rglob(".*.part"):
            part.unlink()
        self.ledger.rewind(self.run_state.ledger)
        with self.rows.open("ab") as file:
            if file.tell() < self.run_state.rows:
                raise RunError(
                    f"{self.rows}: {file.tell()} bytes, expected the {self.run_state.rows} of completed rounds"
                )
            file.truncate(self.run_state.rows)
        return read_ledger(self.ledger.path).counted

    def after(self, done: Done, server: State) -> None:
        phase = done.step.work.__name__
        seconds = self._lap("train")
        self._check_numbers(done.number, phase, server)
        self.run_state.count(done, phase)
        self.ledger.add(done.replies.updates, round=done.number, t=done.t, phase=phase)
        self._left_out({"round": done.number, "phase": phase}, done.replies.left_out)
        metrics: dict[str, float] = {}
        if done.step.trains and done.number % self.plan.spec.evaluation.every == 0:
            for split in self.plan.spec.evaluation.splits:
                metrics = self._evaluate(done.t, done.number, phase, split, server, self.plan.measured)[0]
            self.run_state.measured = done.t
        self._lap("evaluate")
        milestone = self.plan.complete.milestone(server)
        known = {k: v for k, v in (self.run_state.milestones or [{}])[-1].items() if k != "round"}
        if milestone != known:
            self.run_state.milestones.append({"round": done.number, **milestone})
            self.progress.note(", ".join(f"{name} {value:.4g}" for name, value in milestone.items()))
        self.run_state.number, self.run_state.rows = done.number, self.rows.stat().st_size
        self.run_state.ledger = self.ledger.bytes
        self.store.save(done.t, server, self.run_state.record())
        self.progress.round(done.number, phase, {**metrics, "seconds": seconds})
        self._lap("engine")

    def _check_numbers(self, number: int, phase: str, server: State) -> None:
        """Raises RunError for a state that no run can continue from, so that the checkpoint before it stays."""
        # An infinity may stand for what is not known yet, but none can be sent.
        sent = self.plan.complete.broadcast(server)
        for state in (server, sent):
            for group, tensors in state.items():
                for name, tensor in tensors.items():
                    if not all_finite(tensor) and (state is sent or bool(tensor.isnan().any())):
                        raise RunError(
                            f"round {number}, {phase}: the server's {group}/{name} is not finite after it; what was "
                            "saved before is kept"
                        )

    def finish(self, server: State) -> None:
        """Measure the final model on every split, and write the result."""
        t, number = self.run_state.last, self.run_state.number
        final: dict[str, Any] = {}
        for split in SPLITS:
            known = split in self.plan.spec.evaluation.splits and self.run_state.measured == t
            final[split] = self._evaluate(t, number, "final", split, server, self.plan.measured, not known)[1]
        newcomers: dict[SiloId, Payload] = {}
        if self.plan.spec.newcomers:
            newcomers = self._evaluate(t, number, "final", "test", server, self.plan.spec.newcomers)[1]
        self._lap("evaluate")
        self._write_model(t, server)
        for name, shown in (("gallery", self.plan.gallery()), ("features", self.plan.features())):
            if shown is not None:
                write_json(self.plan.folder / f"{name}.json", shown)
        self._lap("engine")
        summary = summarise(self.plan, self.run_state, final["test"], server, self._privacy())
        write_json(self.plan.folder / "summary.json", self._with_newcomers(summary, newcomers))

    def _with_newcomers(self, summary: dict[str, Any], payloads: dict[SiloId, Payload]) -> dict[str, Any]:
        """The summary with the silos that took no part, marked, and their mean; all else is of those that did."""
        if not payloads:
            return summary
        method, silo_infos = self.plan.method, self.plan.info.silo_infos
        entries = [
            silo_record(method, silo_infos[name], payload) | {"newcomer": True} for name, payload in payloads.items()
        ]
        models = summarise_streams(method, payloads)[INSIDE]["models"]
        mean = next(iter(models.values()))["mean"]
        return summary | {"silos": [*summary["silos"], *entries], "newcomers": {"mean": mean}}

    def _privacy(self) -> dict[str, Any] | None:
        """What clipping and noise come to, by what was sent."""
        if (private := find(self.plan.complete, Private)) is None:
            return None
        return self.plan.spec.privacy.outcome(read_ledger(self.ledger.path).messages, private.silos, private.covers)

    def _write_model(self, t: int, server: State) -> None:
        folder, method = self.plan.folder, self.plan.method
        (folder / "model").mkdir(exist_ok=True)
        write_bytes(folder / "model" / "model.safetensors", to_bytes(self.plan.complete.broadcast(server)))
        info, personal = self.plan.info, self.plan.own_models
        write_json(folder / "model" / "model.json", {
            "schema": 1, "method": dataclasses.asdict(method) | {"name": type(method).__name__},  # type: ignore[call-overload]
            "t": t, "model": vars(self.plan.spec.model),
            **({"personal": {silo: vars(own) for silo, own in personal.items()}} if personal else {}),
            "shape": list(info.shape), "classes": list(info.classes),
        })  # fmt: skip

    def _evaluate(
        self, t: int, number: int, phase: str, split: str, server: State, silos: Sequence[SiloId], write: bool = True
    ) -> tuple[dict[str, float], dict[SiloId, Payload]]:
        evaluated = self.engine.method
        about = {"round": number, "phase": phase, "split": split}
        replies = self.engine.exchange(t, getattr(evaluated, split), evaluated.broadcast(server), sorted(silos))
        payloads = {silo: update.payload for silo, update in replies.updates.items()}
        self.ledger.add(replies.updates, t=t, **about)
        self._left_out(about, replies.left_out)
        if write:
            silo_infos = [self.plan.info.silo_infos[name] for name in silos if name in payloads]
            self._append(
                [about | row for card in silo_infos for row in rows(self.plan.method, card, payloads[card.name])]
            )
        mean = across({silo: figures(payload["sums"]) for silo, payload in payloads.items()})["mean"]
        return {name: mean[name] for name in ("accuracy", "entropy")}, payloads

    def _left_out(self, about: dict[str, Any], reasons: dict[SiloId, str]) -> None:
        """Name the silos that were asked and are not counted, in the rows and in the log."""
        for silo, why in reasons.items():
            self.progress.note(f"round {about['round']}, {about.get('split', about['phase'])}: without {silo}: {why}")
        self._append([about | {"silo": silo, "left_out": why} for silo, why in reasons.items()])

    def _append(self, lines: list[dict[str, Any]]) -> None:
        append(self.rows, "".join(json.dumps(line) + "\n" for line in lines))

    def _lap(self, name: str) -> float:
        now = time.perf_counter()
        spent, self.mark = now - self.mark, now
        self.run_state.seconds[name] += spent
        return spent
