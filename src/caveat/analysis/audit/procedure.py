"""Run an audit, from Python or for `caveat audit`: train, test the uncertainties, and write the page."""

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar, Unpack

from ... import data
from ..._version import __version__
from ...config import Config, EngineSettings, Evaluation
from ...core import ConfigurationError, Method
from ...core.devices import find_devices
from ...core.errors import cut
from ...core.quantity import check_classes_only
from ...core.settings import path_of
from ...core.text import initial, percent
from ...data import Silos
from ...files import read, write_bytes, write_record
from ...files.schema import SCHEMA, AuditFile, Finding, FusedCopies, Summary, as_json
from ...html.audit import render, shortly
from ...runs import call_arguments
from ...runs.local_run import LocalRun
from ...runs.progress import Progress, Silent
from ...runs.spec import RunSpec, spec_of
from ...terminal.tables import Heading, TextTable, text_table, written
from . import claim_tests as promises
from . import data_fractions, fusing_copied_opinions
from .accuracy_against_chance import against_chance, judged
from .calibration import calibration
from .claim_tests import about_logits, disagreement
from .correction import corrected
from .run_predictions import KEPT, LOGITS, Observed, mean_over_silos

ONCE = Evaluation(every=10**9)
"""No evaluation between rounds: an audit only uses the final model."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit."""

    findings: tuple[Finding, ...]
    file: AuditFile
    """The settings, a row per run, and the findings, as in `audit.json`."""

    @property
    def record(self) -> dict[str, Any]:
        """The content of audit.json."""
        return as_json(self.file)

    def __rich__(self) -> TextTable:
        about, accuracy = self.file, self.file.accuracy
        title = (
            f"{about.method['name']}, {about.silos} silos, {len(about.seeds)} seeds; accuracy with all data "
            f"{percent(accuracy.mean)}" + (f"\n{accuracy.warning}" if accuracy.warning else "")
        )
        heads = [
            Heading("promise", words=True),
            Heading("verdict", words=True),
            Heading("found", words=True, wraps=True),
        ]
        rows = ((each.name, each.verdict, f"{initial(each.claim)}: {shortly(each)}") for each in self.findings)
        # Blank lines between rows by `leading`, because padding would add one below the header, too.
        return text_table(heads, rows, title, gap=1, leading=1)

    def __str__(self) -> str:
        return written(self)

    def write(self, folder: Path) -> Path:
        """Write audit.json and audit.html to a folder; return the path of the page."""
        write_record(folder / "audit.json", self.file)
        write_bytes(folder / "audit.html", render(self.file).encode())
        return folder / "audit.html"


@call_arguments.with_arguments(call_arguments.TrainingArguments)
def audit(
    silos: Silos,
    method: Method,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    fractions: Sequence[float] = (1 / 8, 1 / 4, 1 / 2, 1),
    workers: int = 1,
    device: str = "cpu",
    out: str | Path | None = None,
    progress: Progress | None = None,
    **settings: Unpack[call_arguments.TrainingArguments],
) -> Audit:
    """Train `method` with several seeds on fractions of the silos' training data, and test its uncertainties.

    A seed sets initial weights, batches, dropout, and the data of a fraction; the fractions of a seed are nested, and
    splits other than train do not change. Every run takes the same number of optimizer steps: epochs of `training` are
    converted to the steps of a silo with all data. The audit uses each silo's predictor on its test split. The other
    arguments are the same as in `caveat.run`. `out` is a folder for the runs, `audit.json` and `audit.html`: the same
    call continues an interrupted audit, and a longer list of seeds or fractions extends it. Raises ConfigurationError
    or DataError before anything runs, RunError if a silo fails.
    """
    spec = call_arguments.spec_of_call(silos, method, settings, call_arguments.TrainingArguments, "audit")
    with call_arguments.explained():
        engine = EngineSettings(workers=workers, device=device)
        find_devices(engine.device, engine.workers)
    return audit_of(spec, silos, seeds, fractions, engine, out, progress)


def audit_of(
    spec: RunSpec,
    silos: Silos,
    seeds: Sequence[int],
    shares: Sequence[float],
    engine: EngineSettings,
    out: str | Path | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> Audit:
    """Audit the method of a specification, ignoring its seed. Raises the errors of `audit`."""
    instead = "see the coverage of intervals per silo in the report, and `caveat ood` for familiarity and alarms"
    check_classes_only(
        silos.target, "audit tests entropies of classes, their calibration and their fusion, and", instead
    )
    devices = find_devices(engine.device, engine.workers)
    spec = dataclasses.replace(
        spec,
        seed=0,
        evaluation=ONCE,
        method=data_fractions.with_equal_steps(spec.method, silos),
        data=None,
        baselines=(),
    )
    with tempfile.TemporaryDirectory(prefix="caveat-") as passing:
        folder = path_of(out, "out") if out is not None else Path(passing)
        sweep = data_fractions.Sweep(
            LocalRun(folder=folder, spec=spec, silos=silos, engine_settings=engine, devices=devices),
            call_arguments.listed(shares, float, "shares"),
            call_arguments.listed(seeds, lambda seed: call_arguments.whole(seed, "seeds"), "seeds"),
        )
        sweep.check()
        with sweep.begun():
            result = _examine(sweep, progress or Silent())
            result = Audit(result.findings, result.file.model_copy(update={"command": command}))
            if out is not None:
                result.write(folder)
    return result


def _examine(sweep: data_fractions.Sweep, progress: Progress) -> Audit:
    """Execute all runs and test them. For runs on a fraction of the data, only means are kept."""
    rows: list[dict[str, int | float]] = []
    full: list[Observed] = []
    summaries: list[Summary] = []
    for share, seed, run in sweep.run(progress):
        seen = data_fractions.observed(run)
        rows.append({"share": share, "seed": seed, "n": data_fractions.mean_size(run.silos), **mean_over_silos(seen)})
        if share == 1:
            full.append(seen)
            summaries.append(read(run.folder / "summary.json", Summary))
    why_not = fusing_copied_opinions.no_opinions(full)
    fusion = {} if why_not else fusing_copied_opinions.fused_with_copies(full)
    copies = [
        fusing_copied_opinions.copies_are_no_evidence(name, why_not or fusion[name])
        for name in fusing_copied_opinions.RULES
    ]
    accuracy = against_chance(full)
    found = judged(corrected([*_findings(rows, full, summaries), *copies]), accuracy)
    common = sweep.common()
    file = AuditFile(
        schema=SCHEMA,
        version=__version__,
        seeds=list(sweep.seeds),
        shares=sorted(sweep.shares),
        silos=len(sweep.whole.silos),
        method=common.method,
        model=common.model,
        uncertainty=common.uncertainty,
        privacy=common.privacy,
        server=common.server,
        participation=common.participation,
        personal=common.personal,
        accuracy=accuracy.record,
        findings=list(found),
        runs=rows,
        fusion={
            rule: [[FusedCopies.model_validate(row) for row in rows] for rows in by_seed]
            for rule, by_seed in fusion.items()
        },
    )
    return Audit(found, file)


def _findings(
    rows: list[dict[str, int | float]], full: Sequence[Observed], summaries: Sequence[Summary]
) -> tuple[Finding, ...]:
    falling = [name for name in KEPT if name in ("epistemic", "vacuity", LOGITS) and all(name in row for row in rows)]
    return (
        *(promises.sample_size(rows, name) for name in falling),
        promises.two_things(full),
        disagreement(full),
        promises.seeds_agree(full),
        *about_logits(full),
        calibration(summaries),
    )


Number = TypeVar("Number", int, float)


def audit_configured(
    config: Config, out: Path, seeds: str, shares: str, workers: int | None, progress: Progress, command: str = ""
) -> Audit:
    """Audit the configured method in folder `out`, without baselines; the configuration's `seed` sets the splits."""
    if config.federation.newcomers:
        raise ConfigurationError("federation.newcomers cannot be used in an audit, in which every silo takes part")
    return audit_of(
        spec_of(config),
        data.load(config.data, config.seed),
        numbers(seeds, "--seeds", int, "0,1,2"),
        numbers(shares, "--fractions", lambda text: float(Fraction(text)), "1/8,1/4,1/2,1"),
        replace(config.engine, workers=workers or config.engine.workers),
        out,
        progress,
        command,
    )


def numbers(text: str, option: str, read: Callable[[str], Number], example: str) -> tuple[Number, ...]:
    """Parse comma-separated numbers. Raises ConfigurationError that names the option."""
    try:
        return tuple(read(part.strip()) for part in text.split(","))
    except (ValueError, ZeroDivisionError, OverflowError):
        about = f"{option} {cut(text, 100)}: expected comma-separated numbers, for instance {example}"
        raise ConfigurationError(about) from None
