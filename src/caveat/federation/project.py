"""The project of a federation on Flower: an app, and scripts that start server, silos and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from ..core import ConfigurationError
from ..methods.plugins import is_file, module_of

PLACES = {"app.py": "federation/app.py", "gitignore": ".gitignore"}
"""Where a template goes if not to its own name."""


def write_project(
    folder: Path, config_text: str, simulation_silos: int | None, plugins: Sequence[str] = ()
) -> list[Path]:
    """Write a Flower app around a configuration, and the scripts around it; return the files.

    `simulation_silos` is how many silos the configured data make, None where every silo reads its own. The files among
    `plugins` go along, and the app imports all of them. Raises ConfigurationError if the folder is there and not empty,
    or cannot be written, and for a plugin's file that cannot go along under its name.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} exists and is not empty; name a new folder")
    texts = {PLACES.get(name, name): text for name, text in _templates().items()}
    texts["run.sh"] = texts["run.sh"].replace("@SILOS@", str(simulation_silos or "none"))
    for named in plugins:
        texts |= _carried(named, texts)
    texts |= {"config.toml": config_text, "federation/__init__.py": '"""The app of a federation."""\n'}
    try:
        return [_write(folder / name, text) for name, text in sorted(texts.items())]
    except OSError as error:
        raise ConfigurationError(f"cannot write {folder}: {error.strerror}") from error


def _carried(named: str, texts: Mapping[str, str]) -> dict[str, str]:
    """The app that imports a plugin, where anybody who reads it sees that, and the plugin's file if it is one."""
    app, (before, after) = PLACES["app.py"], texts[PLACES["app.py"]].split("\n\nserver = ")
    if not is_file(named):
        return {app: f"{before}\n\nimport {module_of(named)}  # noqa: E402, F401\n\nserver = {after}"}
    source = Path(named)
    place = f"federation/{source.name}"
    if not source.stem.isidentifier() or place in (*texts, "federation/__init__.py"):
        raise ConfigurationError(f"--plugin {named}: {source.name} cannot be a module of the project; rename the file")
    line = f"from . import {source.stem}  # noqa: E402, F401"
    return {app: f"{before}\n\n{line}\n\nserver = {after}", place: source.read_text(encoding="utf-8")}


def _templates() -> dict[str, str]:
    entries = (files(__package__) / "templates").iterdir()
    return {entry.name: entry.read_text(encoding="utf-8") for entry in entries if entry.is_file()}


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if path.suffix == ".sh" and text.startswith("#!"):
        path.chmod(0o755)
    return path
