"""The project of a federation on Flower: an app, and scripts that start server, silos and runs."""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from ..core import ConfigurationError
from ..methods.plugins import is_file, module_of
from ..runs.user_code import split_name

APP = "federation/__init__.py"
"""What both sides of the app import first."""
SIDES = ("client_app.py", "server_app.py")
PLACES = {"package.py": APP, "gitignore": ".gitignore", **{name: f"federation/{name}" for name in SIDES}}
"""Where a template goes if not to its own name."""


def write_project(
    folder: Path,
    config_text: str,
    simulation_silos: int | None,
    plugins: Sequence[str] = (),
    codes: Sequence[str] = (),
    dictionary: str = "",
) -> list[Path]:
    """Write a Flower app around a configuration, and the scripts around it; return the files.

    `simulation_silos` is how many silos the configured data make, None where every silo reads its own. The files among
    `plugins`, and of the names of models' `codes`, go along, and the app imports all of them; `dictionary` is the text
    of a data dictionary, of which silos may have a copy. Raises ConfigurationError if the folder is there and not
    empty, or cannot be written, and for a file that cannot go along under its name.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} exists and is not empty; name a new folder")
    texts = {PLACES.get(name, name): text for name, text in _templates().items()}
    texts["run.sh"] = texts["run.sh"].replace("@SILOS@", str(simulation_silos or "none"))
    texts["pyproject.toml"] = texts["pyproject.toml"].replace("@FLOWER@", version("flwr"))
    for named in plugins:
        texts |= _carried(named, texts, f"--plugin {named}")
    for code in codes:
        texts |= _made_known(code, texts)
    texts |= {"config.toml": config_text} | ({"dictionary.toml": dictionary} if dictionary else {})
    try:
        return [_write(folder / name, text) for name, text in sorted(texts.items())]
    except OSError as error:
        raise ConfigurationError(f"cannot write {folder}: {error.strerror}") from error


def _carried(named: str, texts: Mapping[str, str], what: str) -> dict[str, str]:
    """The app that imports a file or module, where anybody who reads it sees that, and the file if it is one."""
    if not is_file(named):
        return _with_line(texts, f"import {module_of(named)}  # noqa: F401")
    source = Path(named).expanduser()
    place = f"federation/{source.name}"
    text = source.read_text(encoding="utf-8")
    if not source.stem.isidentifier() or texts.get(place, text) != text or source.name in ("__init__.py", *SIDES):
        raise ConfigurationError(f"{what}: {source.name} cannot be a module of the project; rename the file")
    return _with_line(texts, f"from . import {source.stem}  # noqa: F401") | {place: text}


def _made_known(code: str, texts: Mapping[str, str]) -> dict[str, str]:
    """The app that says which code makes the models that the configuration names."""
    place, name = split_name(code)
    texts = {**texts, **_carried(place, texts, f"model {code}")}
    module = Path(place).stem if is_file(place) else place
    known = f"make_known({json.dumps(code)}, {module}.{name})"
    return texts | _with_line(texts, "from caveat.federation import make_known", "", known)


def _with_line(texts: Mapping[str, str], *lines: str) -> dict[str, str]:
    """The app with more lines, a paragraph of them; what it has already is not said twice."""
    text = texts[APP]
    new = [line for line in lines if line not in text.splitlines()]
    return {APP: "\n".join([text.rstrip("\n"), "", *new, ""])} if new else {APP: text}


def _templates() -> dict[str, str]:
    entries = (files(__package__) / "templates").iterdir()
    return {entry.name: entry.read_text(encoding="utf-8") for entry in entries if entry.is_file()}


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if path.suffix == ".sh" and text.startswith("#!"):
        path.chmod(0o755)
    return path
