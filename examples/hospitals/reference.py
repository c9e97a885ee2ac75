"""The same run on one machine, in which silos take part in exactly the rounds in which they were aggregated."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from caveat import data
from caveat.core import Payload, Round, SiloId
from caveat.data.tables.declarations import LabelCode
from caveat.engines.rounds import Participation
from caveat.files import ServerStore, SiloStore, read_ledger
from caveat.files.checkpoints import read_payload
from caveat.runs.execution import execute
from caveat.runs.local_run import LocalRun
from caveat.runs.progress import Silent
from caveat.runs.spec import RunSpec
from caveat.runs.spec_file import run_file, spec_in


@dataclass(frozen=True, kw_only=True)
class AsCounted(Participation):
    """Asks the silos whose updates were counted, and no others."""

    counted: frozenset[tuple[int, SiloId]]

    def cohort(self, t: int, step: Round, silos: Sequence[SiloId]) -> Sequence[SiloId]:
        return [silo for silo in silos if (t, silo) in self.counted]


@dataclass(frozen=True, kw_only=True)
class CountedSpec(RunSpec):
    """A specification in which silos take part as they were counted."""

    counted: frozenset[tuple[int, SiloId]]

    @property
    def participation(self) -> Participation:
        return AsCounted(self.seed, counted=self.counted)


def counted(run: Path) -> frozenset[tuple[int, SiloId]]:
    """Rounds and silos of all updates that the server has counted."""
    return frozenset(
        (sent.t, sent.silo)
        for sent in read_ledger(run / "ledger.jsonl").messages
        if sent.split is None and sent.t is not None
    )


def differences(run: Path, states: dict[SiloId, Path], tables: Sequence[Path], folder: Path) -> list[str]:
    """What a run on one machine, in a new folder, ends with other bits of: "server", or names of silos.

    `states` are the folders where the silos keep their private states, `tables` their csv files.
    """
    began, took_part = spec_in(run, run_file(run)), counted(run)
    assert began.data is not None
    codes = tuple(LabelCode(code=str(i), meaning=name) for i, name in enumerate(began.data.classes))
    local = dataclasses.replace(began.data, source=f"csv:{','.join(map(str, tables))}", label_codes=codes)
    specified = {field.name: getattr(began, field.name) for field in dataclasses.fields(RunSpec)}
    spec = CountedSpec(**specified, counted=took_part)
    folder.mkdir(parents=True)
    execute(LocalRun(spec=spec, folder=folder, silos=data.load(local, began.seed)), Silent(), began.method.name)
    there, here = ServerStore(run / "state").load(), ServerStore(folder / "state").load()
    assert there is not None
    assert here is not None
    found = [] if there.checkpoint.t == here.checkpoint.t and same(there.server, here.server) else ["server"]
    for silo, root in states.items():
        last = max(t for t, name in took_part if name == silo)
        if not same(kept(root, silo, last), kept(folder / "state" / "silos", silo, last)):
            found.append(silo)
    return found


def kept(root: Path, silo: SiloId, t: int) -> Payload:
    """A silo's private state after a round; nothing where it has none."""
    rounds = [version for version in SiloStore(root).versions(silo) if version <= t]
    if not rounds:
        return {}
    path = root / silo / f"{rounds[-1]:06d}.safetensors"
    return read_payload(path)


def same(a: Payload, b: Payload) -> bool:
    """Whether two payloads have the same groups, names, types and bits, in whatever order."""
    if {group: set(tensors) for group, tensors in a.items()} != {group: set(tensors) for group, tensors in b.items()}:
        return False
    return all(
        torch.equal(tensor, b[group][name]) and tensor.dtype == b[group][name].dtype
        for group, tensors in a.items()
        for name, tensor in tensors.items()
    )
