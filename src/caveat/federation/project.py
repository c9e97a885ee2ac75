"""The project of a federation on Flower: an app, and scripts that start server, silos and runs."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from ..core import ConfigurationError

PLACES = {"app.py": "federation/app.py", "gitignore": ".gitignore"}
"""Where a template goes if not to its own name."""


def write_project(folder: Path, config_text: str, simulation_silos: int | None) -> list[Path]:
    """Write a Flower app around a configuration, and the scripts around it; return the files.

    `simulation_silos` is how many silos the configured data make, None where every silo reads its own. Raises
    ConfigurationError if the folder is there and not empty, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} exists and is not empty; name a new folder")
    texts = {PLACES.get(name, name): text for name, text in _templates().items()}
    texts["run.sh"] = texts["run.sh"].replace("@SILOS@", str(simulation_silos or "none"))
    texts |= {"config.toml": config_text, "federation/__init__.py": '"""The app of a federation."""\n'}
    try:
        return [_write(folder / name, text) for name, text in sorted(texts.items())]
    except OSError as error:
        raise ConfigurationError(f"cannot write {folder}: {error.strerror}") from error


def _templates() -> dict[str, str]:
    entries = (files(__package__) / "templates").iterdir()
    return {entry.name: entry.read_text(encoding="utf-8") for entry in entries if entry.is_file()}


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if path.suffix == ".sh" and text.startswith("#!"):
        path.chmod(0o755)
    return path
