"""The built-in recipes, which are configurations in TOML files of this folder."""

from pathlib import Path

FOLDER = Path(__file__).parent
DEFAULT = "digits"
OWN_DATA = "own-data"
"""The name of the recipe for data that are passed to a command without a configuration."""


def recipes() -> list[str]:
    """Return the sorted names of the recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def recipe_file(name: str) -> Path:
    """Return the path of the file of a recipe, which need not exist."""
    return FOLDER / f"{name}.toml"


def description(name: str) -> str:
    """Return the first comment of a recipe, which describes it."""
    lines = recipe_file(name).read_text(encoding="utf-8").splitlines()
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")
