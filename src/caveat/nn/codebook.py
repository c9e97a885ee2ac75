"""A growing codebook, which replaces features by their nearest codewords; these are shared or private to a silo.

van den Oord et al., Neural Discrete Representation Learning, NeurIPS 2017 (VQ-VAE).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from threadpoolctl import threadpool_limits
from torch import Tensor, nn


class Quantised(NamedTuple):
    """Discretised tokens."""

    tokens: Tensor  # (N, T, D), with the straight-through gradient
    loss: Tensor  # scalar
    words: Tensor  # (N, T, S) int64: the codeword of each segment


class Codebook(nn.Module):
    """Shared codewords, followed by private ones of the silo.

    Tokens of `features` are cut into `segments` equal parts, which all use the same codewords of `features / segments`
    numbers. `private` has room for `capacity` codewords, of which the first `used` exist.
    """

    first: int = 0
    """Position of the first shared codeword in use."""
    reach: int | None = None
    """Number of shared codewords in use; None for all from `first` on."""

    def __init__(self, shared: int, capacity: int, features: int, segments: int = 1, commitment: float = 0.25) -> None:
        super().__init__()
        if features % segments:
            raise ValueError(f"{features} features cannot be cut into {segments} equal segments")
        self.segments, self.commitment = segments, commitment
        self.shared = nn.Parameter(torch.randn(shared, features // segments))
        self.private = nn.Parameter(torch.zeros(capacity, features // segments))
        self.register_buffer("used", torch.zeros((), dtype=torch.int64))
        self.used: Tensor
        self._count: tuple[Tensor, int, int] | None = None
        """The buffer `used`, its version when it was last read, and its value then."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the shared codewords again, and remove the private ones."""
        self.shared.normal_()
        self.private.zero_()
        self.used.zero_()

    def words(self) -> Tensor:
        """Return the codewords in use, (V, D / S)."""
        shared = self.shared if self.reach is None else self.shared[self.first : self.first + self.reach]
        return torch.cat([shared, self.private[: self.count()]])

    def count(self) -> int:
        """Return the number in `used`; synchronize with a device only if the number has changed."""
        known, version = self._count, self.used._version
        if known is None or known[0] is not self.used or known[1] != version:
            known = self._count = self.used, version, int(self.used)
        return known[2]

    def cut(self, tokens: Tensor) -> Tensor:
        """Cut (N, T, D) tokens into (N * T * S, D / S) vectors."""
        return tokens.reshape(-1, self.shared.shape[1])

    def quantise(self, tokens: Tensor) -> Quantised:
        """Replace every segment by its nearest codeword.

        The loss is ||c - sg(z)||^2 + beta ||sg(c) - z||^2, averaged over all elements: beta weights the commitment, as
        in VQ-VAE and the authors' code; the paper on UEFL (eq. 5) weights the other term.
        """
        z, words = self.cut(tokens), self.words()
        index = nearest(z.detach(), words.detach())
        c = F.embedding(index, words)
        loss = F.mse_loss(c, z.detach()) + self.commitment * F.mse_loss(z, c.detach())
        return Quantised((z + (c - z).detach()).view_as(tokens), loss, index.view(*tokens.shape[:2], self.segments))

    def forward(self, tokens: Tensor) -> Tensor:
        """Replace (N, T, D) tokens by their codewords, for prediction."""
        words = self.words()
        return F.embedding(nearest(self.cut(tokens), words), words).view_as(tokens)

    @torch.no_grad()
    def extend(self, centers: Tensor) -> None:
        """Append private codewords. Raises ValueError if they exceed the capacity."""
        used, grown = self.count(), self.count() + len(centers)
        if grown > len(self.private):
            raise ValueError(f"{grown} private codewords in a codebook with room for {len(self.private)}")
        self.private[used:grown] = centers
        self.used.fill_(grown)


class Discretised(nn.Sequential):
    """A model whose head sees codewords instead of features."""

    encoder: nn.Module
    codebook: Codebook
    head: nn.Module

    def __init__(self, encoder: nn.Module, codebook: Codebook, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.codebook, self.head = encoder, codebook, head


def nearest(z: Tensor, words: Tensor) -> Tensor:
    """Return the indices (M,) of the words (V, D) that are nearest to vectors (M, D)."""
    # |z|^2 is the same for every word and omitted. Vectors are centered, because large |z|^2 and |c|^2 would cancel.
    center = words.mean(0)
    z, words = z - center, words - center
    distances: Tensor = torch.addmm(words.square().sum(1), z, words.T, beta=1, alpha=-2)
    return torch.argmin(distances, 1)


def kmeans(points: Tensor, count: int, seed: int, limit: int = 20_000) -> Tensor:
    """Return at most `count` cluster centers (V, D) of (M, D) points, by scikit-learn's k-means, on the CPU.

    If there are fewer distinct points than `count`, each is a center. More than `limit` points are subsampled. The
    result is deterministic.
    """
    generator, points = torch.Generator().manual_seed(seed), points.cpu()
    if len(points) > limit:
        points = points[torch.randperm(len(points), generator=generator)[:limit]]
    distinct: Tensor = torch.unique(points, dim=0)
    if len(distinct) <= count:
        return distinct
    from sklearn.cluster import KMeans  # scikit-learn takes a second to import

    with threadpool_limits(1):
        model = KMeans(count, n_init=1, random_state=seed % 2**32).fit(points.double().numpy())
    centers: Tensor = torch.from_numpy(model.cluster_centers_)
    return centers.to(points.dtype)
