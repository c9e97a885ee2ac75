"""The recipes: configurations that come with caveat, each a TOML file of this folder."""

from pathlib import Path

FOLDER = Path(__file__).parent
DEFAULT = "digits"
OWN_DATA = "own-data"
"""The recipe for data that a command names without a configuration."""


def recipes() -> list[str]:
    """Their names, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def recipe_file(name: str) -> Path:
    """The file of the recipe of that name, whether it is there or not."""
    return FOLDER / f"{name}.toml"


def description(name: str) -> str:
    """The first comment line of a recipe."""
    lines = recipe_file(name).read_text(encoding="utf-8").splitlines()
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")
