"""Keys of one aggregation, masks that are derived from them, and sealed messages between two silos.

`cryptography` provides X25519 (RFC 7748), HKDF with SHA-256 (RFC 5869), ChaCha20 and ChaCha20-Poly1305 (RFC 8439).
"""

import hashlib
import secrets

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..core import Payload
from .fixed_point import Words

NONCE = 12
BLOCK = 1 << 17
"""Number of words that are masked at a time, so that long vectors need little memory."""


def joined(*parts: object) -> bytes:
    """Return the parts as bytes, each after its length, so that each part can be read again."""
    coded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join(len(each).to_bytes(8) + each for each in coded)


def digest(*parts: object) -> bytes:
    return hashlib.sha256(joined(*parts)).digest()


def digest_of_payload(payload: Payload) -> bytes:
    """Return a digest of groups, names, types, shapes and values, in any order of groups and names."""
    found = hashlib.sha256()
    for group, tensors in sorted(payload.items()):
        found.update(joined("group", group, len(tensors)))
        for name, tensor in sorted(tensors.items()):
            found.update(joined(name, tensor.dtype, tuple(tensor.shape)))
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            found.update(flat.numpy().data)
    return found.digest()


def new_private() -> bytes:
    return secrets.token_bytes(32)


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes) -> bytes:
    """Return the secret of a pair of keys. Raises ValueError for a public key that is not a point of large order."""
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def derived(secret: bytes, *purpose: object) -> bytes:
    """Return a key of 32 bytes for a purpose."""
    return HKDF(SHA256(), 32, None, joined("caveat secure 1", *purpose)).derive(secret)


def add_mask(words: Words, key: bytes, sign: int) -> None:
    """Add (or subtract, with a sign of -1) the stream of a key to words, in place. A key must make one mask only."""
    encryptor = Cipher(ChaCha20(key, bytes(16)), None).encryptor()
    for at in range(0, len(words), BLOCK):
        here = words[at : at + BLOCK]
        mask = np.frombuffer(encryptor.update(bytes(8 * len(here))), "<u8")
        (np.add if sign > 0 else np.subtract)(here, mask, out=here)


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    nonce = secrets.token_bytes(NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """Return the text; None if it was not sealed with this key for this purpose."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE], sealed[NONCE:], about)
    except (InvalidTag, ValueError):
        return None
