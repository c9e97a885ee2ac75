"""Folders of images that are wrong: damaged files, other formats under false names, what is no file at all."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import numpy as np
from PIL import Image

from . import actions
from .children import Ended
from .fuzz import Trial, good_run, run
from .fuzz_arrays import SETS as OF_ARRAYS

SETS = [item for item in OF_ARRAYS if not item.startswith(("data.n_silos", "data.samples_per_silo"))]
FOREIGN = ("GIF", "BMP", "TIFF", "PPM", "ICO", "WEBP", "PCX", "TGA", "JPEG2000", "EPS", "PDF", "MPO", "AVIF")
DAMAGES = (
    "flip",
    "cut",
    "empty",
    "text",
    "foreign",
    "eps",
    "bomb",
    "folder",
    "fifo",
    "mode",
    "link",
    "name",
    "frames",
    "alpha",
)


def picture(i: int, size: int = 6) -> Image.Image:
    rng = np.random.default_rng(i)
    pixels = rng.integers(0, 100, (size, size), dtype=np.uint8)
    pixels[: size // 2] += np.uint8(60 * (i % 2))
    return Image.fromarray(pixels)


def write_good(folder: Path) -> str:
    for i in range(64):
        place = folder / "images" / f"site-{i // 32}" / ("cat", "dog")[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        picture(i).save(place / f"{i:03d}.png")
    return f"images:{folder / 'images'}"


def encoded(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def damage(file: Path, choose: random.Random, place: Path) -> tuple[str, bool]:
    """Damage one picture; returns what was done, and whether it is to be refused."""
    kind = choose.choice(DAMAGES)
    data = file.read_bytes()
    if kind == "flip":
        bit = choose.randrange(8 * len(data))
        file.write_bytes(data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :])
        return kind, False
    if kind in ("cut", "empty", "text"):
        cut = {"cut": data[: choose.randrange(8, len(data))], "empty": b"", "text": b"no picture"}
        file.write_bytes(cut[kind])
    elif kind == "foreign":
        name = choose.choice(FOREIGN)
        try:
            file.write_bytes(encoded(picture(0).convert("L"), name))
        except (OSError, KeyError, ValueError):
            file.write_bytes(b"GIF89a")  # a format that this Pillow cannot write
        return f"{kind} {name}", True
    elif kind == "eps":
        file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n%%EndComments\nshowpage\n%%EOF\n")
    elif kind == "frames":
        buffer = io.BytesIO()
        picture(0).save(buffer, "PNG", save_all=True, append_images=[picture(1), picture(2)])
        file.write_bytes(buffer.getvalue())
    elif kind == "alpha":
        image = picture(0).convert("RGBA")
        image.putpixel((choose.randrange(6), choose.randrange(6)), (9, 9, 9, choose.randrange(255)))
        file.write_bytes(encoded(image, "PNG"))
    elif kind == "bomb":
        head = bytearray(encoded(Image.new("1", (8, 8)), "PNG"))
        head[16:24] = (60000).to_bytes(4, "big") * 2
        file.write_bytes(bytes(head))
    else:
        return _odd(file, kind, choose, place)
    return kind, True


def _odd(file: Path, kind: str, choose: random.Random, place: Path) -> tuple[str, bool]:
    if kind == "mode":
        mode = choose.choice(["RGB", "RGBA", "P", "LA", "1", "I;16", "CMYK"])
        image = picture(0).convert("I").convert("I;16") if mode == "I;16" else picture(0).convert("RGB").convert(mode)
        file.write_bytes(encoded(image, "JPEG" if mode == "CMYK" else "PNG"))
        return f"{kind} {mode}", False
    if kind == "name":
        file.rename(os.fsdecode(os.fsencode(file.parent) + b"/\xff\xfe.png"))
        return kind, False
    file.unlink()
    if kind == "link":
        file.symlink_to(place / "outside" / "own.txt")
        return kind, True
    # No files: what has such a name may be passed over, but not waited for.
    file.mkdir() if kind == "folder" else os.mkfifo(file)
    return kind, False


def _ghostscript(place: Path) -> None:
    """A program in Ghostscript's place that tells that it was called."""
    folder = place / "programs"
    folder.mkdir()
    (folder / "gs").write_text(f"#!/bin/sh\nmkdir -p {place / 'outside' / 'ran'}\nexit 1\n")
    (folder / "gs").chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def trained(choose: random.Random, place: Path) -> Trial:
    """A run on a folder with one bad picture."""
    source = write_good(place)
    files = sorted((place / "images").rglob("*.png"))
    kind, refuse = damage(choose.choice(files), choose, place)

    def call() -> None:
        _ghostscript(place)
        run(place / "run", f"data.source={source}", *SETS)()

    def accepted(ended: Ended) -> str:
        return "accepted, expected a refusal" if refuse and ".png" not in ended.err else ""

    return Trial(call, {".png", "images", "site-"}, kind, accepted)


def predicted(choose: random.Random, place: Path) -> Trial:
    """Predictions for one bad picture, or for a folder with one."""
    good = good_run("images", write_good, *SETS)
    inputs = place / "inputs"
    inputs.mkdir()
    for i in range(3):
        picture(i).save(inputs / f"{i}.png")
    kind, refuse = damage(inputs / "1.png", choose, place)
    asked = inputs if choose.random() < 0.6 or kind == "name" else inputs / "1.png"

    def call() -> None:
        _ghostscript(place)
        actions.command("predict", good, asked, "--silo", "site-1")

    def accepted(ended: Ended) -> str:
        return "accepted, expected a refusal" if refuse and ".png" not in ended.err else ""

    return Trial(call, {".png", "inputs"}, kind, accepted)


FAMILIES = {"images": trained, "predict-images": predicted}
