"""Pages of the reference that are made from the code: commands, configuration keys and a page per public name."""

from __future__ import annotations

import dataclasses
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from typer.main import get_command

import caveat
from caveat.cli.main import app
from caveat.config.settings import Config, MethodSettings
from caveat.config.toml import entries, toml

GROUPS = {
    "Run": ["run", "plan", "compare", "audit", "join", "load", "load_comparison", "Run", "FederatedClassifier",
            "FederatedRegressor", "export_model", "Callback", "TensorBoard", "MLflow", "WandB"],
    "Settings": ["Training", "ModelSettings", "PersonalModel", "Uncertainty", "Privacy", "ServerOptimizer"],
    "Predictions": ["Prediction", "Decision", "Reason", "uncertainty"],
    "Data": ["data", "Silo", "Data"],
    "Methods": ["METHODS", *(method.__name__ for method in caveat.METHODS.values())],
    "Write a method": ["Method", "Round", "SiloContext", "Payload", "Tensors", "State", "Update", "Replies", "Answers",
                       "register", "frozen_settings", "metric"],
    "Errors and version": ["CaveatError", "ConfigurationError", "DataError", "RunError", "__version__"],
}  # fmt: skip
"""All names of `caveat.__all__`, in the order of the page; tests/test_site.py checks that none is missing."""
VALUES = {
    "METHODS": "The classes of all methods by their names in configurations, in a mapping. "
    "`caveat.register` adds a method.",
    "__version__": "The version of the installed package, such as `0.1.0`.",
    "Payload": "What a silo sends or receives: `dict[str, Tensors]`, groups of named tensors. The ledger lists every "
    "tensor of every payload.",
    "Answers": "Predictions of all available models for the same inputs: `dict[Decision, Prediction]`, of the global "
    "model, the local one, or both.",
    "State": "What a silo or the server keeps between rounds: `dict[str, Tensors]`, as a payload.",
    "Tensors": "Named tensors: `dict[str, torch.Tensor]`.",
}
"""Public names that are no classes or functions, with their descriptions."""


def write(folder: Path) -> None:
    """Write `cli.md`, `config.md` and `api/`, but leave files alone that would not change."""
    pages = {"cli.md": cli(), "config.md": config(), "api/index.md": overview()}
    pages |= {f"api/{name.strip('_')}.md": api_page(name) for names in GROUPS.values() for name in names}
    (folder / "api").mkdir(exist_ok=True)
    for stale in {path.name for path in (folder / "api").iterdir()} - {Path(name).name for name in pages}:
        (folder / "api" / stale).unlink()
    for name, text in pages.items():
        if not (folder / name).exists() or (folder / name).read_text() != text:
            (folder / name).write_text(text)


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command, or all commands below a group, with their full names."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from commands(each, f"{name} {each.name}")
    else:
        yield name, command


def cli() -> str:
    """Return the page of all commands, with their help."""
    lines = ["# Commands and options", "", "The output of `caveat COMMAND --help`. For an overview with examples, see",
             "[the command line](commands.md).", ""]  # fmt: skip
    for name, command in commands(get_command(app), "caveat"):
        context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100)
        lines += [f"## {name}", "", "```text", command.get_help(context).strip(), "```", ""]
    return "\n".join(lines)


def cell(text: str) -> str:
    """Return a text as a cell of a table in Markdown."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").split())


def settings_table(cls: Any, settings: Any = None) -> list[str]:
    """Return a table of the fields of a settings class: key, default, meaning."""
    fields = [field for field in dataclasses.fields(cls) if not dataclasses.is_dataclass(default(field, settings))]
    if not fields:
        return []
    found = {field.name: default(field, settings) for field in fields}
    rows = [f"| `{key}` | {shown(value)} | {cell(text)} |" for key, value, text in entries(cls, found)]
    return ["| key | default | meaning |", "| --- | --- | --- |", *rows, ""]


def default(field: Any, settings: Any = None) -> Any:
    """Return the default of a field; `dataclasses.MISSING` if it has none."""
    if settings is not None:
        return getattr(settings, field.name)
    found = field.default
    if found is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
        found = field.default_factory()
    if hasattr(found, "default_factory"):  # a `Field` of pydantic
        found = found.get_default(call_default_factory=True) if not found.is_required() else dataclasses.MISSING
    return found


def shown(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "required"
    if value is None:
        return ""
    try:
        return f"`{toml(value)}`"
    except Exception:  # a value that no configuration can hold, such as a function
        return f"`{value!r}`"


def config() -> str:
    """Return the page of all keys of a configuration."""
    lines = [
        "# Configuration keys",
        "",
        "All keys of a configuration, with their defaults. `caveat config RECIPE` prints them with the values of a",
        "recipe, ready to edit. An empty default means that the key is not set.",
        "",
    ]
    defaults = Config(method=MethodSettings("fedavg"))
    lines += ["## Top level", "", *settings_table(Config, defaults)]
    for field in dataclasses.fields(Config):
        value = getattr(defaults, field.name)
        if field.name == "method":
            lines += ["## method", "", "`method.name` is the name of a method; each has its own keys.", ""]
            for name, cls in caveat.METHODS.items():
                own = [key for key in (each.name for each in dataclasses.fields(cls)) if key in keys_of(name)]
                found = {key: default(next(f for f in dataclasses.fields(cls) if f.name == key)) for key in own}
                rows = [f"| `{key}` | {shown(value)} | {cell(text)} |" for key, value, text in entries(cls, found)]
                table = ["| key | default | meaning |", "| --- | --- | --- |", *rows, ""] if rows else ["No keys.", ""]
                lines += [f"### {name}", "", cell(first_sentence(cls)), "", *table]
        elif dataclasses.is_dataclass(value):
            lines += section((field.name,), value)
    return "\n".join(lines)


def keys_of(name: str) -> list[str]:
    from caveat.config.settings import method_keys

    return method_keys(name)


def section(path: tuple[str, ...], settings: Any) -> list[str]:
    lines = [f"{'#' * (len(path) + 1)} {'.'.join(path)}", "", cell(first_sentence(type(settings))), ""]
    lines += settings_table(type(settings), settings)
    for field in dataclasses.fields(settings):
        if dataclasses.is_dataclass(value := getattr(settings, field.name)):
            lines += section((*path, field.name), value)
    return lines


def first_sentence(documented: Any) -> str:
    return (inspect.getdoc(documented) or "").partition("\n\n")[0]


def overview() -> str:
    """Return the page that lists all public names by group."""
    lines = ["# Python", "", "All public names of `caveat`. Import them with `import caveat`.", ""]
    for group, names in GROUPS.items():
        lines += [f"## {group}", "", "| name | |", "| --- | --- |"]
        lines += [f"| [`{name}`]({name.strip('_')}.md) | {cell(summary(name))} |" for name in names]
        lines += [""]
    return "\n".join(lines)


def summary(name: str) -> str:
    if name in VALUES:
        return VALUES[name].partition(". ")[0].rstrip(".") + "."
    return re.split(r"(?<=\.)\s", " ".join(first_sentence(getattr(caveat, name)).split()))[0]


def api_page(name: str) -> str:
    """Return the page of a public name."""
    found = getattr(caveat, name)
    title = [f"# caveat.{name}", "", "[All public names](index.md)", ""]
    if name in VALUES:
        return "\n".join([*title, VALUES[name], ""])
    if inspect.ismodule(found):
        lines = [*title, first_sentence(found), ""]
        for each in found.__all__:
            if each not in caveat.__all__:
                lines += [f"## {each}", "", *directive(f"caveat.{name}.{each}", getattr(found, each))]
        return "\n".join(lines)
    return "\n".join([*title, *directive(f"caveat.{name}", found)])


def directive(path: str, found: Any) -> list[str]:
    """Return the directive that documents an object, and a table of the fields of settings."""
    if inspect.ismodule(found):
        return ["```{eval-rst}", f".. automodule:: {path}", "   :members:", "```", ""]
    if not inspect.isclass(found):
        return ["```{eval-rst}", f".. autofunction:: {path}", "```", ""]
    settings = dataclasses.is_dataclass(found) and hasattr(found, "__pydantic_fields__")
    lines = ["```{eval-rst}", f".. autoclass:: {path}", *([] if settings else ["   :members:"]), "```", ""]
    return lines + (["**Settings**", "", *settings_table(found)] if settings else [])


TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def listed(page: Path) -> Iterator[tuple[str, Path]]:
    """Yield the pages below a page, in the order of the sidebar, each with the caption of its toctree at the root."""
    for block in TOCTREE.findall(page.read_text()):
        caption = re.search(r"^:caption: (.*)$", block, re.MULTILINE)
        for entry in re.findall(r"^(?!:)(\S+)$", block, re.MULTILINE):
            below = (page.parent / f"{entry}.md").resolve()
            if below.exists():  # the gallery's page is reStructuredText
                yield (caption[1] if caption else ""), below
                yield from (("", each) for _, each in listed(below))


def opening(page: Path) -> tuple[str, str]:
    """Return a page's title, and its first sentence as plain text."""
    text = re.sub(r"^(```|:::).*?^\1$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    title = re.search(r"^# (.*)$", text, re.MULTILINE)
    paragraphs = re.findall(r"(?:\A|\n\n)([A-Z`].*?)(?=\n\n|\Z)", text, re.DOTALL)
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)|\*\*", r"\1", " ".join(paragraphs[0].split())) if paragraphs else ""
    return title[1] if title else page.stem.capitalize(), re.split(r"(?<=[^.]\.)\s", plain)[0]


def llms(docs: Path) -> str:
    """Return the contents of `llms.txt` (llmstxt.org): the site's pages, the commands and the public names."""
    lines = ["# caveat", "", f"> {opening(docs / 'index.md')[1]}", ""]
    lines += ["Import `caveat`, or run `caveat COMMAND`. `caveat list methods --json` (or datasets, models, recipes)"]
    lines += [
        "prints what exists; `caveat config RECIPE` prints all keys. Errors name the value and what was expected."
    ]
    for caption, page in listed(docs / "index.md"):
        lines += ["", f"## {caption}", ""] if caption and f"## {caption}" not in lines else []
        title, sentence = opening(page)
        lines.append(f"- [{title}]({page.relative_to(docs.resolve()).with_suffix('.html')}): {sentence}".rstrip(":. "))
    lines += ["", "## Commands", ""]
    for name, command in commands(get_command(app), "caveat"):
        lines.append(f"- [{name}](reference/cli.html#{name.replace(' ', '-')}): {command.get_short_help_str(200)}")
    lines += ["", "## Python", ""]
    lines += [f"- [caveat.{name}](reference/api/{name.strip('_')}.html): {summary(name)}"
              for names in GROUPS.values() for name in names]  # fmt: skip
    return "\n".join([*lines, ""])


def quiet(gallery: dict[str, Any], file: str) -> None:
    """Hide warnings about small examples, which would show paths of this machine; `print` shows the rest."""
    warnings.simplefilter("ignore", UserWarning)
