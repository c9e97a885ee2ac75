"""The built-in recipes: configurations, each a TOML file of this folder."""

from pathlib import Path

FOLDER = Path(__file__).parent
DEFAULT = "digits"
OWN_DATA = "own-data"
"""The recipe for data passed to a command without a configuration."""


def recipes() -> list[str]:
    """Return the names of the recipes, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def recipe_file(name: str) -> Path:
    """Return the path of a recipe, which may not exist."""
    return FOLDER / f"{name}.toml"


def description(name: str) -> str:
    """Return the first comment line of a recipe."""
    lines = recipe_file(name).read_text(encoding="utf-8").splitlines()
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")
