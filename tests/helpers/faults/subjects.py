"""What is run in cases: every method on a few digits, and a few settings beside that write other files."""

from __future__ import annotations

from dataclasses import dataclass

from caveat.methods import METHODS

BASE = (
    "rounds=3 training.local_epochs=1 training.batch_size=8 model.name=mlp model.width=4 model.features=4 "
    "model.hidden=4 uncertainty.mc_samples=2 engine.workers=1 engine.sync_seconds=1e6 baselines=[] "
    "data.split.train=0.6 data.split.validation=0.15 data.split.calibration=0.25"
)
DIGITS = "data.source=digits data.n_silos=3 data.samples_per_silo=24 data.test_per_silo=8 data.shift.angles=[0,-50,120]"
OWN = {
    "fedbn": "model.name=normed model.width=2",
    "scaffold": "federation.participation=0.5",
    "fedrep": "method.head_epochs=1 evaluation.every=2",
    "uefl": "method.iterations=2 method.extra_rounds=1 method.codewords=4 method.threshold=0 method.margin=0",
    "fedpn": "method.layers=2 method.personal_epochs=1 method.personal_steps=0",
    "feddyn": "federation.participation=0.3 federation.min_silos=2",
    "apfl": "uncertainty.temperature_scaling=true",
}
"""What a method is given beside; one that is not here has its defaults, so that a new one joins by itself."""
VARIANTS = {
    "scaffold-durable": "method.name=scaffold engine.sync_seconds=0",
    "fedavg-beside": 'method.name=fedavg rounds=2 baselines=["fedper"]',
    "fedbabu-guaranteed": "method.name=fedbabu uncertainty.policy=guaranteed uncertainty.risk=0.9",
    "fedavg-noise": "method.name=fedavg privacy.clip_norm=1 privacy.noise_multiplier=0.3",
    "fedavg-newcomers": 'method.name=fedavg federation.newcomers=["silo-2"] uncertainty.policy=switch',
    "fedavg-vectorized": "method.name=fedavg engine.vectorized=on",
    "scaffold-vectorized": "method.name=scaffold engine.vectorized=on federation.participation=0.7",
}


@dataclass(frozen=True)
class Subject:
    """Settings of a run, by a name."""

    name: str
    sets: tuple[str, ...]

    @property
    def method(self) -> str:
        return next(item for item in reversed(self.sets) if item.startswith("method.name=")).partition("=")[2]

    @property
    def silo(self) -> str:
        """One of which predictions are asked."""
        return "silo-1"


def _subject(name: str, text: str) -> Subject:
    base = [item for item in BASE.split() if "model.name=" not in text or not item.startswith("model.")]
    last = {item.partition("=")[0]: item for item in [*base, *DIGITS.split(), *text.split()]}
    return Subject(name, tuple(last.values()))


SUBJECTS = {name: _subject(name, f"method.name={name} {OWN.get(name, '')}") for name in METHODS}
SUBJECTS |= {name: _subject(name, text) for name, text in VARIANTS.items()}
