"""A ledger as events of dp-accounting: the library's own accountants compute the ledger's epsilon from the file again.

Failure would be an auditor who, with another tool, finds another epsilon than the one that was printed.
"""

import json
import math
import sys

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from precad.deploy.cli.main import main
from precad.deploy.localhost.processes import SAFE_PATH
from precad.dp.accountants.dp_events import as_json, dp_event
from precad.dp.accountants.pld import SampledGaussian, Unit, View
from precad.dp.errors import LedgerCorruptedError
from precad.dp.ledgers.events import ledger_events
from precad.dp.ledgers.ledger import Ledger
from precad.dp.ledgers.lines import FIRST_CHAIN, seal
from precad.protos.task.proved_fields import eta
from tests.harness.dp_events import from_json

DELTA = 1e-5


def written(path, p, sigma, charges, **changes):
    events = {view: SampledGaussian(p, sigma * 2 ** (i / 2)) for i, view in enumerate(View)}
    with Ledger(path, events=events, delta=DELTA, **changes) as ledger:
        for number, clients in enumerate(charges):
            ledger.charge(number, clients)
        return {(view, client): ledger.statement(view, client).epsilon for view in View for client in "ab"}


@pytest.mark.parametrize(("p", "sigma", "steps"), [(0.05, 1.0, 1), (1.0, 6.0, 1), (0.3, 4.0, 5)])
def test_the_library_finds_the_ledgers_epsilon_in_the_file(tmp_path, p, sigma, steps):
    """Through JSON text and the library's own classes, by its PLD accountant, and never above its Renyi bound."""
    path = tmp_path / "ledger.jsonl"
    expected = written(path, p, sigma, [["a"], ["a", "b"], ["a"]] * 4, steps_per_round=steps)
    found = json.loads(json.dumps(ledger_events(path)))
    assert found["clients"] == {"a": 12, "b": 4}
    for (view, client), epsilon in expected.items():
        event = from_json(found["views"][view][str(found["clients"][client])])
        pld, rdp = PLDAccountant(), RdpAccountant()
        assert pld.compose(event).get_epsilon(found["delta"]) == pytest.approx(epsilon, rel=2e-3)
        assert rdp.compose(event).get_epsilon(found["delta"]) >= epsilon * (1 - 1e-9)


@pytest.mark.parametrize(("delta", "rounds", "is_finite"), [(1e-6, 40, True), (1e-8, 1000, False)])
def test_an_auditor_counts_what_mode_proved_takes_of_delta(tmp_path, delta, rounds, is_finite):
    """The file alone gives the ledger's epsilon by the library's delta of epsilon. At delta itself it is too small."""
    path = tmp_path / "ledger.jsonl"
    own = {"delta": delta, "slack": eta(rounds)}
    with Ledger(path, events={view: SampledGaussian(0.3, 1.2) for view in View}, **own) as ledger:
        for number in range(20):
            ledger.charge(number, ["a"])
        stated = ledger.statement(View.ONE_SERVER).epsilon
    found = json.loads(json.dumps(ledger_events(path)))
    assert (found["delta"], found["slack"]) == (own["delta"], own["slack"])
    pld = PLDAccountant().compose(from_json(found["views"]["one_server"]["20"]))
    assert math.isfinite(stated) == is_finite
    assert pld.get_epsilon(delta) < stated

    def exceeds(epsilon):
        return pld.get_delta(epsilon) + (1 + math.exp(epsilon)) * found["slack"] - delta

    if is_finite:
        assert exceeds(stated * (1 + 2e-3)) <= 0 < exceeds(stated * (1 - 2e-3))
    else:
        assert all(exceeds(i / 10) > 0 for i in range(100))


@pytest.mark.parametrize(
    "changes", [{"delta": "x"}, {"delta": float("nan")}, {"delta": 2}, {"slack": -1}, {"slack": {}}]
)
def test_parameters_that_no_ledger_has_are_refused(tmp_path, changes):
    """Whoever may write the file can seal such a line. What is printed is read by another tool."""
    header = {"format": 1, "delta": DELTA, "events": dict.fromkeys(View)} | changes
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(seal(header, FIRST_CHAIN)[0])
    with pytest.raises(LedgerCorruptedError, match=next(iter(changes))):
        ledger_events(path)


def test_what_protects_nothing_says_so(tmp_path):
    """A step that costs everything is the library's non-private event, with an infinite epsilon."""
    path = tmp_path / "ledger.jsonl"
    events = {View.ONE_SERVER: None, View.CLIENTS_ONLY: SampledGaussian(1.0, 1.0)}
    with Ledger(path, events=events, delta=DELTA, unit=Unit.CLIENT) as ledger:
        ledger.charge(0, ["a"])
    found = ledger_events(path)
    assert found["unit"] == "client"
    event = from_json(found["views"]["one_server"]["1"])
    assert PLDAccountant().compose(event).get_epsilon(DELTA) == float("inf")
    assert from_json(as_json(dp_event(SampledGaussian(0.1, 1.0), 0))) == dp_accounting.NoOpDpEvent()


def test_a_changed_ledger_is_refused(tmp_path):
    """One digit of a charge, or a header of another program."""
    path = tmp_path / "ledger.jsonl"
    written(path, 0.1, 1.0, [["a"], ["b"]])
    path.write_bytes(path.read_bytes().replace(b'"round":1', b'"round":2'))
    with pytest.raises(LedgerCorruptedError, match="line 3"):
        ledger_events(path)


@pytest.mark.parametrize("place", ["charge", "event"])
def test_a_ledger_s_words_are_shown_and_not_obeyed(tmp_path, place):
    """A sealed line may hold anything. What is quoted of it commands no terminal, and does not fill it."""
    hostile = "\x1b]0;owned\x07\x9b2J\u202e" + "x" * 10_000
    event = {"sampling_rate": 0.1, "noise_multiplier": 1.0} | ({hostile: 1} if place == "event" else {})
    charge = {hostile if place == "charge" else "round": 0, "clients": ["a"]}
    lines, chain = b"", FIRST_CHAIN
    for fields in ({"format": 1, "delta": DELTA, "events": dict.fromkeys(View, event)}, charge):
        line, chain = seal(fields, chain)
        lines += line
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(lines)
    with pytest.raises(LedgerCorruptedError) as refused:
        ledger_events(path)
    said = str(refused.value)
    assert said.isprintable()
    assert len(said) < 500 + len(str(path))


def test_the_command_prints_them(tmp_path, capfd, monkeypatch):
    """`precad audit events`: the object on standard output; without a ledger one line, and exit code 2."""
    monkeypatch.setenv(*next(iter(SAFE_PATH.items())))  # `main` sets it, and it goes again with the test
    written(tmp_path / "ledger.jsonl", 0.1, 1.0, [["a"], ["a", "b"]])

    def end(folder):
        monkeypatch.setattr(sys, "argv", ["precad", "audit", "events", str(folder)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capfd.readouterr()

    code, printed, _ = end(tmp_path)
    assert (code, json.loads(printed)) == (0, ledger_events(tmp_path / "ledger.jsonl"))
    code, printed, said = end(tmp_path / "none")
    assert (code, printed) == (2, "")
    assert "expected the privacy ledger, found none" in " ".join(said.split())
