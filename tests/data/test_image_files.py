"""Which files are read as images, and how: PNG and JPEG alone, upright, and none that is left out without a word."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from data_samples import write_images
from PIL import EpsImagePlugin, Image, ImageOps

from caveat import data
from caveat.config import load
from caveat.core import ConfigurationError, DataError
from caveat.data.settings import DataSettings
from caveat.data.sources.image_folders import image_files, read_images

ORIENTATION = 0x0112
PIXELS = np.arange(8 * 12 * 3, dtype=np.uint8).reshape(8, 12, 3)
"""A picture that is another one whichever way it is turned."""


def turned(path: Path, orientation: int, pixels: np.ndarray = PIXELS) -> Path:
    """A file whose EXIF data say how its pixels are to be turned."""
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[ORIENTATION] = orientation
    image.save(path, exif=exif)
    return path


def refused(path: Path, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        read_images([path])
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


# Decoders


@pytest.mark.parametrize("format_", ["BMP", "TIFF", "GIF", "WEBP", "EPS"])
def test_no_other_decoder_is_reached_by_a_false_name(tmp_path: Path, format_: str) -> None:
    path = tmp_path / "picture.png"
    Image.fromarray(PIXELS).save(path, format=format_)
    with patch.object(EpsImagePlugin, "Ghostscript", side_effect=AssertionError("Ghostscript was called")):
        refused(path, "neither PNG nor JPEG")


@pytest.mark.parametrize(("name", "format_"), [("a.png", "JPEG"), ("a.jpg", "PNG")])
def test_either_of_the_two_may_have_the_other_s_name(tmp_path: Path, name: str, format_: str) -> None:
    Image.fromarray(PIXELS).save(tmp_path / name, format=format_)
    assert read_images([tmp_path / name]).shape == (1, 8, 12, 3)


@pytest.mark.parametrize("kept", [20, 60, 200])
def test_a_file_that_was_cut_off_is_named(tmp_path: Path, kept: int) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:kept])
    refused(tmp_path / "a.png", "not a readable image")


@pytest.mark.parametrize("lost", [*range(1, 21), 30])
def test_a_png_without_its_end_is_named(tmp_path: Path, lost: int) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:-lost])
    refused(tmp_path / "a.png", "not a readable image")


def test_a_png_of_which_one_bit_has_changed_is_named_or_the_same(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    whole = (tmp_path / "a.png").read_bytes()
    told = 0
    for at in range(len(whole)):
        (tmp_path / "a.png").write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            assert np.array_equal(read_images([tmp_path / "a.png"])[0], PIXELS)
        except DataError:
            told += 1
    assert told > len(whole) - 20


def test_what_follows_a_png_s_end_is_let_be(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    with (tmp_path / "a.png").open("ab") as file:
        file.write(b"anything")
    assert np.array_equal(read_images([tmp_path / "a.png"])[0], PIXELS)


# Pixels


@pytest.mark.parametrize(("name", "format_"), [("a.png", "PNG"), ("a.jpg", "MPO")])
def test_several_frames_are_refused(tmp_path: Path, name: str, format_: str) -> None:
    frames = [Image.fromarray(np.roll(PIXELS, step)) for step in range(3)]
    frames[0].save(tmp_path / name, format_, save_all=True, append_images=frames[1:])
    refused(tmp_path / name, "3 frames, expected one")


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L"])
def test_an_alpha_channel_is_taken_only_where_it_says_nothing(tmp_path: Path, mode: str) -> None:
    plain = Image.fromarray(PIXELS).convert(mode.removesuffix("A"))
    see_through = plain.convert(mode)
    if mode.endswith("A"):
        see_through.save(tmp_path / "opaque.png")
        plain.save(tmp_path / "plain.png")
        read = read_images([tmp_path / "opaque.png"])
        assert np.array_equal(read, read_images([tmp_path / "plain.png"]))
        see_through.putpixel((3, 2), (*see_through.getpixel((3, 2))[:-1], 254))
        see_through.save(tmp_path / "a.png")
    else:
        see_through.save(tmp_path / "a.png", transparency=see_through.getpixel((3, 2)))
    refused(tmp_path / "a.png", "transparent pixels", "without an alpha channel")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright_as_exif_says(tmp_path: Path, orientation: int) -> None:
    path = turned(tmp_path / "a.png", orientation)
    with Image.open(path) as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(read_images([path])[0], upright)
    assert np.array_equal(read_images([path], exif_rotation=False)[0], PIXELS)


@pytest.mark.parametrize("orientation", [0, 9, 60000])
def test_an_orientation_that_means_nothing_turns_nothing(tmp_path: Path, orientation: int) -> None:
    assert np.array_equal(read_images([turned(tmp_path / "a.png", orientation)])[0], PIXELS)


def chunked(path: Path, color: int) -> Path:
    """A PNG file of 16 bits per channel, which Pillow reads but does not write in colour."""
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[color]
    rows = b"".join(b"\0" + bytes(range(8 * 2 * channels)) for _ in range(8))
    header = struct.pack(">IIBBBBB", 8, 8, 16, color, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(held)) + kind + held + struct.pack(">I", zlib.crc32(kind + held)) for kind, held in chunks
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


@pytest.mark.parametrize("color", [0, 2, 4, 6], ids=["grey", "RGB", "grey and alpha", "RGBA"])
def test_sixteen_bits_are_refused_by_name(tmp_path: Path, color: int) -> None:
    refused(chunked(tmp_path / "deep.png", color), "16 or 32 bits", "expected 8")


def test_cmyk_is_refused_by_name(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).convert("CMYK").save(tmp_path / "print.jpg")
    refused(tmp_path / "print.jpg", "CMYK", "expected grayscale or RGB")


# Folders


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("north/cat/extra.bmp", "expected PNG or JPEG"),
        ("north/cat/extra.TIFF", "expected PNG or JPEG"),
        ("north/extra.png", "outside of the class folders"),
        ("north/extra.gif", "outside of the class folders"),
        ("extra.jpg", "outside of the class folders"),
        ("north/cat/more/extra.png", "expected them in"),
    ],
)
def test_an_image_that_would_be_left_out_is_named(tmp_path: Path, place: str, told: str) -> None:
    folder = write_images(tmp_path / "all", {"north": {"cat": 9, "dog": 9}, "south": {"cat": 9, "dog": 9}})
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_bytes((folder / "north" / "cat" / "000.png").read_bytes())
    with pytest.raises(DataError, match=re.escape(told)) as caught:
        data.load(DataSettings(source=f"images:{folder}"), 0)
    assert str(folder / place) in str(caught.value)


@pytest.mark.parametrize("name", ["notes.txt", "Thumbs.db", ".hidden/a.png"])
def test_files_that_are_no_images_are_let_be(tmp_path: Path, name: str) -> None:
    folder = write_images(tmp_path / "all", {"north": {"cat": 9, "dog": 9}, "south": {"cat": 9, "dog": 9}})
    before = data.load(DataSettings(source=f"images:{folder}"), 0)
    for place in (folder, folder / "north", folder / "north" / "cat"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(b"anything")
    after = data.load(DataSettings(source=f"images:{folder}"), 0)
    assert data.splits_record(before) == data.splits_record(after)


def test_a_folder_to_predict_says_what_it_leaves_out(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    Image.fromarray(PIXELS).save(tmp_path / "b.bmp")
    with pytest.raises(DataError, match=r"b\.bmp: image format not supported"):
        image_files(tmp_path)


def test_a_folder_s_name_that_is_no_utf_8_is_refused_before_anything_runs(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "all", {"north": {"cat": 9, "dog": 9}, "south": {"cat": 9, "dog": 9}})
    (folder / "north" / "dog").rename(Path(str(folder / "north" / "dog") + "\udcff"))
    with pytest.raises(DataError, match=r"'dog\\udcff', expected a name in UTF-8"):
        data.load(DataSettings(source=f"images:{folder}"), 0)


def test_turning_off_the_rotation_of_what_has_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="exif_rotation = false is not used by source 'digits'"):
        load(None, ["data.exif_rotation=false"])
