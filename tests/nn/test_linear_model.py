"""The model `linear` is logistic regression: what it learns is scikit-learn's, and nothing is sent of its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import caveat
from caveat.core import ConfigurationError
from caveat.nn.models import ModelSettings, build_model

LINEAR = ModelSettings(name="linear", dropout=0.0)


def silos() -> caveat.data.Silos:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = (x[:, 0] - x[:, 1] + rng.logistic(size=400) > 0.4).astype(int)
    return caveat.data.from_arrays({"coast": (x[:200], y[:200]), "hill": (x[200:], y[200:])})


def test_logits_are_linear_in_all_inputs() -> None:
    model = build_model(LINEAR, (1, 2, 3), 4, seed=0)
    weight, bias = (tensor for _, tensor in sorted(model.state_dict().items(), reverse=True))
    x = torch.randn(5, 1, 2, 3)
    torch.testing.assert_close(model(x), x.flatten(1) @ weight.T + bias)
    assert weight.shape == (4, 6)


def test_trained_long_enough_it_is_logistic_regression_of_the_silos_own_rows() -> None:
    found = silos()
    training = caveat.Training(optimizer="sgd", lr=0.5, local_steps=150, batch_size=124)
    run = caveat.run(found, caveat.Local(rounds=2, training=training), model=LINEAR, every=2)
    for silo in found:
        x, y = silo.train.x.numpy(), silo.train.y.numpy()
        expected = LogisticRegression(C=np.inf, tol=1e-8).fit(x, y).predict_proba(silo.test.x.numpy())
        probs = run.predictor(silo.name)(silo.test.x).uncalibrated
        np.testing.assert_allclose(probs.numpy(), expected, atol=0.01)


@pytest.mark.parametrize("method", [caveat.UEFL, caveat.FedPN, caveat.FedProto, caveat.TrFedDis, caveat.MOON])
def test_methods_that_send_what_an_encoder_says_refuse_it(method: Any) -> None:
    """Prototypes, codewords and densities would be of the inputs themselves."""
    with pytest.raises(ConfigurationError, match="model 'linear' has no encoder; use 'mlp'"):
        caveat.run(silos(), method(rounds=1), model=LINEAR)


@pytest.mark.parametrize("key", ["hidden", "second", "norm", "layer_norm", "dropout_logits", "width", "features"])
def test_keys_of_layers_that_it_lacks_are_refused(key: str) -> None:
    settings: dict[str, Any] = {key: True if key in ("norm", "layer_norm", "dropout_logits") else 8}
    with pytest.raises(ConfigurationError, match=f"^{key} = (8|True) has no effect for model 'linear'"):
        ModelSettings(name="linear", **settings)
