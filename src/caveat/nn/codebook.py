"""A codebook that grows: features become their nearest codewords, some shared, some a silo's own.

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
    words: Tensor  # (N, T, S) int64: which codeword each segment became


class Codebook(nn.Module):
    """Shared codewords first, then the silo's own. Tokens of `features` are cut into `segments` equal parts,
    which all use the same codewords of `features / segments` numbers.

    `private` has room for `capacity` codewords, of which the first `used` exist.
    """

    first: int = 0
    """Position of the first shared codeword within reach."""
    reach: int | None = None
    """How many shared codewords are within reach, or None for all from `first` on."""

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
        """The buffer `used`, which of its versions was read last, and what it was."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the shared codewords anew, and have none of the silo's own."""
        self.shared.normal_()
        self.private.zero_()
        self.used.zero_()

    def words(self) -> Tensor:
        """(V, D / S): the codewords within reach."""
        shared = self.shared if self.reach is None else self.shared[self.first : self.first + self.reach]
        return torch.cat([shared, self.private[: self.count()]])

    def count(self) -> int:
        """The number in `used`, for which a device is waited only if it was changed since."""
        known, version = self._count, self.used._version
        if known is None or known[0] is not self.used or known[1] != version:
            known = self._count = self.used, version, int(self.used)
        return known[2]

    def cut(self, tokens: Tensor) -> Tensor:
        """(N, T, D) tokens to (N * T * S, D / S) vectors."""
        return tokens.reshape(-1, self.shared.shape[1])

    def quantise(self, tokens: Tensor) -> Quantised:
        """Replace every segment by its nearest codeword.

        The loss is ||c - sg(z)||^2 + beta ||sg(c) - z||^2, mean over all elements: beta weighs the
        commitment, as in VQ-VAE and the authors' code; the text of UEFL (eq. 5) weighs the other term.
        """
        z, words = self.cut(tokens), self.words()
        index = nearest(z.detach(), words.detach())
        c = F.embedding(index, words)
        loss = F.mse_loss(c, z.detach()) + self.commitment * F.mse_loss(z, c.detach())
        return Quantised((z + (c - z).detach()).view_as(tokens), loss, index.view(*tokens.shape[:2], self.segments))

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T, D) tokens to their codewords: what prediction needs."""
        words = self.words()
        return F.embedding(nearest(self.cut(tokens), words), words).view_as(tokens)

    @torch.no_grad()
    def extend(self, centers: Tensor) -> None:
        """Append codewords of the silo's own; more than there is room for is an error."""
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
    """(M,) indices of the (V, D) words nearest to the (M, D) vectors."""
    # |z|^2 is the same for every word, and the large |z|^2 and |c|^2 would cancel: distances are taken about a centre.
    center = words.mean(0)
    z, words = z - center, words - center
    distances: Tensor = torch.addmm(words.square().sum(1), z, words.T, beta=1, alpha=-2)
    return torch.argmin(distances, 1)


def kmeans(points: Tensor, count: int, seed: int, limit: int = 20_000) -> Tensor:
    """At most `count` cluster centres (V, D) of (M, D) points, by scikit-learn's K-means.

    Fewer distinct points than centres give one centre per distinct point. More than `limit` points are
    subsampled. Same points and seed, same centres, which are on the CPU.
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
