"""Three alarms for any method: for inputs unlike a silo's own, for novel inputs, and for unusually uncertain answers.

Familiarity comes from densities of the features that models compute on the way to an answer.

After the base's last round every silo sends sums over its training inputs of features of the input itself and of every
stage of the encoder (`caveat.nn.stage_features`). From their means over silos the server computes the densities of
the pooled inputs (`caveat.uncertainty.familiarity`). A silo keeps the distances of its own calibration split, and ranks
the distances of an input among them (`caveat.uncertainty.typicality`). It also keeps the uncertainties of each model's
answers to the calibration split, and ranks the uncertainty of an answer among them. Nothing is trained, and no pass
through a model is made twice.

A silo also keeps the inputs of a model's last layer for its training inputs, or for a sample of them, and ranks the
distance of an input to the nearest one among the distances of its calibration split (`caveat.uncertainty.novelty`).
These features never leave the silo. A silo without them has no score of novelty.

If silos have personalized models of their own architectures, the sums of their stages stay at the silo. If `shared` is
false, all sums do. This is the case under differential privacy, whose noise would hide the sums.
"""

from collections.abc import Iterable, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from ..core import Answers, Decision, Payload, Prediction, Replies, Round, SiloContext, State, SumOver, Tensors, Update
from ..core.silo import SiloInfo
from ..nn.stage_features import before_last, by_answer, numbers_of, recording, stages
from ..uncertainty import familiarity, novelty, typicality
from ..uncertainty import mondrian as by_subgroup
from ..uncertainty.histograms import beside
from .base import Wrapper

GROUP = "familiarity"
"""The group that the wrapper sends and keeps."""
READY = "ready"
"""The name of the tensor that exists once the densities exist."""
INPUTS, DISTANCES = ".calibration", ".distances"
"""Suffixes of the tensors that a silo keeps of a stage: the features of its calibration inputs, or their distances once
the silo has deleted its rows."""
SUBGROUP = "subgroup"
"""The name of the tensor (n,) of the subgroups of a silo's calibration inputs."""
SCORES = ".scores"
"""Suffix of the tensor that a silo keeps of a model: the scores of its answers to calibration inputs."""
ROWS, NEAREST = ".rows", ".nearest"
"""Suffixes of the tensors that a silo keeps of a model for novelty: directions of features of training inputs, and
log-distances of calibration inputs to the nearest of them."""
PART = 2000
"""Number of training inputs whose features are in memory at once."""
REMEMBERED: MutableMapping[Tensor, tuple[ref[Tensor], Tensor]] = WeakIdKeyDictionary()
"""Distances of calibration inputs and the density with which they were measured, by the tensor of their features. Each
batch of a prediction needs the same distances, and kept tensors do not change."""
INPUT = "input"
"""Prefix of stages of the input itself; the prefix of other stages is their model."""


class Observed(NamedTuple):
    """Answers to N inputs, and their recorded features."""

    answers: Answers
    numbers: Tensors
    """Features (N, d) by stage."""
    last: Tensors
    """Features (N, d) that the last layer takes, by model."""


@dataclass(frozen=True)
class Familiar(Wrapper):
    """The base, with three p-values (familiarity, nearness and sureness) and two scores for every answer."""

    false_alarm_rate: float = 0.05
    """Largest expected share of inputs like a silo's own that raise an alarm: unfamiliar, novel or unsure."""
    shared: bool = True
    """Whether sums leave a silo; otherwise each silo has its own densities."""
    everyone: bool = True
    """Whether all silos are asked, or only those that a training round asks; the others use the same densities."""
    score: str = "total"
    """The uncertainty that `unsure` ranks, a key of the base's `Prediction.scores`."""
    subgroups: int = 0
    """Number of subgroups, each ranked among its own calibration inputs if there are enough."""

    @property
    def scores(self) -> tuple[str, ...]:  # type: ignore[override]
        return (typicality.SCORE, novelty.SCORE, *self.base.scores)

    def init_server(self, context: SiloContext) -> State:
        return self.base.init_server(context) | {GROUP: {}}

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(
            self.base.broadcast, self.describe_own, self.pool,
            everyone=self.everyone, trains=False, linear="silos", name="familiarity",
            sums=SumOver("train", self.wrong) if self.shared else None,
        )  # fmt: skip

    def broadcast(self, server: State) -> Payload:
        return self.base.broadcast(server) | {GROUP: server[GROUP]}

    # After training: a silo sends sums, and keeps what it measured on its calibration inputs.

    def describe_own(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Send sums of the features of training inputs; keep features and scores of calibration and training inputs."""
        added, rows = self.add_up(down, state, context)
        theirs = {name: sums for name, sums in added.items() if self.is_sent(name)}
        kept = rows | self.of_calibration(down, state, context, rows) | self.of_its_own(added)
        return Update({GROUP: nested(self.completed(theirs))}, 1), state | {GROUP: kept}

    def add_up(self, down: Payload, state: State, context: SiloContext) -> tuple[dict[str, Tensors], Tensors]:
        """Return the sums of the training split by stage, and by model the rows that inputs are compared with."""
        found: dict[str, Tensors] = {}
        y, rows = context.train.y.cpu(), dict[str, list[Tensor]]()
        sampled = torch.zeros_like(y, dtype=torch.bool).index_fill_(0, novelty.sampled(len(y)), True)
        group: Tensor | None = None
        for part in torch.split(torch.arange(len(y)), PART):
            answers, numbers, last = self.observed(down, state, context, context.train.part(part).x)
            classes = next(iter(answers.values())).probs.shape[1]
            group = familiarity.grouped(y, classes) if group is None else group
            for stage, h in numbers.items():
                sums = familiarity.sums(h, group[part], classes)
                found[stage] = {k: found[stage][k] + sums[k] for k in sums} if stage in found else sums
            for model, h in last.items():
                chosen = novelty.directions(h[beside(sampled[part], h)])
                rows.setdefault(f"{model}{ROWS}", []).append(chosen)
        return found, {name: torch.cat(each) for name, each in rows.items()}

    def of_calibration(self, down: Payload, state: State, context: SiloContext, rows: Tensors) -> Tensors:
        """Return features of the calibration split by stage, and by model their scores and distances to the rows."""
        answers, numbers, last = self.observed(down, state, context, context.calibration.x)
        # Cloned, because models can share the tensor of a score, and shared tensors cannot be stored.
        scores = {f"{whose.name.lower()}{SCORES}": each.score(self.score).clone() for whose, each in answers.items()}
        scores |= {f"{model}{NEAREST}": novelty.log_distances(rows[f"{model}{ROWS}"], h) for model, h in last.items()}
        of = context.subgroups.get("calibration") if self.subgroups else None
        known = {} if of is None else {SUBGROUP: beside(of, context.calibration.y)}
        return {f"{stage}{INPUTS}": h for stage, h in numbers.items()} | scores | known

    def of_its_own(self, added: dict[str, Tensors]) -> Tensors:
        """Return the densities of stages whose sums stay at the silo."""
        return densities({name: sums for name, sums in added.items() if not self.is_sent(name)}, 1)

    def is_sent(self, stage: str) -> bool:
        """Return whether the sums of a stage leave the silo: the sums of its own architecture do not."""
        return self.shared and not (self.personal and whose_stage(stage) == Decision.LOCAL.name.lower())

    def completed(self, added: dict[str, Tensors]) -> dict[str, Tensors]:
        """Return the sums, with zeros for a model that this silo has not trained yet."""
        missing = [whose.name.lower() for whose in self.models]
        missing = [whose for whose in missing if whose not in {whose_stage(stage) for stage in added}]
        return added | {
            f"{whose}{stage[len(whose_stage(stage)) :]}": {k: torch.zeros_like(t) for k, t in sums.items()}
            for whose in missing
            for stage, sums in added.items()
            if whose_stage(stage) != INPUT and self.is_sent(whose)
        }

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Return why `sent` cannot be sums over a silo's training inputs; "" if it can."""
        for stage, sums in by_stage(sent.get(GROUP, {})).items():
            if why := familiarity.impossible(sums, card.class_counts):
                return f"{stage}: {why}"
        return ""

    def pool(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Set the densities of all silos' training inputs, from the means of their sums."""
        pooled = densities(by_stage(replies.mean(GROUP)), len(replies))
        return server | {GROUP: pooled | {READY: torch.tensor(True)}}

    # Prediction: the rank of an input's distance among those of the silo's calibration inputs.

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        if READY not in down.get(GROUP, {}):
            return self.base.answer(down, state, context, x)
        known = down[GROUP] | (state.get(GROUP) or self.made_up(down, state, context))
        found = self.observed(down, state, context, x)
        judged = {whose: self.judged(answer, whose, found, known) for whose, answer in found.answers.items()}
        if SUBGROUP not in known or context.subgroup is None or not self.false_alarm_rate:
            return judged
        row = beside(context.subgroup, known[SUBGROUP])
        return {whose: self.among_its_own(each, whose, found, known, row) for whose, each in judged.items()}

    def among_its_own(
        self, answer: Prediction, whose: Decision, found: Observed, known: Tensors, subgroup: Tensor
    ) -> Prediction:
        """Return a judged answer whose p-values are ranks among calibration inputs of the same pool of subgroups (N,).
        The scores of familiarity and novelty are still relative to all calibration inputs."""
        sizes, least = by_subgroup.sizes(known[SUBGROUP], self.subgroups), typicality.least(self.false_alarm_rate)
        pool = by_subgroup.pools(sizes, least)
        theirs, own = by_subgroup.rows(known[SUBGROUP], pool), by_subgroup.rows(subgroup, pool)
        if theirs is None or own is None or sizes.sum() < least:
            return answer
        p_values = {name: p.clone() for name, p in answer.p_values.items()}
        among = torch.full(own.shape, len(theirs), device=own.device)
        for k in sorted({*own.tolist()} - {0}):
            there, mine = own == k, theirs == k
            numbers, last = ({name: h[there] for name, h in each.items()} for each in (found.numbers, found.last))
            part = Familiar.judged(self, answer.part(there), whose, Observed({}, numbers, last), only(known, mine))
            for name, p in part.p_values.items():
                p_values[name][there] = p
            among[there] = int(mine.sum())
        return replace(answer, **p_values, ranked_among=among)  # type: ignore[arg-type]

    def made_up(self, down: Payload, state: State, context: SiloContext) -> Tensors:
        """Return the tensors that a silo which missed the round would have kept."""
        if self.shared and not self.personal:  # no sums of its own are needed
            context = replace(context, train=context.train.part(novelty.sampled(len(context.train))))
        added, rows = self.add_up(down, state, context)
        return rows | self.of_calibration(down, state, context, rows) | self.of_its_own(added)

    def observed(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Observed:
        """Return the base's answers to inputs (N, ...), and the features of each stage and of the last layer."""
        modules = {Decision.LOCAL: context.own} if self.personal and context.own is not None else {}
        with ExitStack() as stack:

            def recorded(module: nn.Module) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
                within, last = (stack.enter_context(recording(each)) for each in (stages(module), before_last(module)))
                return within, last

            shared, own = recorded(context.module), {whose: recorded(module) for whose, module in modules.items()}
            answers = self.base.answer(down, state, context, x)
        numbers = {f"{INPUT}.{name}": h for name, h in numbers_of(context.module, x).items()}
        first, last = next(iter(numbers.values())), Tensors()
        in_shared = [whose for whose in answers if whose not in own]
        for whose in answers:
            model, among = whose.name.lower(), in_shared if whose in in_shared else [whose]
            within, before = ([by_answer(passes, len(x), len(among))[among.index(whose)] if passes else None
                               for passes in each] for each in own.get(whose, shared))  # fmt: skip
            of_stages = {f"{model}.{i}": h for i, h in enumerate(within, 1) if h is not None}
            # If the last layer's input was not recorded, the last stage replaces it, or without stages the input.
            last[model] = next((h for h in [*before, *reversed(of_stages.values())] if h is not None), first)
            numbers |= of_stages
        return Observed(answers, numbers, last)

    def judged(self, answer: Prediction, whose: Decision, found: Observed, known: Tensors) -> Prediction:
        """Return an answer with its p-values and scores of familiarity and novelty, from all stages with a density."""
        model, numbers = whose.name.lower(), found.numbers
        scores, uncertainty = known[f"{model}{SCORES}"], answer.score(self.score)
        sureness = typicality.sureness(scores, uncertainty)
        answer = replace(
            answer,
            sureness=sureness,
            typicality=sureness,
            false_alarm_rate=self.false_alarm_rate,
            ranked_among=len(scores),
        )
        among = [s for s in numbers if whose_stage(s) in (INPUT, model) and f"{s}.whiten" in known]
        if not among:
            return answer
        theirs = torch.stack([distances_kept(known, stage) for stage in among], 1)
        own = torch.stack([distances(known, stage, numbers[stage]) for stage in among], 1)
        answer = replace(
            answer,
            uncertainty=answer.uncertainty | {typicality.SCORE: typicality.score(theirs, own)},
            familiarity=typicality.conformal(theirs, own),
        )
        if novel := f"{model}{ROWS}" in known:
            near, new = known[f"{model}{NEAREST}"], novelty.log_distances(known[f"{model}{ROWS}"], found.last[model])
            ranked = {novelty.SCORE: typicality.score(near[:, None], new[:, None])}
            answer = replace(answer, uncertainty=answer.uncertainty | ranked, nearness=typicality.sureness(near, new))
            theirs, own = torch.cat([theirs, near[:, None]], 1), torch.cat([own, new[:, None]], 1)
        return replace(answer, typicality=typicality.typicality(theirs, scores, own, uncertainty, novelty=novel))


def only(known: Tensors, rows: Tensor) -> Tensors:
    """Return the tensors with only the calibration inputs of `rows`, (n,) bool, as distances and scores."""
    names = [name.removesuffix(INPUTS).removesuffix(DISTANCES) for name in known if name.endswith((INPUTS, DISTANCES))]
    kept = {f"{each}{DISTANCES}": distances_kept(known, each)[rows] for each in names if f"{each}.whiten" in known}
    kept |= {name: each[rows] for name, each in known.items() if name.endswith((SCORES, NEAREST))}
    return {name: each for name, each in known.items() if not name.endswith((INPUTS, DISTANCES))} | kept


def distances(known: Tensors, stage: str, numbers: Tensor) -> Tensor:
    """Return (N,) log-distances of a stage's features (N, d)."""
    return familiarity.log_distances({name: known[f"{stage}.{name}"] for name in familiarity.DENSITY}, numbers)


def distances_kept(known: Tensors, stage: str) -> Tensor:
    """Return (n,) log-distances of a stage's calibration inputs, as kept or from the features that were kept."""
    inputs = known.get(f"{stage}{INPUTS}")
    if inputs is None:
        return known[f"{stage}{DISTANCES}"]
    whiten = known[f"{stage}.whiten"]
    found = REMEMBERED.get(inputs)
    if found is None or found[0]() is not whiten:
        REMEMBERED[inputs] = found = ref(whiten), distances(known, stage, inputs)
    return found[1]


def without_rows(kept: Tensors) -> Tensors:
    """Return the kept tensors of a silo without features of training inputs, and so without novelty."""
    return {name: each for name, each in kept.items() if not name.endswith((ROWS, NEAREST))}


def distances_alone(kept: Tensors, densities: Tensors) -> Tensors:
    """Return a silo's tensors `without_rows`, with distances (n,) in place of features (n, d) of calibration inputs.

    p-values and scores need nothing else and stay bit-identical. Distances are rounded as in p-values, and inputs are
    in the order of their distances, not of the splits.
    """
    kept = without_rows(kept)
    known = densities | kept
    names = [name.removesuffix(INPUTS) for name in kept if name.endswith(INPUTS)]
    scores = {name: typicality.settled_scores(each) for name, each in kept.items() if name.endswith(SCORES)}
    rest = {name: each for name, each in kept.items() if not name.endswith((INPUTS, SCORES))}
    found = {
        f"{stage}{DISTANCES}": typicality.settled(distances_kept(known, stage))
        for stage in names
        if f"{stage}.whiten" in known
    } | scores
    found |= {SUBGROUP: rest.pop(SUBGROUP)} if SUBGROUP in rest else {}
    table = torch.stack([each.double() for each in found.values()], 1)
    for column in reversed(range(len(found))):
        table = table[table[:, column].argsort(stable=True)]
    made = {name: table[:, i].contiguous() for i, name in enumerate(found)}
    return rest | made | ({SUBGROUP: made[SUBGROUP].long()} if SUBGROUP in made else {})


def whose_stage(stage: str) -> str:
    """Return the owner of a stage: the input, the global model or the local model."""
    return stage.partition(".")[0]


def nested(by_name: dict[str, Tensors]) -> Tensors:
    """Return tensors by stage as one group, with names "stage.name"."""
    return {f"{stage}.{name}": tensor for stage, tensors in by_name.items() for name, tensor in tensors.items()}


def by_stage(group: Tensors) -> dict[str, Tensors]:
    """Invert `nested`."""
    found: dict[str, Tensors] = {}
    for path, tensor in group.items():
        stage, _, name = path.rpartition(".")
        found.setdefault(stage, {})[name] = tensor
    return found


def densities(added: dict[str, Tensors], silos: int) -> Tensors:
    """Return the tensors of all stages' densities by "stage.name", from the means of the sums of `silos` silos."""
    return nested({
        stage: familiarity.density(sums, silos * float(sums["counts"].sum()))
        for stage, sums in added.items()
        if sums["counts"].any()
    })  # fmt: skip


def among_others(answer: Prediction) -> Prediction:
    """Return the answer to calibration inputs with the p-values of new inputs, although each was ranked with itself.

    An input with the same p-value as another one keeps its p-value: a new input like both of them has at least this
    p-value, so it is answered if both are, and their errors must be counted.
    """
    if isinstance(answer.ranked_among, int) and not answer.ranked_among:
        return answer
    among = answer.ranked_among + 1

    def as_new(p: Tensor) -> Tensor:
        others = ((p * among).round() - 1) / among
        ranks = torch.stack([p.double(), torch.as_tensor(among, dtype=torch.float64).expand(len(p)).to(p.device)])
        _, kind, count = ranks.unique(dim=1, return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
        return torch.where(count[kind] > 1, p, others)

    return replace(answer, **{name: as_new(p) for name, p in answer.p_values.items()})  # type: ignore[arg-type]
