"""What tests/test_bits.py runs: settings as the command line takes them, and small data, the same everywhere."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

BASE = """
rounds = 3
[method]
name = "fedavg"
[training]
local_epochs = 1
batch_size = 16
lr = 0.03
[model]
name = "mlp"
hidden = 8
[data.split]
train = 0.6
validation = 0.15
calibration = 0.25
[uncertainty]
mc_samples = 3
[engine]
workers = 2
"""
"""All but the data and the method. It is no recipe, so that recipes can change without the bits."""
PIXELS = "data.source=digits data.n_silos=3 data.samples_per_silo=60 data.test_per_silo=20"
ROTATED = f"{PIXELS} data.shift.angles=[0,-50,120]"
TABLE = "data.source=csv:FOLDER/table.csv data.target=ill data.silo_column=ward"
DOMAINS = "data.source=npz:FOLDER/red.npz,FOLDER/blue.npz data.size=8 data.channels=3 data.n_silos=4"
CLASSES = f"{PIXELS} data.partition.scheme=classes data.partition.per_silo=4 data.ood.local=classes"
"""FOLDER stands for where `write_data` has written."""

FEDPN = "method.name=fedpn method.layers=3 method.personal_epochs=1 method.personal_steps=0"
# With a threshold of 0 every silo but the most certain is extended.
UEFL = (
    "method.name=uefl method.iterations=3 method.extra_rounds=1 method.codewords=4 method.threshold=0 method.margin=0 "
    "method.segments=1"
)
SGD = "training.optimizer=sgd training.lr=0.1"

METHODS = {
    "local": f"{PIXELS} data.partition.scheme=draws data.partition.per_silo=4",
    "fedavg": "",
    "fedprox": "method.mu=0.1 privacy.clip_norm=0.05 privacy.noise_multiplier=0 privacy.delta=0.001",
    "fedbn": "model.name=normed model.width=2",
    "scaffold": f"federation.participation=0.5 {SGD}",
    "moon": (
        "model.name=cnn model.width=2 model.second=6 training.weight_decay=0.01 training.lr_decay=0.9 "
        "training.lr_hold=1 training.local_epochs=2"
    ),
    "feddyn": f"method.alpha=0.1 federation.participation=0.3 federation.min_silos=2 {SGD}",
    "feddc": f"method.alpha=0.1 model.name=residual model.width=2 {SGD}",
    "feddisco": f"{PIXELS} data.partition.scheme=draws data.partition.per_silo=4",
    "ifca": "method.clusters=3",
    "distrans": "",
    "fedsr": "",
    "fediir": f"method.penalty=0.1 {SGD}",
    "fedper": f"model.name=lenet5 model.features=8 training.momentum=0.9 {SGD}",
    "fedrep": (
        'method.head_epochs=2 evaluation.every=2 evaluation.splits=["validation","test"] evaluation.n_silos=2 seed=1'
    ),
    "fedbabu": (
        "method.fine_tune_epochs=2 uncertainty.policy=guaranteed uncertainty.risk=0.8 uncertainty.confidence_level=0.6"
    ),
    "fedcr": "method.head_epochs=2",
    "perfedavg": "",
    "apfl": "uncertainty.temperature_scaling=true",
    "ditto": "method.lam=0.5",
    "fedrod": f"{PIXELS} data.partition.scheme=draws data.partition.per_silo=4",
    "fedala": f"method.share=0.5 model.name=cnn model.width=2 {SGD}",
    "fedproto": 'personal=[{name="mlp",width=8,hidden=8},{name="lenet5",features=8,hidden=8,silos=["silo-1"]}]',
    "fedbe": "",
    "pfedbayes": "",
    "uefl": f"{UEFL} model.norm=true",
    "fedpn": FEDPN,
    "fml": "",
    "fmlu": "",
    "trfeddis": "model.norm=true",
}
"""A row for every method, by its name."""
VARIANTS = {
    "perfedavg, hessian-free": "method.name=perfedavg method.order=hessian-free method.adapt_steps=2",
    "fmlu, weighed otherwise": "method.name=fmlu method.weigh_loss=false method.weights=examples",
    "fml, own models": (
        'method.name=fml personal=[{name="mlp",width=8},{name="lenet5",features=8,silos=["silo-1"]}] model.norm=true'
    ),
    "uefl, released code": (
        f"{UEFL} method.segments=2 method.growth=double method.keep=newest method.reference=mean method.refresh=false "
        "method.extension=normal method.own_norm=false model.norm=true model.dropout_logits=true"
    ),
    "fedpn, other gradients": (
        f"{FEDPN} method.stop_gradient=embedding method.density_trains_encoder=true method.normalize=false "
        "method.entropy=0.001 method.density_rounds=1 method.moments=false"
    ),
    "trfeddis, discounted": "method.name=trfeddis method.anneal_rounds=2 method.fusion=discounted method.trust=0.8",
    "trfeddis, additive and guaranteed": (
        "method.name=trfeddis method.fusion=additive method.cross_entropy=0 uncertainty.policy=guaranteed "
        "uncertainty.score=conflict uncertainty.risk=0.88 uncertainty.confidence_level=0.6"
    ),
}
"""Methods with other settings, by names of their own; without a source of its own, a row has rotated digits."""
SETTINGS = {
    # Decisions, privacy, and who takes part
    "fedavg, switch and temperature": (
        "uncertainty.policy=switch uncertainty.temperature_scaling=true uncertainty.abstain_rate=0.3 "
        "uncertainty.mc_samples=4"
    ),
    "fedpn, switch": (
        f"{FEDPN} uncertainty.policy=switch uncertainty.score=dirichlet_entropy uncertainty.handover_rate=0.3 "
        "uncertainty.max_aleatoric=2.28"
    ),
    "fedavg, noise": "privacy.clip_norm=1 privacy.noise_multiplier=0.3 federation.participation=0.5",
    "fedavg, newcomers": 'federation.newcomers=["silo-2"] uncertainty.temperature_scaling=true',
    "uefl, newcomers": f'{UEFL} federation.newcomers=["silo-0"] model.norm=true seed=1',
    # Data and streams
    "fml, unknown classes": f"{CLASSES} method.name=fml uncertainty.policy=switch",
    "fedpn, held out": f'{CLASSES} {FEDPN} data.ood.held_out_classes=["9"] data.ood.per_silo=10',
    "fedavg, dirichlet and refused": (
        f"{PIXELS} data.partition.scheme=dirichlet data.partition.alpha=0.5 data.partition.minimum=20 "
        "data.shift.noise_std=[0,20,40] uncertainty.policy=guaranteed"
    ),
    "fedrep, domains": (
        f"{DOMAINS} method.name=fedrep data.ood.local=domains data.ood.global_source=digits "
        "model.name=cnn model.width=2 uncertainty.policy=switch data.normalize.mean=[0.4,0.5,0.6]"
    ),
    "fedavg, table": f"{TABLE} uncertainty.policy=guaranteed uncertainty.risk=0.3",
    "fedpn, table": f"{TABLE} {FEDPN}",
    "trfeddis, table": f"{TABLE} method.name=trfeddis method.fusion=averaging data.shift.noise_std=[0,0.5,1]",
}
"""What a user may set around a method, by names of their own."""
ROWS = {name: f"method.name={name} {rest}" for name, rest in METHODS.items()} | VARIANTS | SETTINGS
COMPARED = "rounds=2"
AUDITED = (
    "method.name=trfeddis training.lr=0.05 training.local_epochs=2 rounds=2 "
    "data.source=digits data.n_silos=2 data.samples_per_silo=80 data.test_per_silo=40"
)


def settings(text: str, folder: Path) -> list[str]:
    """The values to set, with the data that they are for."""
    whole = text if "data.source=" in text else f"{ROTATED} {text}"
    return whole.replace("FOLDER", str(folder)).split()


def write_data(folder: Path) -> Path:
    """The base configuration, which is returned; a table with gaps and categories; two domains of coloured images."""
    (folder / "base.toml").write_text(BASE)
    (folder / "table.csv").write_text("\n".join(["age,dose,town,ward,ill", *map(_patient, range(150))]) + "\n")
    for domain, shade in (("red", (200, 80, 60)), ("blue", (60, 90, 220))):
        labels = np.arange(90) % 3
        # As bright as pixels get at a place that tells the label.
        images = np.stack([_image(i, int(label), shade) for i, label in enumerate(labels)])
        np.savez(folder / f"{domain}.npz", x=images, y=labels)
    return folder / "base.toml"


def _patient(i: int) -> str:
    dose = math.remainder(i * 0.37, 2)
    ill = "yes" if dose > 0.2 * (i % 5) - 0.3 else "no"
    age, town = "" if i % 7 == 0 else 30 + (i * 11) % 40, "?" if i % 13 == 0 else ("north", "south", "east")[i % 4 % 3]
    return f"{age},{dose:.3f},{town},ward-{i % 3},{ill}"


def _image(i: int, label: int, shade: tuple[int, int, int]) -> np.ndarray:
    image = np.full((10, 10, 3), shade, dtype=np.int64) + (np.arange(300).reshape(10, 10, 3) * (i + 3)) % 50
    image[3 * label : 3 * label + 3] += 60
    return image.clip(0, 255).astype(np.uint8)
