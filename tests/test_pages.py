"""Pages of the documentation are true: their Python, TOML and commands run on small data.

A block that cannot run alone follows the comment `<!-- fragment: REASON -->`. Commands between machines, and those with
placeholders in brackets, are only checked for their names (test_markdown.py, which also checks every comparison); the
tutorial and the README have tests of their own.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import caveat as called
from commands import sets
from data_samples import write_images

import caveat
from caveat.config import load, read_dictionary
from caveat.federation.silo.silo_file import read_silo_file

pd = pytest.importorskip("pandas")

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"(<!-- fragment: .* -->\n+)?^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = {"tutorial/three-hospitals.md", "how-to/python.md"}
PAGES = {
    name: [(kind, code) for fragment, kind, code in BLOCK.findall(page.read_text()) if not fragment]
    for page in sorted(DOCS.rglob("*.md"))
    if not (name := str(page.relative_to(DOCS))).startswith(("results/", "gallery/", "reference/api/"))
    and name not in {*ELSEWHERE, "reference/cli.md", "reference/config.md"}
}
PAGES = {name: blocks for name, blocks in PAGES.items() if blocks}
HERE = (
    "run",
    "resume",
    "predict",
    "evaluate",
    "export",
    "data",
    "config",
    "list",
    "card",
    "join",
    "report",
    "plan",
    "ood",
    "new",
)
"""The commands that run; the others start processes, or train many models."""
SMALLER = {
    r"\brounds=\d+": "rounds=1",
    r"\bseeds=\(0, 1, 2\)": "seeds=(0, 1), fractions=(0.5, 1.0)",
    r", caveat.WandB\(\)": "",
}
MEANT = {
    "cuda": "cpu", "cuda:1": "cpu", "RUN": "tables", "runs/first": "runs/digits", "NAME": "north", "RECIPE": "digits",
}  # fmt: skip
"""What placeholders of commands mean."""
NETS = "from torch import nn\n\n\ndef backbone():\n    return nn.Flatten()\n"
SHORT = sets("rounds=2", "training.local_epochs=1", "uncertainty.mc_samples=2")
"""Options of every run."""


def patients(seed: int) -> Any:
    draw = np.random.default_rng(seed)
    table = pd.DataFrame({"age": draw.normal(60, 9, 120).round(), "creatinine": draw.normal(1, 0.3, 120).round(2)})
    return table.assign(
        sex=draw.choice(["f", "m"], 120), outcome=draw.choice(["alive", "died"], 120), days=draw.integers(1, 2500, 120),
        died=draw.integers(0, 2, 120),
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables, images and finished runs, as pages name them."""
    folder = tmp_path_factory.mktemp("made")
    for seed, name in enumerate(("north", "south", "west", "switzerland")):
        patients(seed).to_csv(folder / f"{name}.csv", index=False)
    np.savez(folder / "x.npz", x=caveat.data.digits().x[:5])
    (folder / "my.toml").write_text('[method]\nname = "fedavg"\n')
    (folder / "CONFIG.toml").write_text('[method]\nname = "fedavg"\n[data]\nn_silos = 2\n')
    write_images(folder / "DIR", {name: {"cat": 60, "dog": 60} for name in "ab"}, size=8)
    (folder / "nets.py").write_text(NETS)
    data = [str(folder / f"{name}.csv") for name in ("north", "south", "west")]
    newcomers = sets('federation.newcomers=["west"]', "baselines=[]")
    small = sets("model.name=mlp", "data.n_silos=3", "baselines=[]", "method.name=fedavg")
    for name, given in {
        "runs/digits": ["digits", *small],
        "tables": [*data, "--target", "outcome", *newcomers],
    }.items():
        done = called("run", *given, *SHORT, "--out", folder / name, "--quiet")
        assert done.exit_code == 0, done.stderr
    return folder


def names_of(page: str, folder: Path) -> dict[str, Any]:
    """The names that the Python of a page takes from its reader."""
    of_digits = page in (
        "explanation/familiarity.md",
        "how-to/export.md",
        "how-to/write-a-method.md",
        "how-to/audit.md",
    )
    run = caveat.load(folder / ("runs/digits" if of_digits else "tables"))
    raw = caveat.data.digits().x[..., 0]
    first, second, third = (patients(seed) for seed in range(3))
    if of_digits:
        silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 60), silos_per_angle=1)
    else:
        frames = {"east": third} if page == "how-to/joining.md" else {"north": first, "south": second}
        silos = caveat.data.from_frames(frames, target="outcome")
    numbers = np.concatenate([first, second])[:, :2].astype(float)
    return {
        "caveat": caveat, "MyNet": lambda shape, classes: torch.nn.Linear(shape[0], classes),
        "torch": torch, "run": run, "silos": silos, "images": raw[:5], "x": raw[:5],
        "north": first, "south": second, "new_frame": third, "new_rows": third, "X": numbers, "X_new": numbers[:9],
        "y": np.arange(240) % 3 if page == "quantities.md" else np.arange(240) % 2,
        "hospital": np.repeat(["a", "b"], 120), "hospital_of_new": np.repeat("a", 9),
    }  # fmt: skip


def run_python(code: str, names: dict[str, Any]) -> None:
    for pattern, smaller in SMALLER.items():
        code = re.sub(pattern, smaller, code)
    exec(code, names)


def read_toml(text: str, folder: Path, page: str) -> None:
    """Check the keys of a block as the file that it is a part of."""
    file, table = folder / "block.toml", tomllib.loads(text)
    file.write_text(text)
    if "project" in table:
        return
    if page == "serving.md":
        found = called("card", "tables", "--silo", "north", "--card", file)
        assert found.exit_code == 0, found.stderr
    elif page == "how-to/federation.md":
        head, source = (
            'silo = "cleveland"\nstate = "state"\n',
            "" if "data" in table else '[data]\nsource = "csv:a.csv"\n',
        )
        file.write_text(f"{head}{text}\n{source}")
        (folder / "d.toml").write_text("[chol]\n")
        read_silo_file(file)
    elif page == "reference/messages.md":
        read_dictionary(file)
    else:
        named = [] if "method" in table else ["method.name=fedavg"]
        if "data" in table and "source" not in table["data"]:
            named += ["data.source=csv:north.csv,south.csv", "data.target=outcome"]
        load(str(file), named)


def run_commands(text: str, folder: Path) -> int:
    """Run the command lines of a block, smaller; return how many."""
    count = 0
    for line in text.replace("\\\n", " ").splitlines():
        line = line.removeprefix("$ ")
        words = shlex.split(line, comments=True) if line.startswith("caveat ") else []
        if not words or words[1] not in HERE or re.search(r"\[[A-Z-]|\.\.\.|\|", " ".join(words)):
            continue
        words = [MEANT.get(word, word) for word in words[1:]]
        if "--rounds" in words:
            words[words.index("--rounds") + 1] = "2"
        if "--out" in words:
            words[words.index("--out") + 1] = f"made-{len(list(folder.glob('made-*')))}"
        elif words[0] == "run":
            words += ["--out", f"made-{len(list(folder.glob('made-*')))}"]
        tiny = sets("model.name=mlp", "baselines=[]") if words[1:2] == ["digits"] else []
        done = called(*words, *([*SHORT, *tiny] if words[0] == "run" else ()))
        assert done.exit_code == 0, f"{line}\n{done.stderr}"
        count += 1
    return count


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_runs(page: str, made: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(nowhere)
    shutil.copytree(made, nowhere, dirs_exist_ok=True)
    names = names_of(page, made)
    for kind, code in PAGES[page]:
        if kind == "python":
            run_python(code, names)
        elif kind == "toml" or (not kind and re.match(r"\[\w+\]\n", code)):
            read_toml(code, nowhere, page)
        elif kind in ("", "console"):
            run_commands(code, nowhere)
