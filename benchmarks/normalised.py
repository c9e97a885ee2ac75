"""FedAvg with FedPN's layer normalisation, a control of docs/results/fedpn.md: what comes of that without any density.

A method for `--plugin benchmarks/normalised.py`; docs/results/fedpn.md has the command.
"""

from torch import nn

from caveat import FedAvg, frozen_settings, register
from caveat.nn.encoders import Model, parts


@register
@frozen_settings
class Normalised(FedAvg):
    """FedAvg whose tokens are layer normalised, without scale and shift, as FedPN's are."""

    def build(self, model: nn.Module) -> nn.Module:
        model = parts(model, self.name)
        norm = nn.LayerNorm(model.features, elementwise_affine=False)
        return Model(nn.Sequential(model.encoder, norm), model.head, model.tokens, model.features)
