"""`precad holder`: the statement of what was paid, and payments by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from precad.deploy.cli.main import app
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.ledgers.holder import HolderLedger, Payment, Terms, read
from tests.harness.command_line import CliRunner

TUNED = ("--client", "alice", "--task", "tuning of May", "--noise-multiplier", "8", "--rounds", "6")
NEW = ("--limit-epsilon", "5", "--records-per-person", "2")


def precad(*arguments: object) -> tuple[int, str, str]:
    """Run the command; return its exit code and what it printed."""
    done = CliRunner().invoke(app, ["holder", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


def test_tuning_elsewhere_is_paid_beside_the_uploads_of_tasks(tmp_path: Path) -> None:
    """The figure so far is the composition of both, by another way; the limit is the file's."""
    file = tmp_path / "ledger"
    assert precad("charge", file, *TUNED, *NEW)[0] == 0
    with HolderLedger(file, read(file)[0].terms) as ledger:
        ledger.pay(Payment(client="alice", task="9f" * 32, why="upload", event=SampledGaussian(1.0, 8.0, 2)))
    code, out, _ = precad("statement", file, "--json")
    found = json.loads(out)

    assert code == 0
    # two records of one person that are in every round are one of twice the length
    assert found["epsilon_so_far"] == pytest.approx(
        PldAccountant().epsilon(SampledGaussian(1.0, 4.0), 7, 1e-5), rel=1e-6
    )
    assert (found["limit_epsilon"], found["delta"], found["records_per_person"]) == (5.0, 1e-5, 2)
    assert [(t["task"][:6], t["why"], t["rounds"]) for t in found["tasks"]] == [
        ("tuning", "tuning", 6),
        ("9f9f9f", "upload", 1),
    ]
    assert 0 < found["share_spent"] <= 1


def test_the_statement_says_what_each_figure_rests_on(tmp_path: Path) -> None:
    """Against whom, the limit however tasks are chosen, and the figure so far with its condition; in 100 columns."""
    file = tmp_path / "ledger"
    precad("charge", file, *TUNED, *NEW)
    code, told, _ = precad("statement", file)
    assert code == 0
    against = "one server that follows the protocol, in mode proved any one server, and any number of clients other "
    assert f"{against}than the holder's own" in " ".join(told.split())
    assert "2 records of one person together lose epsilon <= 5 at delta = 1e-05" in told
    assert "however later tasks are chosen" in told
    assert "if no task or round was chosen for what had been released" in told
    assert "tuning of Ma" in told
    assert max(len(line) for line in told.splitlines() if str(tmp_path) not in line) <= 120


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (TUNED, "--limit-epsilon: expected a number, as .* is new, found none"),
        ((*TUNED, "--limit-epsilon", "-1"), "limit_epsilon: expected a finite number above 0, found -1"),
        ((*TUNED, *NEW, "--delta", "2"), "delta: expected a number in"),
        ((*TUNED[:-3], "0", "--rounds", "6", *NEW), "noise_multiplier: expected a finite number above 0"),
        ((*TUNED, *NEW, "--record-rate", "1.5"), "sampling_rate: expected a number in"),
        ((*TUNED[:-1], "1" + 320 * "0", *NEW), "--rounds: expected at most 1000000000000, found more"),
        ((*TUNED, *NEW, "--why", "\x1b[2J"), "why: expected printable text"),
    ],
)
def test_what_is_no_payment_begins_no_file(tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    """Code 2, the field, and nothing half-written."""
    code, _, told = precad("charge", tmp_path / "ledger", *flags)
    assert code == 2
    assert re.search(message, told), told
    assert not (tmp_path / "ledger").exists()


def test_a_file_keeps_its_limit(tmp_path: Path) -> None:
    """A payment by hand passes it no more than an upload does, and sets no other."""
    file = tmp_path / "ledger"
    precad("charge", file, *TUNED, *NEW)
    before = file.read_bytes()
    assert precad("charge", file, *TUNED, "--limit-epsilon", "50")[0] == 2
    code, _, told = precad("charge", file, *TUNED[:-1], "100000")
    assert (code, "must stay <= 5 at delta = 1e-05" in told) == (3, True)
    assert file.read_bytes() == before


def test_a_payment_by_hand_says_what_was_lost_with_it(tmp_path: Path) -> None:
    """The figures of the statement, each with what it rests on, and none of its rows."""
    file = tmp_path / "ledger"
    code, told, _ = precad("charge", file, *TUNED, *NEW)
    stated = precad("statement", file)[1]

    assert (code, told) == (0, stated[: stated.index("\ntask ")])
    assert "so far" in told
    assert "if no task or round was chosen for what had been released" in told


def test_a_file_without_its_first_line_is_a_new_one(tmp_path: Path) -> None:
    """As a full disk leaves it: its terms are given again, and it is not called a ledger that has its own."""
    file = tmp_path / "ledger"
    file.touch()
    code, _, told = precad("charge", file, *TUNED)
    assert (code, "--limit-epsilon: expected a number, as " in told) == (2, True)
    assert precad("charge", file, *TUNED, *NEW)[0] == 0
    assert read(file)[0].terms.limit_epsilon == 5.0


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    """A file that is not there, another file, and a ledger that somebody edited."""
    assert precad("statement", tmp_path / "none")[0] == 2
    other = tmp_path / "other"
    other.write_text("hello\n")
    assert precad("statement", other)[0] == 2
    precad("charge", tmp_path / "ledger", *TUNED, *NEW)
    (tmp_path / "ledger").write_bytes((tmp_path / "ledger").read_bytes().replace(b'"times":6', b'"times":1'))
    code, _, told = precad("statement", tmp_path / "ledger")
    assert (code, "line 2: the line was changed after it was written" in told) == (3, True)


def test_terms_are_not_chosen_twice() -> None:
    """The orders of a filter that began are those of its file, whatever a later version would choose."""
    assert Terms(limit_epsilon=5.0, delta=1e-5, orders=(2.0,)).orders == (2.0,)


@pytest.mark.parametrize("command", [("statement",), ("charge", *TUNED)])
def test_a_file_that_never_was_a_ledger_is_no_damaged_one(command: tuple[str, ...], tmp_path: Path) -> None:
    """Another file was named: invalid input, and nothing of it is repeated."""
    other = tmp_path / "other"
    other.write_text("root:x:0:0\n")
    code, out, said = precad(command[0], other, *command[1:])
    assert (code, out) == (2, "")
    assert said == f"precad: {other}: expected a holder's ledger (client.holder.ledger), found another file\n"
    assert other.read_text() == "root:x:0:0\n"
