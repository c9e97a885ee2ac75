"""Store predictions and features for every input of `caveat bench`'s federations (for `new_classes.py`, `policies.py`).

    CAVEAT_DATA=DIR python benchmarks/cells.py OUT [--methods fedavg ditto ...] [--federations ...] [--seeds 0 1 2]
        [--features]

Trains every method once per federation and seed, and writes OUT/FEDERATION.METHOD.SEED.npz: an array by
"SILO/SET/MODEL/NAME". Sets are validation, calibration, test, and the kinds of inputs that are unlike a silo's own.
`--features` adds the input and output of the last linear layer, also for training inputs. Existing cells are kept, so
repeat the command to continue. Seeds of tables are below 100; settings are chosen on other seeds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import caveat
from caveat.bench.federations import FEDERATIONS, BoardFederation, deal
from caveat.nn.frozen import Whole
from caveat.runs.frozen_features import features_of

SCORES = ("aleatoric", "epistemic", "unfamiliar", "novel")


def last_linear(module: nn.Module, x: Tensor) -> tuple[Tensor, nn.Linear]:
    """Return the inputs (N, D) of a module's last linear layer, in evaluation mode, and the layer."""
    given: list[tuple[nn.Linear, Tensor]] = []

    def keep(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        given.append((layer, args[0]))

    hooks = [part.register_forward_pre_hook(keep) for part in module.modules() if isinstance(part, nn.Linear)]
    with torch.no_grad():
        module.eval()(x)
    for hook in hooks:
        hook.remove()
    layer, h = given[-1]
    return h.reshape(len(x), -1), layer


def measured(run: caveat.Run, federation: BoardFederation, features: bool) -> dict[str, NDArray[np.float32]]:
    found: dict[str, NDArray[np.float32]] = {}
    encoder = run.experiment.frozen_encoder
    for silo in federation.silos:
        splits = {name: getattr(silo, name) for name in ("train", "validation", "calibration", "test")}
        for name, data in splits.items():
            found[f"{silo.name}/{name}/y"] = data.y.numpy().astype(np.int16)
        sets = {name: data.x for name, data in splits.items()} | dict(federation.others[silo.name])
        answers = run.answers(silo.name)
        module = run.module(silo.name) if features else None
        behind = module.behind if isinstance(module, Whole) else module
        for name, x in sets.items():
            z = x if encoder is None else features_of(encoder, x)
            if behind is not None:
                h, layer = last_linear(behind, z)
                found[f"{silo.name}/{name}/h"] = h.numpy().astype(np.float16)
                found[f"{silo.name}/layer"] = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().numpy()
            for whose, answer in (answers(x) if name != "train" else {}).items():
                place = f"{silo.name}/{name}/{whose.name.lower()}"
                assert answer.familiarity is not None
                told = {"probs": answer.probs, "raw": answer.uncalibrated, "p": answer.familiarity}
                told |= {"reason": answer.reason} | answer.p_values
                told |= {score: answer.uncertainty[score] for score in SCORES}
                found |= {f"{place}/{key}": each.float().numpy() for key, each in told.items()}
    return found


def settings(name: str, federation: BoardFederation) -> tuple[caveat.ModelSettings, dict[str, object]]:
    """FedPN needs a layer between a frozen encoder and its densities."""
    model = federation.settings.model
    if name == "fedpn" and model.encoder is not None:
        return caveat.ModelSettings(encoder=model.encoder, frozen=True, adapter=64), {}
    return model, {}


def cell(federation: BoardFederation, name: str, seed: int, features: bool) -> dict[str, NDArray[np.float32]]:
    model, more = settings(name, federation)
    trained = federation.settings
    method = caveat.METHODS[name](training=trained.training, rounds=trained.rounds, **more)
    one_pass = caveat.Uncertainty(policy="always", mc_samples=1)
    run = caveat.run(
        federation.silos, method, model=model, seed=seed, every=10**6, splits=["test"], n_silos=1, uncertainty=one_pass
    )
    return measured(run, federation, features)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--methods", nargs="+", default=["fedavg", "ditto", "fedrod", "trfeddis", "local"])
    parser.add_argument("--federations", nargs="+", default=list(FEDERATIONS), choices=list(FEDERATIONS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--features", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    for seed in given.seeds:
        for name in given.federations:
            paths = {method: given.out / f"{name}.{method}.{seed}.npz" for method in given.methods}
            left = [method for method, path in paths.items() if not path.exists()]
            federation = deal(name, Path(os.environ["CAVEAT_DATA"]), seed, 1) if left else None
            for method in left:
                assert federation is not None
                began = time.process_time()
                found = cell(federation, method, seed, given.features)
                part = paths[method].with_suffix(".part")
                with part.open("wb") as file:
                    np.savez(file, **found)  # type: ignore[arg-type]
                part.rename(paths[method])
                spent = time.process_time() - began
                print(f"{name} {method} {seed}: {spent:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
