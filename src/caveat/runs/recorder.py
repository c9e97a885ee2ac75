"""Records of a run: evaluation, rows, checkpoints, progress, and the result."""

import contextlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from functools import cached_property

from ..core import CaveatError, ConfigurationError, Payload, Replies, RunError, SiloId, State, horizon
from ..core.aggregation import all_finite
from ..core.errors import DIVERGED, Diverged, one_of
from ..core.settings import plain
from ..engines.norm_bounding import NormBound
from ..engines.rounds import FinishedRound
from ..files import (
    FAILURE,
    FINAL,
    PLACE,
    STATES,
    About,
    AppendLog,
    Ledger,
    Saved,
    ServerStore,
    SiloStore,
    StateLost,
    TrainedStore,
    forget_parts,
    read_kept,
    read_ledger,
    schema,
    sum_of,
    sums_of_folder,
    sync,
    to_bytes,
    undone_messages,
    write_bytes,
    write_record,
)
from ..metrics import across, figures
from ..wrappers.base import find
from ..wrappers.privacy import Private
from .base import BaseRun, Engine
from .progress import Progress
from .result_warnings import RunResult, described, method_cautions, result_warnings
from .summary import count, infos_of, measured_in, rows, summarize
from .unusual_updates import largest_part, noted_rows, rollback_advice

logger = logging.getLogger(__name__)
SPLITS = ("validation", "test")
"""The splits on which the final model is evaluated."""
ROWS, LEDGER = "rounds.jsonl", "ledger.jsonl"
MANY = 64
"""Number of files above which the whole file system is synchronized instead of single files."""


class Recorder:
    """Evaluates, appends rows, saves checkpoints, and reports progress."""

    def __init__(
        self,
        run: BaseRun,
        engine: Engine,
        store: ServerStore,
        run_state: schema.RunState,
        progress: Progress,
        norms: NormBound | None = None,
    ) -> None:
        self.run, self.engine, self.store, self.norms = run, engine, store, norms
        self.run_state, self.progress = run_state, progress
        self.rows = AppendLog(run.folder / "rounds.jsonl")
        self.ledger = Ledger(run.folder / "ledger.jsonl")
        self.states = AppendLog(run.folder / STATES)
        schedule = list(run.complete_method.schedule())
        self.trained, self.length, self.trained_kept = horizon(schedule), len(schedule), False
        self.unsynced: dict[SiloId, schema.KeptState] = {}
        """States that silos stored since the last durable checkpoint."""
        self.trained_sum: schema.Sums = {}
        """Checksum of the states after the last training round, which later checkpoints include."""
        self.suspected: frozenset[str] = frozenset()
        """Kinds of warnings that the last evaluation gave."""
        self.cautioned: set[str] = set()
        """Kinds of warnings that were reported during training."""
        self.mark = self.synced = time.perf_counter()

    def rewind(self, saved: Saved | None) -> tuple[dict[SiloId, int], dict[SiloId, schema.KeptState]]:
        """Discard the traces of an incomplete round, and reset silos if requested. Returns the last aggregated round
        and the stored state of each silo."""
        forget_parts(self.run.folder)
        saved = saved or Saved({}, schema.Checkpoint(t=-1, server=""))
        files = saved.checkpoint.files
        self.ledger.rewind(files.get(LEDGER))
        self.rows.rewind(files.get(ROWS))
        self.states.rewind(files.get(STATES))
        kept = read_kept(self.states.path)
        for silo in self.run.reset:
            if not kept:
                raise ConfigurationError(f"--reset {silo}: no silo has a state in {self.run.folder}")
            if silo not in kept:
                raise ConfigurationError(
                    f"--reset {silo}: no silo with this name has a state{one_of(silo, sorted(kept))}"
                )
        afresh = [schema.KeptState(silo=silo, t=saved.checkpoint.t) for silo in self.run.reset]
        self.states.add(afresh)
        self.run_state.reset += [schema.Reset(silo=each.silo, round=self.run_state.number) for each in afresh]
        return read_ledger(self.ledger.log.path).counted, kept | {each.silo: each for each in afresh}

    def check_trained(self, saved: Saved) -> None:
        """Raise DataError if the stored states after training are damaged or missing."""
        if (known := saved.checkpoint.files.get(PLACE)) is not None:
            self.trained_sum = {PLACE: known}
            TrainedStore(self.run.folder).load()

    def after(self, done: FinishedRound, server: State) -> None:
        phase = done.step.name
        seconds = self._lap("train")
        self._check_numbers(done.number, phase, server)
        count(self.run_state, done, phase)
        self.ledger.add(done.replies.updates, done.replies.totals is not None, round=done.number, t=done.t, phase=phase)
        self.end_training(done.t + 1)
        about = About(round=done.number, phase=phase)
        self._left_out(about, done.replies.left_out)
        self._report_noted(about, done)
        self._report_largest(done)
        metrics: dict[str, float] = {}
        if done.step.trains and done.number % self.run.spec.evaluation.every == 0:
            for split in self.run.spec.evaluation.splits:
                metrics, replies = self.evaluate(done.t, done.number, phase, split, server, self.run.measured)
                if split == "validation":
                    self._report_cautions(done.number, replies)
                    self._watch(done.number, metrics["nll"])
            self.run_state.measured = done.t
        self._lap("evaluate")
        milestone = self.run.complete_method.milestone(server)
        known = {k: v for k, v in (self.run_state.milestones or [{}])[-1].items() if k != "round"}
        if milestone != known:
            self.run_state.milestones.append({"round": done.number, **milestone})
            self.progress.note(", ".join(f"{name} {value:.4g}" for name, value in milestone.items()))
        self.run_state.number = done.number
        self._save(done, server)
        self.keep_trained(done.t)
        (self.run.folder / FAILURE).unlink(missing_ok=True)
        self.progress.round(done.number, phase, {**metrics, "seconds": seconds})
        self._lap("engine")

    def end_training(self, t: int) -> None:
        """Notify the engine if no training round follows from round t on."""
        if t >= self.trained or self.run_state.stopped:
            self.engine.end_training()

    def _save(self, done: FinishedRound, server: State) -> None:
        """Save a checkpoint; at intervals, wait until it is on disk."""
        t = done.t
        kept = self.engine.kept()
        self.states.add(kept)
        self.unsynced |= {each.silo: each for each in kept}
        logs = {LEDGER: self.ledger.log, ROWS: self.rows, STATES: self.states}
        files = {place: log.sum for place, log in logs.items() if log.bytes} | self.fixed
        files |= self.trained_sum if t >= self.trained else {}
        if durable := time.perf_counter() - self.synced >= self.run.sync_seconds:
            self._sync()
        self.store.save(t, server, self.run_state, files, durable, done.step.trains)
        self.engine.keep(self.store.needed)
        if durable:
            self.synced = time.perf_counter()

    def _report_cautions(self, number: int, replies: Replies) -> None:
        """Report, once, a warning of the method that two evaluations in a row give; a model may start like this."""
        found = {each.kind: each for each in method_cautions(self.run, described(measured_in(replies)))}
        for kind in sorted(found.keys() & self.suspected - self.cautioned):
            self.progress.note(f"round {number}: {kind}: {found[kind].text} {found[kind].advice}")
            self.cautioned.add(kind)
        self.suspected = frozenset(found)

    def _watch(self, number: int, loss: float) -> None:
        """Stop training if the validation loss has not decreased for long enough."""
        if (most := self.run.spec.evaluation.early_stopping_patience) is None:
            return
        best = self.run_state.best
        lower = best is None or loss < best
        self.run_state.best, self.run_state.worse = (loss, 0) if lower else (best, self.run_state.worse + 1)
        if self.run_state.worse >= most and number < self.rounds_planned:
            self.run_state.stopped = True
            self.engine.end_training()
            self.progress.note(
                f"early stopping after round {number}: the lowest validation loss was {self.run_state.best:.4f}, "
                f"{most} evaluations ago"
            )

    def keep_trained(self, t: int) -> None:
        """Keep the states after round t if it is the last training round and later rounds change them. Only runs with a
        configuration can be extended by more training rounds."""
        if t + 1 == self.trained < self.length and self.run.can_be_extended and not self.trained_kept:
            TrainedStore(self.run.folder).keep(read_kept(self.states.path).values())
            self.trained_kept = True
            self.trained_sum = {PLACE: sum_of(self.run.folder / PLACE)}

    @cached_property
    def fixed(self) -> schema.Sums:
        """Checksums of the files that do not change any more."""
        return {name: sum_of(self.run.folder / name) for name in self.run.fixed}

    def _sync(self) -> None:
        """Wait until all files of the next checkpoint are on disk."""
        for log in (self.ledger.log, self.rows, self.states):
            log.sync()
        if len(self.unsynced) > MANY:
            os.sync()
        store = SiloStore(self.states.path.parent / "silos")
        for kept in self.unsynced.values() if len(self.unsynced) <= MANY else ():
            store.sync(kept)
        for name in self.run.fixed:
            sync(self.run.folder / name)
        sync(self.run.folder)
        self.unsynced = {}

    def _check_numbers(self, number: int, phase: str, server: State) -> None:
        """Raise RunError for a state from which no run can continue; the previous checkpoint is kept."""
        # Infinity may represent unknown values, but must not be sent.
        sent = self.run.complete_method.broadcast(server)
        for state in (server, sent):
            for group, tensors in state.items():
                for name, tensor in tensors.items():
                    if not all_finite(tensor) and (state is sent or bool(tensor.isnan().any())):
                        raise Diverged(
                            f"round {number}, {phase}: the server's {group}/{name} is not finite: {DIVERGED}; the "
                            "previous checkpoint is kept"
                        )

    def finish(self, server: State) -> None:
        """Evaluate the final model on every split, and write the result."""
        t, number = self.run_state.last, self.run_state.number
        self.engine.end_training()  # in case the method skipped its last rounds
        final: dict[str, Replies] = {}
        for split in SPLITS:
            known = split in self.run.spec.evaluation.splits and self.run_state.measured == t
            final[split] = self.evaluate(t, number, FINAL, split, server, self.run.measured, not known)[1]
        newcomers: dict[SiloId, Payload] = {}
        if self.run.spec.newcomers:
            newcomers = measured_in(self.evaluate(t, number, FINAL, "test", server, self.run.spec.newcomers)[1])
        self._lap("evaluate")
        self._write_model(t, server)
        self.states.add(self.run.states_at_hand())
        for name, record in (("gallery", self.run.gallery()), ("features", self.run.features())):
            if record is not None:
                write_record(self.run.folder / f"{name}.json", record, lasting=True)
        self._lap("engine")
        self._sync()
        (self.run.folder / FAILURE).unlink(missing_ok=True)
        summary = summarize(self.run, self.run_state, final["test"], server, self._privacy(), newcomers)
        found = result_warnings(RunResult(self.run, summary, *map(measured_in, final.values())))
        noted = {"warnings": found} if found else {}
        complete = summary.model_copy(update={**noted, "files": sums_of_folder(self.run.folder)})
        write_record(self.run.folder / "summary.json", complete, lasting=True)

    def fail(self, error: Exception) -> None:
        """Record the error of a failed run, if possible."""
        number = min(self.run_state.number + 1, max(self.rounds_planned, 1))
        known = schema.Failure(
            schema=schema.SCHEMA,
            error=str(error) if isinstance(error, CaveatError | OSError) else f"{type(error).__name__}: {error}",
            diverged=isinstance(error, Diverged),
            lost=isinstance(error, StateLost),
            round=number,
            silo=getattr(error, "silo", ""),
        )
        if known.diverged and self.run_state.number > 0 and self.run.keep_checkpoints > 1:
            self.progress.note(rollback_advice(self.run.folder))
        with contextlib.suppress(RunError):
            write_record(self.run.folder / FAILURE, known)

    @cached_property
    def rounds_planned(self) -> int:
        """Number of training rounds."""
        return sum(step.trains for step in self.run.complete_method.schedule())

    def _privacy(self) -> schema.PrivacyRecord | None:
        """Return the privacy guarantee, from the messages that were sent."""
        if (private := find(self.run.complete_method, Private)) is None:
            return None
        messages = [*read_ledger(self.ledger.log.path).messages, *undone_messages(self.run.folder, self.run_state)]
        return schema.PrivacyRecord.model_validate(
            self.run.spec.privacy.outcome(messages, private.silos, private.covers)
        )

    def _write_model(self, t: int, server: State) -> None:
        folder, method = self.run.folder, self.run.method
        (folder / "model").mkdir(exist_ok=True)
        sent = to_bytes(self.run.complete_method.broadcast(server))
        write_bytes(folder / "model" / "model.safetensors", sent, lasting=True)
        write_record(
            folder / "model" / "model.json",
            schema.ModelFile(
                schema=schema.SCHEMA,
                method=plain(method) | {"name": type(method).__name__},
                t=t,
                model=self.run.spec.model.described,
                personal={silo: own.described for silo, own in self.run.personal_settings.items()},
                shape=list(self.run.info.shape),
                classes=list(self.run.info.classes),
            ),
            lasting=True,
        )

    def evaluate(
        self, t: int, number: int, phase: str, split: str, server: State, silos: Sequence[SiloId], write: bool = True
    ) -> tuple[dict[str, float], Replies]:
        """Evaluate silos on a split; return means of some metrics over silos, and their replies."""
        evaluated = self.engine.method
        about = About(round=number, phase=phase, split=split)
        replies = self.engine.exchange(t, split, evaluated.broadcast(server), sorted(silos))
        payloads = measured_in(replies)
        self.ledger.add(replies.updates, replies.totals is not None, t=t, **about)
        self._left_out(about, replies.left_out)
        if write:
            infos = infos_of(self.run.info, [name for name in silos if name in replies.updates], payloads)
            found = [row for info in infos for row in rows(self.run.method, info, payloads[info.name], about)]
            self.rows.add(found)
        mean = across({silo: figures(payload["sums"]) for silo, payload in payloads.items()})["mean"]
        return {name: mean[name] for name in ("accuracy", "crps", "entropy", "nll") if name in mean}, replies

    def _left_out(self, about: About, reasons: Mapping[SiloId, str]) -> None:
        """Report the silos that are not aggregated, in the rows and the log."""
        for silo, why in reasons.items():
            text = f"round {about['round']}, {about.get('split', about['phase'])}: without {silo}: {why}"
            self.progress.note(text)
            logger.warning("%s: %s", self.run.folder, text)
        self.rows.add([schema.LeftOut(**about, silo=silo, left_out=why) for silo, why in reasons.items()])

    def _report_noted(self, about: About, done: FinishedRound) -> None:
        """Report the silos whose updates were scaled down or far from all others."""
        if self.norms is not None:
            self.run_state.norms = self.norms.kept
        rows = list(noted_rows(about, done))
        if rows and done.number > 1 and self.run.keep_checkpoints > 1:
            self.progress.note(rollback_advice(self.run.folder, done.number - 1))
        for row in rows:
            text = f"round {row.round}, {row.phase}: {row.silo}: {row.noted}"
            self.progress.note(text)
            logger.warning("%s: %s", self.run.folder, text)
            self.rows.add([row])

    def _report_largest(self, done: FinishedRound) -> None:
        """Report the largest share of a silo in a sum without norm bounds, if silos report their own sizes."""
        if self.run.counts is None or not self.run.spec.robust.watches:
            return
        if (part := largest_part(done, self.run.info.silo_infos)) is not None:
            self.run_state.largest.append(part)
            self.progress.note(
                f"{part.phase}: {part.silo} reports {part.share:.0%} of the {part.split} inputs in the sum; no other "
                "silo can change the result more"
            )

    def _lap(self, name: str) -> float:
        now = time.perf_counter()
        spent, self.mark = now - self.mark, now
        self.run_state.seconds[name] += spent
        return spent
