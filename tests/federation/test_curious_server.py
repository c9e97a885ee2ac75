"""What a server that lies about its configuration gets from a silo: refusals, before anything of the rows is sent."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hospitals import Federation

from caveat.config import load
from caveat.core import DataError, RunError
from caveat.data.tables.declarations import OwnColumn
from caveat.federation.request_terms import Terms
from caveat.federation.silo import member as member_module
from caveat.federation.silo.member import SiloSide
from caveat.federation.silo.silo_file import Limits, read_silo_file
from caveat.federation.silo.store import secret_of
from caveat.files import held
from caveat.runs.spec import spec_of


def asked(folder: Path, name: str = "abc", **data: object) -> tuple[SiloSide, Terms]:
    federation = Federation(folder)
    path = federation.homes["hill"] / "silo.toml"
    path.write_text(path.read_text().replace("small_counts = true", ""))
    config = load(str(folder / "config.toml"))
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **data))  # type: ignore[arg-type]
    return SiloSide(read_silo_file(path)), Terms(name, config, config.method.name, "", ())


def test_another_source_would_let_the_server_rename_columns_that_a_silo_does_not_show(tmp_path: Path) -> None:
    columns = (OwnColumn(own="age", name="site"), OwnColumn(own="site", name=""))
    member, terms = asked(tmp_path, source="csv:any.csv", rename_columns=columns)
    with pytest.raises(DataError, match=r"data\.source = 'csv:any\.csv', expected 'on_site'"):
        member.introduce(terms)


def test_what_a_training_split_of_few_rows_has_is_not_told(tmp_path: Path) -> None:
    member, terms = asked(tmp_path, samples_per_silo=3)
    with pytest.raises(DataError, match="counts of 1 to 4 rows leave the silo only if it allows that"):
        member.introduce(terms)


def test_files_beside_the_table_are_not_looked_for(tmp_path: Path) -> None:
    member, terms = asked(tmp_path)
    streams = dataclasses.replace(terms.config.data.ood, global_source="npz:/etc/passwd")
    data = dataclasses.replace(terms.config.data, ood=streams)
    with pytest.raises(DataError, match="a silo with a table reads no other data"):
        member.introduce(dataclasses.replace(terms, config=dataclasses.replace(terms.config, data=data)))


@pytest.mark.parametrize("name", ["secret", "Secret", "lock"])
def test_no_federation_takes_the_place_of_a_silo_s_own_file(name: str, tmp_path: Path) -> None:
    member, terms = asked(tmp_path, name)
    with pytest.raises(DataError, match="is not a valid name of a federation"):
        member.keep_configuration(terms)


def test_noise_of_two_sizes_is_not_one_draw() -> None:
    """Else what two federations that differ in their noise get would tell the update without it."""
    sets = ["method.name=fedavg", "baselines=[]", "privacy.clip_norm=1"]
    three, four = (spec_of(load("digits", [*sets, f"privacy.noise_multiplier={size}"])) for size in (3, 4))
    assert secret_of(7, three, 5) == secret_of(7, three, 5)
    assert len({secret_of(7, three, 5), secret_of(7, four, 5), secret_of(7, three, 6), secret_of(8, three, 5)}) == 4


def test_federations_are_counted_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two orders at the same time would both find room for one more update."""
    member, _ = asked(tmp_path)
    monkeypatch.setattr(member_module, "BUSY", 0.0)
    counting = SiloSide(dataclasses.replace(member.file, limits=Limits(rounds=1)))
    with held(member.file.private() / "lock", "busy"):
        with pytest.raises(RunError, match="another federation has been using it"), counting._counting():
            pass
        with member._counting():  # without limits nobody waits
            pass
