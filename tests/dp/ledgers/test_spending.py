"""One client's record of its answers: it survives, it holds its limit, and it notices every edit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from precad.dp.accountants.gaussian_dp import delta_from_mu
from precad.dp.errors import BudgetExceededError, LedgerCorruptedError, LedgerInUseError
from precad.dp.ledgers.lines import FIRST_CHAIN, seal
from precad.dp.ledgers.spending import Spending


def spending(folder: Path, *, client: str = "alice", limit: float = 2.0) -> Spending:
    """Open the record in a folder, at delta = 1e-5."""
    return Spending(folder / "alice.queries", client=client, limit_epsilon=limit, delta=1e-5)


def test_answers_count_together_also_after_a_restart(tmp_path: Path) -> None:
    """Their epsilon is that of one Gaussian release, by the exact delta."""
    for i, multiplier in enumerate((5.0, 8.0, 11.0)):
        with spending(tmp_path) as record:
            record.charge(f"{i:02x}" * 32, "age", multiplier)
    with spending(tmp_path) as record:
        mu = math.sqrt(5.0**-2 + 8.0**-2 + 11.0**-2)
        assert delta_from_mu(record.epsilon, mu) == pytest.approx(1e-5, rel=1e-4)


def test_the_limit_stops_before_anything_is_written(tmp_path: Path) -> None:
    """The answer that would pass it is refused, and a smaller one after it is not."""
    with spending(tmp_path, limit=1.0) as record:
        record.charge("aa", "age", 6.0)
        before = (tmp_path / "alice.queries").read_bytes()
        with pytest.raises(BudgetExceededError, match=r"must stay <= 1.0, would be .* for client 'alice'"):
            record.charge("bb", "age", 4.0)
        assert (tmp_path / "alice.queries").read_bytes() == before
        record.charge("bb", "age", 30.0)
        assert record.epsilon <= 1.0


@pytest.mark.parametrize(
    ("limit", "delta", "field"),
    [(0.0, 1e-5, "limit_epsilon"), (math.nan, 1e-5, "limit_epsilon"), (1.0, 0.0, "delta"), (1.0, 1.0, "delta")],
)
def test_terms_that_limit_nothing_are_refused(tmp_path: Path, limit: float, delta: float, field: str) -> None:
    """At delta = 1 every answer would cost nothing; no file is begun under such terms."""
    with pytest.raises(ValueError, match=f"^{field}: expected"):
        Spending(tmp_path / "alice.queries", client="alice", limit_epsilon=limit, delta=delta)
    assert not any(tmp_path.iterdir())


def test_a_line_that_was_cut_does_not_count(tmp_path: Path) -> None:
    """Its charge did not return, so that nothing left; every complete line counts."""
    with spending(tmp_path) as record:
        record.charge("aa", "age", 9.0)
        record.charge("bb", "age", 9.0)
    path = tmp_path / "alice.queries"
    path.write_bytes(path.read_bytes()[:-5])
    with spending(tmp_path) as record:
        assert delta_from_mu(record.epsilon, 1 / 9.0) == pytest.approx(1e-5, rel=1e-4)
        record.charge("cc", "age", 9.0)
    with spending(tmp_path) as record:
        assert delta_from_mu(record.epsilon, math.sqrt(2) / 9.0) == pytest.approx(1e-5, rel=1e-4)


@pytest.mark.parametrize("change", [("9.0", "90.0"), ('"age"', '"bmi"'), ("alice", "mallet")])
def test_an_edit_is_noticed(tmp_path: Path, change: tuple[str, str]) -> None:
    """Whatever line it is in."""
    with spending(tmp_path) as record:
        record.charge("aa", "age", 9.0)
        record.charge("bb", "age", 7.0)
    path = tmp_path / "alice.queries"
    path.write_text(path.read_text().replace(*change, 1))
    with pytest.raises(LedgerCorruptedError, match=r"line [12]"):
        spending(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": True},
        {"noise_multiplier": "9"},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.inf},
        {"slack": -1e-7},
        {"slack": math.nan},
        {"slack": "0"},
        {"kind": "evaluation"},
    ],
)
def test_a_line_that_is_no_answer_is_refused_though_its_chain_is_right(tmp_path: Path, change: dict[str, Any]) -> None:
    """Whoever writes to the file can seal: what a line says of an answer must be something that was charged."""
    header, chain = seal({"format": 1, "answers_of": "alice"}, FIRST_CHAIN)
    good = {"query": "aa", "column": "age", "noise_multiplier": 9.0, "slack": 0.0}
    for fields, is_refused in ((good, False), (good | change, True)):
        (tmp_path / "alice.queries").write_bytes(header + seal(fields, chain)[0])
        if is_refused:
            with pytest.raises(LedgerCorruptedError, match="line 2"):
                spending(tmp_path)
        else:
            spending(tmp_path).close()


def test_the_record_is_of_one_client_and_one_process(tmp_path: Path) -> None:
    """Another client's record is refused, as is a second writer."""
    with spending(tmp_path), pytest.raises(LedgerInUseError):
        spending(tmp_path)
    with pytest.raises(LedgerCorruptedError, match="answers_of = alice"):
        spending(tmp_path, client="bob")


def test_what_a_protocol_takes_from_delta_is_taken_once_for_each_answer(tmp_path: Path) -> None:
    """Against the closed form of Gaussian privacy at the delta that is left, and after a restart."""
    slack = 2e-7
    with spending(tmp_path, limit=50.0) as own:
        own.charge("q", "age", 3.0, slack)
        own.charge("r", "age", 3.0, slack)
        epsilon = own.epsilon
    with spending(tmp_path, limit=50.0) as again:
        assert again.epsilon == epsilon
    left = 1e-5 - (1 + math.exp(epsilon)) * 2 * slack
    assert delta_from_mu(epsilon, math.sqrt(2) / 3.0) == pytest.approx(left, rel=1e-5)
