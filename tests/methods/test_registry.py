"""Methods of one's own: which classes a configuration can name, and what is said of those that it cannot."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
from own_methods import forget_own, put_package

import caveat
from caveat.config import dump, load
from caveat.core import ConfigurationError
from caveat.methods import METHODS, plugins, tools
from caveat.methods.plugins import use

pytestmark = pytest.mark.usefixtures("registry")
OWN = '''
from caveat import FedAvg, frozen_settings, register


@register
@frozen_settings
class Mine(FedAvg):
    """FedAvg under another name."""

    strength: float = 0.5
    """How much of it."""
'''
HEAD = "from caveat import FedAvg, Method, frozen_settings, register\n"


def written(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(dedent(text))
    return str(folder / name)


def test_a_registered_method_is_in_the_table_and_in_configurations(tmp_path: Path) -> None:
    before = list(METHODS)
    use(written(tmp_path, OWN))
    assert isinstance(METHODS, Mapping)
    assert list(METHODS) == [*before, "mine"]
    config = load("digits", ["method.name=mine", "method.strength=0.25", "baselines=[]"])
    assert config.build_method() == METHODS["mine"](
        strength=0.25, rounds=config.rounds, training=config.training, mc_samples=config.uncertainty.mc_samples
    )
    assert "strength = 0.25" in dump(config)
    with pytest.raises(ConfigurationError, match=r"did you mean method\.strength"):
        load("digits", ["method.name=mine", "method.strenght=0.25"])


def test_a_name_may_be_another_than_the_class_s(tmp_path: Path) -> None:
    use(written(tmp_path, OWN.replace("    strength", '    name = "my_own"\n    strength')))
    assert load("digits", ["method.name=my_own", "baselines=[]"]).build_method().name == "my_own"


def test_the_same_file_read_anew_replaces_what_it_registered(tmp_path: Path) -> None:
    file = written(tmp_path, OWN)
    use(file)
    written(tmp_path, OWN.replace("0.5", "0.75"))
    use(file)
    assert METHODS["mine"]().strength == 0.75  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (OWN.replace("class Mine", "class FedProx"), "'fedprox' is a built-in method"),
        (OWN.replace("@frozen_settings\n", ""), "put @caveat.frozen_settings above the class"),
        (OWN.replace('    """FedAvg under another name."""\n', ""), "no docstring"),
        (
            OWN.replace(" = 0.5", "").replace("(FedAvg)", "(Method)").replace("FedAvg,", "FedAvg, Method,"),
            "schedule() is missing",
        ),
        (OWN.replace("class Mine(FedAvg):", "class Mine:"), "expected a subclass of caveat.Method"),
        (OWN.replace("    strength", '    name = "My Own"\n    strength'), "at most 60 lower-case letters"),
        (HEAD + "register(3)", "register(3): expected a subclass of caveat.Method"),
        (HEAD + "FedAvg.nothing", "mine.py:2: AttributeError: type object 'FedAvg' has no attribute 'nothing'"),
        ("def", "SyntaxError"),
        ("import nothing_of_that_name", "mine.py:1: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
    ],
)
def test_what_cannot_be_registered_is_one_line(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        use(written(tmp_path, text))
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"--plugin {tmp_path / 'mine.py'}: ")
    assert "\n" not in str(caught.value)
    assert "mine" not in METHODS


def test_a_setting_without_a_default_is_refused(tmp_path: Path) -> None:
    text = """
        from dataclasses import dataclass
        from caveat import FedAvg, Method, frozen_settings, register

        @register
        @frozen_settings
        class Mine(Method):
            '''Needs a number.'''

            strength: float
            '''How much of it.'''

            schedule = FedAvg.schedule
            broadcast = FedAvg.broadcast
            answer = FedAvg.answer
    """
    with pytest.raises(ConfigurationError, match="strength has no default; every setting of a method needs one"):
        use(written(tmp_path, text))


def test_two_files_cannot_have_one_name(tmp_path: Path) -> None:
    use(written(tmp_path, OWN))
    with pytest.raises(ConfigurationError, match=r"'mine' is already the name of .*mine.py; rename one class"):
        use(written(tmp_path, OWN, "other.py"))


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("gone.py", "no such file"),
        ("gone", "no module with that name is installed"),
        ("beside", "to import the file, use beside.py"),
        ("no module", "expected a file such as my.py, or the name of an installed module"),
        ("", "expected a file such as my.py"),
        (".", "expected a file such as my.py, or the name of an installed module"),
    ],
)
def test_what_cannot_be_imported_is_one_line(named: str, told: str, nowhere: Path) -> None:
    (nowhere / "beside.py").touch()
    with pytest.raises(ConfigurationError) as caught:
        use(named)
    assert told in str(caught.value)


def test_a_file_hides_no_module_of_its_name(tmp_path: Path) -> None:
    import random

    use(written(tmp_path, OWN, "random.py"))
    assert sys.modules["random"] is random
    assert str(tmp_path) not in sys.path


def test_a_file_that_fails_leaves_no_module_behind(tmp_path: Path) -> None:
    before = set(sys.modules)
    with pytest.raises(ConfigurationError):
        use(written(tmp_path, "1 / 0"))
    assert {name for name in set(sys.modules) - before if "plugin" in name} == set()


# Installed packages


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(put_package(tmp_path, f"print('imported')\n{OWN}")))
    return tmp_path


def test_an_installed_package_is_imported_by_its_method_s_name(installed: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="the installed package caveat-mine has this method: add --plugin mine"
    ):
        load("digits", ["method.name=mine"])
    assert "caveat_mine" not in sys.modules
    use("mine")
    assert METHODS["mine"].__module__ == "caveat_mine"


def test_an_entry_point_s_class_needs_no_decorator_but_its_name(tmp_path: Path, installed: Path) -> None:
    (tmp_path / "caveat_mine.py").write_text(OWN.replace("@register\n", ""))
    use("mine")
    assert "mine" in METHODS
    forget_own()
    (tmp_path / "caveat_mine.py").write_text(
        OWN.replace("@register\n", "").replace("    strength", "    name = 'other'\n    strength")
    )
    with pytest.raises(ConfigurationError, match="caveat-mine names method 'mine' as an entry point, but does not"):
        use("mine")


def test_a_plugin_without_the_method_is_told_what_it_lacks(tmp_path: Path) -> None:
    use(written(tmp_path, OWN.replace("@register\n", "")))
    with pytest.raises(
        ConfigurationError, match=r"mine.py registers no method with that name: put @caveat.register above"
    ):
        load("digits", ["method.name=mine"])


def test_importing_the_library_imports_no_plugin(tmp_path: Path) -> None:
    code = "import caveat\nassert 'fedavg' in caveat.METHODS\n"
    code += "from caveat.methods import plugins\nprint(list(plugins.installed()))"
    path = f"{put_package(tmp_path, OWN)}:{Path(caveat.__file__).parent.parent}"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, text=True, capture_output=True)
    assert done.stdout == "['mine']\n", done.stderr


def test_what_methods_are_written_with_is_public() -> None:
    for module, names in ((caveat, caveat.__all__), (tools, tools.__all__)):
        for name in names:
            found = getattr(module, name)
            assert isinstance(found, ModuleType | str) or found.__doc__ or not isinstance(found, type), name
    assert dataclasses.is_dataclass(caveat.Round)
    assert plugins.GROUP == "caveat.methods"
