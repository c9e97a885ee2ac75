"""Wrong answers to look at come from all silos, the surest first, and from nothing that was abstained from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from caveat.core import Data, Decision, Prediction, Silo
from caveat.data import from_files
from caveat.data.silo_collection import Silos
from caveat.runs.gallery import SILOS, SURE_ERRORS, gallery, over_domains

COUNT = SILOS + 5


def made() -> Silos:
    """Silos of four test inputs, all of class 0, whose number is their silo's and their own."""

    def data(k: int) -> Data:
        x = torch.tensor([[float(k), float(i)] for i in range(4)])
        return Data(x, torch.zeros(4, dtype=torch.int64))

    return Silos(tuple(Silo(f"silo-{k}", "", *(data(k) for _ in range(4))) for k in range(COUNT)), ("a", "b"))


def predictor(abstains: bool = False) -> Callable[[str], Callable[..., Prediction]]:
    """Wrong about every input but the first, the surer the higher the silo and the input."""

    def predict(x: Tensor, subgroup: Tensor | None = None) -> Prediction:
        wrong = 0.6 + x[:, 0] / 100 + x[:, 1] / 1000
        first = torch.where(x[:, 1] == 0, 0.9, 1 - wrong)
        found = Prediction.from_samples(torch.stack([first, 1 - first], 1).double()[None], Decision.GLOBAL)
        return found.abstaining(x[:, 0] == COUNT - 1) if abstains else found

    return lambda silo: predict


def test_the_surest_errors_of_all_silos_are_kept_also_of_those_beyond_the_first() -> None:
    silos = made()
    found = gallery(silos, silos.names, predictor())
    assert len(found.silos) == SILOS
    assert len(found.sure_errors) == SURE_ERRORS == 12
    assert [item.silo for item in found.sure_errors] == [f"silo-{COUNT - 1 - i // 3}" for i in range(12)]
    probabilities = [item.probability for item in found.sure_errors]
    assert probabilities == sorted(probabilities, reverse=True)
    assert not any(item.right for item in found.sure_errors)


def test_what_was_abstained_from_is_no_answer() -> None:
    silos = made()
    found = gallery(silos, silos.names, predictor(abstains=True))
    assert f"silo-{COUNT - 1}" not in {item.silo for item in found.sure_errors}
    assert found.sure_errors[0].silo == f"silo-{COUNT - 2}"


def test_silos_with_examples_and_features_come_from_every_domain() -> None:
    domains = {f"silo-{i}": f"domain-{i // 10}" for i in range(40)}
    chosen = over_domains(domains, 20)
    assert chosen == [f"silo-{10 * d + i}" for d in range(4) for i in range(5)]
    assert over_domains(domains, 100) == list(domains)


def test_wrong_answers_of_a_table_have_their_rows(tmp_path: Path) -> None:
    """Numbers, categories and gaps are those of the file at the row that is named."""
    lines = ["age,ward,pressure,label"]
    lines += [f"{i % 7},{'xyz'[i % 3]},{'' if i % 5 == 0 else i / 4},{i % 2}" for i in range(200)]
    for name in ("hill", "coast"):
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    silos = from_files(tmp_path / "hill.csv", tmp_path / "coast.csv", target="label")

    def predict(x: Tensor, subgroup: Tensor | None = None) -> Prediction:
        right = torch.full((len(x),), 0.4, dtype=torch.float64)
        return Prediction.from_samples(torch.stack([right, 1 - right], 1)[None], Decision.GLOBAL)

    found = gallery(silos, silos.names, lambda name: predict).sure_errors
    assert len(found) == SURE_ERRORS
    for each in found:
        assert each.source_row
        *cells, label = lines[each.source_row].split(",")
        assert label == silos.classes[each.label]
        shown = list(each.row_values.values())
        assert shown[1] == cells[1]
        for text, cell in zip(shown[::2], cells[::2], strict=True):
            assert text == (f"{float(cell):.4g}" if cell else "")
