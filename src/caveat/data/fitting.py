"""Settings that do not fit the inputs they are for, refused before anything is made of these."""

from __future__ import annotations

from ..core import ConfigurationError
from .pools import Pool
from .sequences import SequenceFormat
from .settings import DataSettings, Normalise, Shift


def check_normalise(images: bool, normalise: Normalise) -> None:
    """Raises ConfigurationError for constants of `data.normalise` where inputs are features, which have none."""
    if not images and normalise != Normalise():
        raise ConfigurationError("data.normalise is for images, these inputs are features")


def check_noise(pool: Pool, shift: Shift, sequence_format: SequenceFormat | None) -> None:
    """Raises ConfigurationError for noise on what is no quantity: ids of tokens, and a mask."""
    masked = sequence_format is not None and sequence_format.masked
    if any(shift.noise_std) and (pool.tokens or masked):
        what = "a mask" if masked else "ids of tokens"
        raise ConfigurationError(f"data.shift.noise_std: {what} cannot be made noisy", "data.shift.noise_std")


def check_lazy(settings: DataSettings) -> None:
    """Raises ConfigurationError for what needs all inputs in memory."""
    for name, value in (("shift.angles", settings.shift.angles), ("shift.noise_std", settings.shift.noise_std)):
        if value:
            raise ConfigurationError(
                f"data.{name} needs all inputs in memory, but these are read as they are needed; shift them beforehand",
                f"data.{name}",
            )


def sequences_of(pool: Pool) -> SequenceFormat | None:
    """The format of sequences that are of one length already; None for other inputs."""
    if pool.series or (pool.tokens and pool.x.ndim == 2):
        return SequenceFormat("tokens" if pool.tokens else "series", pool.x.shape[1])
    return None
