"""Configurations: what loads, what does not and where it says so, and the way back to text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from caveat.config import Config, MethodSettings, dump, load
from caveat.core import ConfigurationError, key
from caveat.methods import METHODS
from caveat.recipes import recipes

VALID = [
    "seed=7",
    "rounds=3",
    "baselines=['local', 'scaffold']",
    "data.samples_per_silo=100",
    "data.partition={scheme='dirichlet', alpha=0.1}",
    "data.shift.noise_std=[0, 2.5, 10]",
    "data.source=csv:a b.csv",
    "model.hidden=7",
    "model.name=lenet5",
    "training.local_steps=5",
    "training.lr=1e-7",
    "training.weight_decay=0.1",
    "uncertainty.mc_samples=1",
    "evaluation.splits=['validation', 'test']",
    "federation.participation=0.1",
    "engine.workers=3",
]


def problems(source: str | None = None, *sets: str) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        load(source, sets)
    return str(raised.value).splitlines()


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "my.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("recipe", recipes())
def test_every_recipe_loads_and_builds_its_methods(recipe: str) -> None:
    config = load(recipe)
    assert type(config.build_method()) is METHODS[config.method.name]
    assert all(type(config.build_method(name)) is METHODS[name] for name in config.baselines)


@pytest.mark.parametrize("trial", range(20))
def test_what_is_dumped_loads_back_equal(trial: int, tmp_path: Path) -> None:
    choose = np.random.default_rng(key(0, "round trip", trial))
    sets = [f"method.name={choose.choice(list(METHODS))}"]
    sets += [item for item in VALID if choose.random() < 0.4]
    if "data.source=csv:a b.csv" in sets:
        sets.append('data.target=it\'s "quoted"')
    if any("scaffold" in item for item in sets):  # it refuses what is not plain sgd
        sets = [item for item in sets if "weight_decay" not in item]
    config = load(str(choose.choice(recipes())), sets)
    path = tmp_path / "config.toml"
    path.write_text(dump(config))
    assert load(str(path)) == config
    assert dump(load(str(path))) == dump(config)


@pytest.mark.parametrize("setting", ["workers=2", "sync_seconds=1"])
def test_what_only_the_embedded_engine_reads_is_refused_elsewhere(setting: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"engine\.{setting.partition('=')[0]} = .* is not used by engine 'flower'"
    ):
        load(None, ["engine.name=flower", f"engine.{setting}"])


def test_a_dump_explains_every_key() -> None:
    """Each key, unset ones too, stands below a comment: its docstring."""
    lines = dump(load("uefl-mnist")).splitlines()
    keys = [i for i, line in enumerate(lines) if line.endswith(" =") or ("=" in line and line[0] != "#")]
    assert len(keys) > 50
    assert [lines[i] for i in keys if not lines[i - 1].startswith("# ") or lines[i - 1].endswith(" =")] == []


def test_a_dump_has_every_field_of_every_section() -> None:
    config = load("uefl-mnist")
    lines = dump(config).splitlines()
    for section in dataclasses.fields(config):
        value = getattr(config, section.name)
        names = config.method.parameters if section.name == "method" else getattr(value, "__dict__", {})
        for name in names:
            assert any(
                line.startswith((f"{name} =", f"# {name} =")) or line == f"[{section.name}.{name}]" for line in lines
            )


def test_no_configuration_is_the_recipe_digits() -> None:
    assert load() == load("digits")


def test_an_unknown_key_is_placed_and_the_nearest_key_named(written) -> None:
    path = written("rounds = 2\n\n[method]\nname = 'fedavg'\n\n[training]\nlr = 0.1\nbatch_sise = 32\n")
    assert problems(path) == [f"{path}:8: unknown key training.batch_sise; did you mean training.batch_size?"]


def test_a_key_in_the_wrong_section_is_sent_to_the_right_one(written) -> None:
    path = written("lr = 0.1\n[method]\nname = 'fedavg'\n")
    assert problems(path) == [f"{path}:1: unknown key lr; did you mean training.lr?"]


def test_keys_of_named_columns_and_files_are_told_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("""\
[method]
name = "fedavg"
[data.files.north]
rename_column = { a = "b" }
[data.rename_columns]
chol = { unit = "mg/dl", factr = 2 }
age = { name = 3 }
""")
    assert problems(path) == [
        f"{path}:4: unknown key data.files.north.rename_column; did you mean data.files.north.rename_columns?",
        f"{path}:6: unknown key data.rename_columns.chol.factr; did you mean data.rename_columns.chol.factor?",
        f"{path}:7: data.rename_columns.age.name = 3: must be a valid string",
    ]
    (told,) = problems(None, "data.dictionary.age.rang=[0,1]", "method.name=fedavg")
    assert told == "--set: unknown key data.dictionary.age.rang; did you mean data.dictionary.age.range?"


def test_a_key_that_the_method_ignores_is_an_error(written) -> None:
    path = written("[method]\nname = 'fedavg'\ncodewords = 32\n")
    assert problems(path) == [f"{path}:3: method.codewords is not used by method 'fedavg'; it belongs to uefl"]


def test_fields_that_methods_share_are_sent_to_their_own_sections() -> None:
    assert problems(None, "method.rounds=3") == ["--set: unknown key method.rounds; did you mean rounds?"]
    assert "did you mean uncertainty.mc_samples?" in problems(None, "method.mc_samples=3")[0]


@pytest.mark.parametrize(("given", "advised"), [
    ("federation.rounds=3", "did you mean rounds?"), ("data.rounds=3", "did you mean rounds?"),
    ("federation.lr=1.0", "did you mean training.lr?"), ("method.lr=1.0", "did you mean training.lr?"),
    ("training.seed=1", "did you mean seed?"), ("training.momentm=0.5", "did you mean training.momentum?"),
    ("method.name=fedavgm", 'set method.name = "fedavg" and server.optimizer = "momentum"'),
    ("method.name=FedAdam", 'set method.name = "fedavg" and server.optimizer = "adam"'),
])  # fmt: skip
def test_hints_name_the_key_wherever_it_is(given: str, advised: str) -> None:
    (problem,) = problems(None, given)
    assert advised in problem


def test_advice_on_a_server_optimizer_works() -> None:
    config = load("own-data", ["method.name=fedavg", "server.optimizer=momentum"])
    assert config.server.optimizer == "momentum"


def test_a_source_of_the_same_kind_keeps_the_section(written) -> None:
    path = written('[data]\nsource = "csv:a.csv"\ntarget = "ill"\ncategorical = ["code"]\n[method]\nname = "fedavg"\n')
    kept = load(path, ["data.source=csv:b.csv,c.csv"]).data
    assert (kept.source, kept.target, kept.categorical) == ("csv:b.csv,c.csv", "ill", ("code",))
    other = load(path, ["data.source=digits", "data.n_silos=2"]).data
    assert (other.target, other.categorical) == (None, ())


def test_all_problems_are_told_at_once_in_the_order_of_the_file(written) -> None:
    path = written("""\
rounds = 0
[data.shift]
angels = [1]
angles = ["a"]
[data.partition]
alpha = 0.5
[model]
name = "lenet5"
width = 3
[method]
name = "fedprox"
mu = -1.0
[training]
lr = -0.1
[engine]
workers = true
[egnine]
x = 1
""")
    found = problems(path)
    assert [int(line.removeprefix(path).split(":")[1]) for line in found] == [1, 3, 4, 6, 9, 12, 14, 16, 17]
    assert found[0] == f"{path}:1: rounds = 0: must be at least 1"
    assert found[2] == f'{path}:4: data.shift.angles[0] = "a": must be a valid number'
    assert found[6] == f"{path}:14: training.lr = -0.1: must be greater than 0"
    assert found[7] == f"{path}:16: engine.workers = true: must be a valid integer"


@pytest.mark.parametrize(
    "text",
    [
        "data = {shift = {angels = [1]}}\nmethod = {name = 'fedavg'}",
        "data.shift.angels = [1]\nmethod.name = 'fedavg'",
        "[data]\nshift.angels = [1]\n[method]\nname = 'fedavg'",
        "['data'.shift]\nangels = [1]\n[method]\nname = 'fedavg'",
    ],
)
def test_lines_are_found_however_toml_spells_a_key(text: str, written) -> None:
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "angels" in line)
    path = written(text)
    assert problems(path) == [f"{path}:{line}: unknown key data.shift.angels; did you mean data.shift.angles?"]


def test_what_is_no_toml_is_one_problem_with_its_line(written) -> None:
    (found,) = problems(written("rounds = 3\nseed = = 1\n"))
    assert "my.toml" in found
    assert "line 2" in found


def test_a_file_needs_a_method(written) -> None:
    (found,) = problems(written("rounds = 3\n"))
    assert "method.name is missing" in found
    assert all(name in found for name in METHODS)


def test_an_unknown_recipe_or_method_names_the_nearest(tmp_path: Path) -> None:
    assert "did you mean uefl-mnist?" in problems("uefl-mnits")[0]
    assert "did you mean fedavg?" in problems(None, "method.name=fedavgg")[0]
    assert "did you mean scaffold?" in problems(None, "baselines=['scafold']")[0]
    assert "is a folder" in problems(str(tmp_path))[0]


def test_epochs_and_steps_together_are_an_error_but_set_replaces_the_other(written) -> None:
    path = written("[method]\nname = 'fedavg'\n[training]\nlocal_epochs = 3\nlocal_steps = 5\n")
    assert problems(path)[0].startswith(f"{path}:4: training.local_epochs = 3")
    training = load("uefl-mnist", ["training.local_steps=5"]).training
    assert (training.local_epochs, training.local_steps) == (None, 5)


@pytest.mark.parametrize(
    ("item", "section", "name", "value"),
    [
        ("training.lr=0.5", "training", "lr", 0.5),
        ("training.lr=1", "training", "lr", 1.0),
        ("training.optimizer=sgd", "training", "optimizer", "sgd"),
        ('training.optimizer="sgd"', "training", "optimizer", "sgd"),
        ("data.source=npz:a.npz,b.npz", "data", "source", "npz:a.npz,b.npz"),
        ("model.dropout_logits=true", "model", "dropout_logits", True),
        ("evaluation.splits=['test']", "evaluation", "splits", ("test",)),
    ],
)
def test_set_takes_toml_and_bare_words(item: str, section: str, name: str, value: object) -> None:
    assert getattr(getattr(load(None, [item]), section), name) == value


def test_names_with_points_and_spaces_are_quoted_in_a_set() -> None:
    own = ["data.source=csv:a", "data.target=y"]
    found = load(None, [*own, 'data.files."south 2.1".decimal = ","', 'data.rename_columns."a=b".unit="kg"']).data
    assert [(file.name, file.decimal) for file in found.files] == [("south 2.1", ",")]
    assert [(column.own, column.unit) for column in found.rename_columns] == [("a=b", "kg")]


def test_the_last_set_of_a_key_wins() -> None:
    assert load(None, ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ("training.lr", "expected SECTION.KEY=VALUE"),
        (".lr=1", "expected SECTION.KEY=VALUE"),
        ("data.shift.angles=[1", "is not TOML"),
        ("model=lenet5", "model is a section"),
        ("method=fedavg", "method is a section"),
        ("training.lr=fast", 'training.lr = "fast": must be a valid number'),
        ("training.lr=nan", "training.lr = nan"),
        ("seed=-1", "seed = -1: must be at least 0"),
        ("seed=true", "seed = true: must be a valid integer"),
        ("seed.x=1", "seed = "),
        ("federation.participation=0", "must be greater than 0"),
        ("federation.participation=1.5", "must be at most 1"),
        ("evaluation.splits=['train']", "must be 'validation' or 'test'"),
        ("method.name=3", "method.name = 3: no such method"),
    ],
)
def test_a_bad_set_is_one_clear_problem(item: str, told: str) -> None:
    (found,) = problems(None, item)
    assert found.startswith("--set")
    assert told in found


@pytest.mark.parametrize("value", ["[]", "{a=1}", "true", "-1", "1e400", "''", "2020-01-01", "[[1]]", "[{a=1}]", "x y"])
def test_whatever_a_key_is_set_to_loads_or_is_a_configuration_error(value: str) -> None:
    config = load("digits")
    sections = [section.name for section in dataclasses.fields(config)]
    names = [f"{section}.{key}" for section in sections for key in vars_of(config, section)]
    told = {}
    for name in [*sections, *names, "method.name", "method.init", "a.b"]:
        try:
            load("digits", [f"{name}={value}"])
        except ConfigurationError as error:
            told[name] = str(error)
    assert len(told) > 20
    assert [name for name, text in told.items() if name.partition(".")[0] not in text] == []


def vars_of(config: Config, section: str) -> list[str]:
    value = getattr(config, section)
    return [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []


def test_all_keys_of_another_engine_are_told_at_once() -> None:
    found = problems(None, "engine.name=flower", "engine.workers=2", "federation.newcomers=['a']")
    assert [line.split()[1] for line in found] == ["federation.newcomers", "engine.workers"]


def test_what_a_section_refuses_as_a_whole_hides_no_other_problem() -> None:
    found = problems(None, "training.momentum=0.5", "method.name=fedprox", "method.mu=-1", "model.hidden=-1")
    assert [line.split()[1] for line in found] == ["model.hidden", "method.mu", "training.momentum"]


def test_code_of_another_model_resets_the_section_only_where_the_file_has_none(written) -> None:
    named = written("[method]\nname = 'fedavg'\n[model]\nname = 'mlp'\nwidth = 3\n")
    assert load(named, ["model=net.py:Net"]).model.width is None
    encoder = written("[method]\nname = 'fedavg'\n[model]\nencoder = 'net.py:Net'\nhidden = 3\n")
    assert load(encoder, ["model.encoder=net.py:Other"]).model.hidden == 3


def test_another_method_starts_its_section_afresh() -> None:
    """A recipe's hyperparameters mean nothing to another method, and must not be errors either."""
    config = load("uefl-mnist", ["method.name=fedprox", "method.mu=0.5"])
    assert config.method == MethodSettings("fedprox", {"mu": 0.5})
    assert load("uefl-mnist", ["method.name=uefl"]) == load("uefl-mnist")
    assert load("uefl-mnist", ["method.name=scaffold"]).training.optimizer == "sgd"


def test_another_policy_drops_what_belongs_to_that_of_the_file() -> None:
    own = load("fedpn-mnist")
    assert own.uncertainty.handover_rate is not None
    guaranteed = load("fedpn-mnist", ["uncertainty.policy=guaranteed", "uncertainty.risk=0.1"]).uncertainty
    assert (guaranteed.handover_rate, guaranteed.score, guaranteed.risk) == (None, own.uncertainty.score, 0.1)
    assert load("fedpn-mnist", ["uncertainty.policy=switch"]) == own
    with pytest.raises(
        ConfigurationError, match=r"uncertainty\.handover_rate = 0\.2 is not used by policy 'guaranteed'"
    ):
        load("fedpn-mnist", ["uncertainty.policy=guaranteed", "uncertainty.handover_rate=0.2"])


def test_the_method_does_not_run_beside_itself() -> None:
    assert load("digits", ["method.name=fedavg", "baselines=['fedavg', 'local', 'local']"]).baselines == ("local",)


def test_a_built_method_has_the_shared_settings() -> None:
    config = load(None, ["rounds=3", "training.lr=0.5", "uncertainty.mc_samples=7", "method.threshold=0.7"])
    method = vars(config.build_method())
    assert (method["rounds"], method["training"], method["mc_samples"]) == (3, config.training, 7)
    assert method["threshold"] == 0.7
    beside = vars(config.build_method("fedavg"))
    assert (beside["rounds"], beside["training"]) == (3, config.training)


def test_a_method_with_training_defaults_of_its_own_keeps_them_unless_told_otherwise(written) -> None:
    path = written("[method]\nname = 'scaffold'\n[training]\nlr = 0.2\n")
    assert (load(path).training.optimizer, load(path).training.lr) == ("sgd", 0.2)
    beside = vars(load(None).build_method("scaffold"))["training"]
    assert beside.optimizer == "sgd"
    assert beside.local_epochs == load(None).training.local_epochs
    assert "sgd" in problems(path, "training.optimizer=adam")[0]


def test_parameters_in_python_are_checked_too() -> None:
    with pytest.raises(ConfigurationError, match="codewords"):
        MethodSettings("fedavg", {"codewords": 3})
    with pytest.raises(ConfigurationError, match=r"method\.mu = -1"):
        MethodSettings("fedprox", {"mu": -1})
    with pytest.raises(ConfigurationError, match="no such method"):
        Config(method=MethodSettings("fedprox"), baselines=("nothing",))


def test_what_classes_of_settings_know_of_themselves_is_no_key() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown key training\.LATER; available: training\.local_epochs"):
        load("digits", ["training.LATER=3"])
