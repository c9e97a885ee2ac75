"""A federation whose silos have data of their own: the same run as on one machine, from nothing but messages."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from federations import assert_same
from flower_grid import InProcessGrid
from flwr.app import Context, Message, RecordDict
from hospitals import NAMES, Federation, losing, summary

import caveat
from caveat.config import load
from caveat.core import ConfigurationError, RunError
from caveat.engines.flower import silo_app_of
from caveat.engines.flower_messages import Order, words_of
from caveat.federation.request_terms import Terms
from caveat.federation.server import run
from caveat.federation.server.log import lock_of
from caveat.federation.server.run import StartCommand, serve
from caveat.federation.silo.app import NodeHandler
from caveat.files import held, read_ledger, read_payload
from caveat.runs.progress import Silent
from caveat.runs.start import start

pytestmark = pytest.mark.long


def states(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize(
    ("method", "more"),
    [
        *[(method, "") for method in ("scaffold", "uefl", "fedpn", "fmlu")],
        *[("fedbabu", f"[uncertainty]\nsource = '{source}'\n") for source in ("laplace", "ensemble")],
        ("fedper", "[server]\noptimizer = 'yogi'\n[evaluation]\nearly_stopping_patience = 1\n"),
    ],
    ids=["scaffold", "uefl", "fedpn", "fmlu", "laplace", "ensemble", "optimised"],
)
def test_a_federation_of_separate_silos_is_the_run_of_one_machine(method: str, more: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path, method, more=more)
    # The states of earlier rounds that may be gone back to are apart: `test_rollback_federation`.
    newest = load(str(tmp_path / "config.toml"), ["engine.keep_checkpoints=1"])
    run, here = federation.serve(newest), federation.embedded()
    assert not [note for note in federation.notes if "without" in note or "refused" in note]
    assert_same(read_payload(run / "model" / "model.safetensors"), read_payload(here / "model" / "model.safetensors"))
    for name in NAMES:
        there, ours = federation.kept(name) / "state" / "silos" / name, here / "state" / "silos" / name
        # On a slow machine the run of one keeps a state of its last durable checkpoint, too.
        assert set() < states(there).keys() <= states(ours).keys()
        assert max(states(there)) == max(states(ours))
        for file, path in states(there).items():
            assert_same(read_payload(path), read_payload(ours / file))
    assert summary(run) == summary(here)
    assert (run / "rounds.jsonl").read_text() == (here / "rounds.jsonl").read_text()
    assert json.loads((run / "splits.json").read_text()) == json.loads((here / "splits.json").read_text())
    assert (run / "report.html").exists()


def test_the_ledger_says_what_left_the_silos_at_the_server_and_at_each_of_them(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg")
    run = federation.serve()
    entries = read_ledger(run / "ledger.jsonl")
    trained = [message for message in entries.messages if message.phase == "train" and message.split is None]
    assert [(message.round, message.silo) for message in trained] == [(r, n) for r in (1, 2, 3) for n in NAMES]
    model = read_payload(run / "model" / "model.safetensors")["model"]
    form = entries.forms[trained[0].form]
    assert {name: entry.shape for name, entry in form.items()} == {
        f"model/{n}": list(t.shape) for n, t in model.items()
    }
    assert trained[0].bytes == sum(entry.bytes for entry in form.values()) == sum(t.nbytes for t in model.values())
    for name in NAMES:
        own = read_ledger(federation.kept(name) / "ledger.jsonl")
        sent = [(m.t, m.form, m.bytes) for m in entries.messages if m.silo == name]
        assert [(m.t, m.form, m.bytes) for m in own.messages] == sent
        assert own.forms.keys() == {form for _, form, _ in sent}


def test_a_server_that_gives_up_continues_to_the_same_bits(tmp_path: Path) -> None:
    federation, whole = Federation(tmp_path / "a", quorum=3), Federation(tmp_path / "b", quorum=3)
    federation.grid.tamper[federation.node["hill"]] = losing(2)
    with pytest.raises(
        RunError, match=r"hill: no reply in time\nif .* slow, increase federation\.round_timeout = 0\.3"
    ):
        federation.serve()
    assert (federation.run / "state" / "checkpoint.json").exists()
    federation.grid.tamper.clear()
    federation.serve()
    whole.serve()
    assert_same(
        read_payload(federation.run / "model" / "model.safetensors"),
        read_payload(whole.run / "model" / "model.safetensors"),
    )
    assert summary(federation.run) == summary(whole.run)
    assert (federation.run / "ledger.jsonl").read_text() == (whole.run / "ledger.jsonl").read_text()
    for name in NAMES:
        ours, theirs = (states(f.kept(name) / "state" / "silos" / name) for f in (federation, whole))
        assert [read_payload(path) and path.name for path in ours.values()] == [path.name for path in theirs.values()]
        for file, path in ours.items():
            assert_same(read_payload(path), read_payload(theirs[file]))


def test_who_is_left_out_is_named_in_rows_log_and_summary(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg")
    federation.grid.tamper[federation.node["hill"]] = losing(2)
    run = federation.serve()
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    left_out = {
        (row["round"], row.get("split", "train"), row["silo"], row["left_out"]) for row in rows if "left_out" in row
    }
    assert (2, "train", "hill", "no reply in time") in left_out
    assert (3, "test", "hill", "no reply in time") in left_out
    assert "round 2, train: without hill: no reply in time" in federation.notes
    found = summary(run)
    assert found["absent"] == ["hill"]
    assert [silo["name"] for silo in found["silos"]] == ["coast", "valley"]


def test_a_silo_predicts_with_the_federation_s_model_on_its_own_machine(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedpn")
    federation.serve()
    here = caveat.load(federation.embedded())
    for name in NAMES:
        there = caveat.load(federation.kept(name))
        assert [silo.name for silo in there.silos] == [name]
        x = there.silos.named(name).test.x
        ours, theirs = here.predictor(name)(x), there.predictor(name)(x)
        assert ours.probs.equal(theirs.probs)
        assert ours.decision.equal(theirs.decision)


# Who may take part


def test_a_silo_may_join_later(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=4)
    late = federation.grid.apps.pop(federation.node["valley"])
    calls: list[int] = []

    def arrive(reply: Message) -> Message:
        calls.append(1)
        federation.grid.apps[federation.node["valley"]] = late
        return reply

    federation.grid.tamper[federation.node["coast"]] = arrive
    config = load(str(federation.folder / "config.toml"), ["federation.min_available_silos=2"])
    run = federation.serve(config)
    trained = [m for m in read_ledger(run / "ledger.jsonl").messages if m.phase == "train" and m.split is None]
    # It comes while the first round is at work, and the second one knows of it.
    assert [m.round for m in trained if m.silo == "valley"] == [2, 3, 4]
    assert "silo valley joined with 38 training examples" in federation.notes
    assert list(json.loads((run / "splits.json").read_text())) == NAMES


def test_the_order_of_silos_is_by_name_whoever_is_quicker(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1)
    federation.node = {name: 9 - k for k, name in enumerate(NAMES)}
    federation.grid = InProcessGrid({node: silo_app_of(NodeHandler()) for node in sorted(federation.node.values())})
    federation.grid.node_config = {
        federation.node[name]: {"silo": str(home / "silo.toml")} for name, home in federation.homes.items()
    }
    run = federation.serve()
    assert (
        [silo["name"] for silo in summary(run)["silos"]] == NAMES == list(json.loads((run / "splits.json").read_text()))
    )


def test_flower_s_runs_are_not_started_as_others_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"engine.name = 'flower' is only for federations on Flower"):
        start(load("digits", ["engine.name=flower"]), tmp_path / "run")


NOT_BEGUN = "3 silos are needed to start; after 3 s: 0 joined, coast, valley connected but not joined yet$"


def test_too_few_silos_end_the_wait_and_leave_nothing(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg")
    del federation.grid.apps[federation.node["hill"]]
    with pytest.raises(RunError, match=NOT_BEGUN):
        federation.serve()
    assert not federation.run.exists()
    assert "waiting for 3 silos: 0 joined, coast, valley connected but not joined yet" in federation.notes


@pytest.mark.parametrize(
    ("setting", "words"),
    [("positive_class='sick'", "'ill' or 'well'"), ("positive_class='ill'", "")],
)
def test_the_server_says_which_class_is_positive_once_silos_agree(setting: str, words: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1, start_timeout=60)
    config = load(str(federation.folder / "config.toml"), [f"data.{setting}"])
    if words:
        with pytest.raises(ConfigurationError, match=words):
            federation.serve(config)
        assert not federation.run.exists()
        return
    found = summary(federation.serve(config))["classification"]
    assert found["positive"] == "ill"
    assert len(found["confusion"]) == 2


def test_another_configuration_does_not_continue_a_run(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1)
    federation.serve()
    with pytest.raises(ConfigurationError, match="has a different configuration"):
        federation.serve(load(str(federation.folder / "config.toml"), ["seed=4"]))


# Starting, and starting again


def test_two_processes_do_not_start_the_same_run(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1)
    with held(lock_of(federation.run), ""), pytest.raises(RunError, match="is being run by another process"):
        federation.serve()
    assert not federation.run.exists()
    federation.serve()


def test_a_start_that_was_killed_early_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1)
    given = StartCommand("/project", ("rounds=1",))

    def killed(path: Path, value: object) -> None:
        assert path.name == "started.json"
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run, "write_record", killed)
        with pytest.raises(KeyboardInterrupt):
            serve(federation.config, federation.grid, federation.run, Silent(), given)
    assert {"config.toml", "run.json"} <= {path.name for path in federation.run.iterdir()}
    serve(federation.config, federation.grid, federation.run, Silent(), given)
    assert json.loads((federation.run / "started.json").read_text())["set"] == ["rounds=1"]


def test_a_finished_run_without_a_report_needs_no_silos(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1)
    (federation.serve() / "report.html").unlink()
    federation.grid.apps.clear()
    assert (federation.serve() / "report.html").exists()


def test_how_long_the_server_waits_may_differ_when_a_run_continues(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=2, quorum=3, start_timeout=3)
    federation.grid.tamper[federation.node["hill"]] = losing(2)
    with pytest.raises(RunError, match="fewer than the quorum"):
        federation.serve()
    del federation.grid.apps[federation.node["hill"]]
    table = str(federation.folder / "config.toml")
    with pytest.raises(ConfigurationError, match="has a different configuration"):
        federation.serve(load(table, ["federation.min_available_silos=4"]))
    federation.serve(load(table, ["federation.quorum=2", "federation.round_timeout=0.5", "federation.start_timeout=5"]))
    assert summary(federation.run)["absent"] == ["hill"]


def test_messages_are_dropped_some_time_after_their_deadline(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1)
    kept: dict[str, set[float]] = {"query": set(), "train": set()}
    deliver = federation.grid._deliver

    def delivered(message: Message) -> str:
        kept[message.metadata.message_type].add(message.metadata.ttl)
        return deliver(message)

    federation.grid._deliver = delivered  # type: ignore[method-assign]
    federation.serve()
    assert all(600 < seconds <= 600.3 for seconds in kept["train"])
    assert kept["query"] == {660.0}


def test_a_greeting_without_an_answer_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caveat.federation.server.membership.AGAIN", 0.3)
    federation, greeted = Federation(tmp_path, "fedavg", rounds=1), list[int]()
    deliver, hill = federation.grid._deliver, federation.node["hill"]

    def delivered(message: Message) -> str:
        name = deliver(message)
        if message.metadata.dst_node_id == hill and message.metadata.message_type == "query":
            greeted.append(1)
            if len(greeted) == 1:  # killed while it answered
                federation.grid._replies.pop(name)
        return name

    federation.grid._deliver = delivered  # type: ignore[method-assign]
    assert [silo["name"] for silo in summary(federation.serve())["silos"]] == NAMES


def test_a_silo_that_comes_back_before_there_is_an_agreement_is_asked_anew(tmp_path: Path) -> None:
    """Its table had another column when it was there first."""
    federation = Federation(tmp_path, "fedavg", rounds=1)
    apps, node = federation.grid.apps, federation.node
    table = federation.homes["hill"] / "hill.csv"
    mended = table.read_text()
    table.write_text(mended.replace("pressure", "Pressure"))
    late, looks = apps.pop(node["valley"]), list[int]()
    ids = federation.grid.get_node_ids

    def seen() -> list[int]:
        looks.append(1)
        found = [each for each in ids() if each != node["hill"] or not 8 < len(looks) < 16]
        if len(looks) == 12:
            table.write_text(mended)
        if len(looks) == 20:
            apps[node["valley"]] = late
        return found

    federation.grid.get_node_ids = seen  # type: ignore[method-assign]
    assert [silo["name"] for silo in summary(federation.serve())["silos"]] == NAMES


# A simulation


def test_silos_of_a_simulation_keep_their_states_in_the_run_s_folder_or_do_not_work(tmp_path: Path) -> None:
    sets = [
        "engine.name=flower", "method.name=scaffold", "rounds=1", "baselines=[]", "data.n_silos=3", "model.name=mlp",
        "data.samples_per_silo=60", "model.hidden=8", "training.batch_size=16", "federation.start_timeout=20",
        "federation.round_timeout=20",
    ]  # fmt: skip
    grid = InProcessGrid({node: silo_app_of(NodeHandler()) for node in (1, 2, 3)})
    grid.node_config = {node: {"partition-id": node - 1} for node in (1, 2, 3)}
    run = serve(load("digits", sets), grid, tmp_path / "run", Silent())
    assert {path.name for path in (run / "state" / "silos").iterdir()} == {"silo-0", "silo-1", "silo-2"}
    order = next(records for _, records in grid.sent if "task" in words_of(records))
    terms = Terms.of_text(str(words_of(order)["terms"]))
    for folder in ("elsewhere", str(tmp_path / "gone")):
        text = dataclasses.replace(terms, folder=folder).to_text()
        context = Context(1, 1, grid.node_config[1], RecordDict(), {})
        with pytest.raises(RunError, match="expected the folder of the simulation's run"):
            NodeHandler().perform(context, Order(0, "train", -1, "silo-0"), text, {})
    assert {path.name for path in tmp_path.iterdir()} == {"run", ".run.lock"}


def test_optimisers_that_last_and_balanced_classes_are_the_bits_of_one_machine(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedper", rounds=3)
    table = tmp_path / "config.toml"
    more = 'optimizer = "adam"\nlr = 0.01\noptimizer_state = "average"\nlr_schedule = "cosine"\nwarmup = 1\n'
    more += 'clip_norm = 1.0\nclass_weights = "balanced"\nlocal_epochs = 1.5\n'
    lines = [line for line in table.read_text().splitlines() if not line.startswith(("local_epochs", "local_steps"))]
    table.write_text("\n".join(lines).replace("[training]\n", f"[training]\n{more}") + "\n")
    federation.config = load(str(table))
    run, here = federation.serve(), federation.embedded()
    assert summary(run) == summary(here)
    assert (run / "rounds.jsonl").read_text() == (here / "rounds.jsonl").read_text()
    for name in NAMES:
        there, ours = federation.kept(name) / "state" / "silos" / name, here / "state" / "silos" / name
        assert states(ours)
        for file, path in states(ours).items():
            assert_same(read_payload(there / file), read_payload(path))
        assert "moments" in read_payload(next(iter(states(there).values())))


def test_a_method_beside_has_the_rounds_of_the_first_one_at_silos_too(tmp_path: Path) -> None:
    """Of a cosine, and of weights that are annealed, the rounds are part."""
    federation = Federation(tmp_path, "uefl", rounds=1)
    table = tmp_path / "config.toml"
    text = table.read_text().replace("\nrounds = 1\n", '\nrounds = 1\nbaselines = ["trfeddis"]\n')
    text = text.replace('name = "uefl"\n', 'name = "uefl"\niterations = 2\nextra_rounds = 2\ncodewords = 4\n')
    table.write_text(text.replace("[training]\n", '[training]\nlr_schedule = "cosine"\n'))
    federation.config = load(str(table))
    run, here = federation.serve(), federation.embedded()
    assert summary(run)["rounds_run"] == 3
    for part in (".", "baselines/trfeddis"):
        assert summary(run / part) == summary(here / part)
        assert (run / part / "rounds.jsonl").read_text() == (here / part / "rounds.jsonl").read_text()
