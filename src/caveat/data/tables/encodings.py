"""Files that are not text in UTF-8: their likely format, and how to convert them to csv files in UTF-8."""

from pathlib import Path

NEWLINE = b"\n"
NUL = "\0"
ARCHIVE = "PK\x03\x04"
BINARY = {b"PK\x03\x04": "an Excel workbook or a zip archive", b"\xd0\xcf\x11\xe0": "an Excel workbook",
          b"\x1f\x8b": "compressed by gzip", b"PAR1": "a parquet file"}  # fmt: skip
"""The first bytes of files that are not text, and what these files are."""
MARKED = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Byte order marks, longer ones first."""
WINDOWS = bytes(range(0x80, 0xA0))
"""Bytes that are letters and signs in Windows-1252 but undefined in ISO-8859-1."""


def is_no_text(header: str) -> bool:
    """Return whether a first line, although valid UTF-8, comes from a binary file or another encoding."""
    return NUL in header or header.startswith((ARCHIVE, "PAR1"))


def no_utf8(path: Path) -> str:
    """Return the refusal of a file that is not text in UTF-8: what it is, and how to convert it."""
    whole = path.read_bytes()
    for first, called in BINARY.items():
        if whole.startswith(first):
            return f"{path}: {called}, expected a csv file in UTF-8: save the table as one"
    where = f"{path}: not in UTF-8"
    try:
        whole.decode()
    except UnicodeDecodeError as error:
        where = f"{path}, line {whole.count(NEWLINE, 0, error.start) + 1}: not in UTF-8"
    known = _encoding(whole)
    return (
        f"{where}, expected a csv file in UTF-8: save it in UTF-8, or if it is in {known}, "
        f"run `iconv -f {known} -t UTF-8 OLD.csv > NEW.csv`"
    )


def _encoding(whole: bytes) -> str:
    marked = next((name for mark, name in MARKED.items() if whole.startswith(mark)), "")
    if marked:
        return marked
    even, odd = whole[0::2].count(0), whole[1::2].count(0)
    if even + odd > len(whole) / 4:  # most letters of a header have a zero byte in UTF-16
        return "UTF-16LE" if odd > even else "UTF-16BE"
    return "WINDOWS-1252" if any(byte in WINDOWS for byte in whole) else "ISO-8859-1"
