"""`precad experiment tightness`: the table of the public settings, with the attack beside it."""

import json

import pytest
from rich.console import Console

from precad.deploy.cli.main import app
from precad.lab.papers.tightness import SETTINGS, print_tightness, tightness
from tests.harness.command_line import CliRunner


@pytest.fixture(scope="module")
def report():
    return tightness(SETTINGS[:1], n_draws=100_000)


def test_the_default_setting(report):
    """F_A = .95, F_B = .05, q = .1, sigma = 1.8, T = 3, delta = .0029: exact 16 where the published method has 2."""
    row = report["rows"][0]
    assert (row["sigma"], row["rounds"], row["delta"]) == (1.8, 3, 0.0029)
    assert row["threats"]["add"]["tolerated"] == {"published": 2, "rdp": 4, "pld": 11, "exact": 16}
    assert row["epsilon"]["published"] == pytest.approx(0.6298, abs=6e-5)
    assert row["epsilon"]["rdp"] == pytest.approx(0.3334, abs=6e-5)
    assert row["epsilon"]["pld"] == pytest.approx(0.21134, rel=2e-3)
    found = [*row["K_at_this_delta"].values(), row["K_over_the_curve"]]
    assert found == pytest.approx([2.29, 4.22, 6.48, 11.4], abs=0.02)  # erratum X6


def test_no_certificate_is_beaten(report):
    """At every certified number more than half is left; the attack needs more than any method certifies."""
    assert report["beaten"] == []
    threats = report["rows"][0]["threats"]
    assert set(threats) == {"add", "replace"}
    for found in threats.values():
        assert set(found["attacked"]) == {"published", "rdp", "pld", "exact"}
        assert {name: attack["attackers"] for name, attack in found["attacked"].items()} == found["tolerated"]
        assert all(attack["attacked"] + attack["radius"] >= 0.5 for attack in found["attacked"].values())
        assert found["attack_succeeds"]["attackers"] > found["tolerated"]["exact"]


def test_quick_simulates_the_first_setting_only():
    """The others are certified all the same."""
    report = tightness((SETTINGS[0], SETTINGS[3]), n_draws=20_000, quick=True)
    first, second = (row["threats"]["add"] for row in report["rows"])
    assert first["attack_succeeds"] is not None
    assert (second["attack_succeeds"], second["attacked"]) == (None, {})
    assert second["tolerated"]["exact"] == 23


@pytest.mark.slow
def test_no_certificate_is_beaten_in_any_setting():
    """10^6 trainings for each share, all settings and threats; published <= rdp <= pld <= exact, replace <= add."""
    report = tightness()
    assert len(report["rows"]) == len(SETTINGS) == 5
    for row in report["rows"]:
        add, replace = (list(row["threats"][threat]["tolerated"].values()) for threat in ("add", "replace"))
        assert add == sorted(add)
        assert replace == sorted(replace)
        assert all(a <= b for a, b in zip(replace, add, strict=True))
    assert report["n_draws"] == 10**6
    assert report["beaten"] == []
    for row in report["rows"]:
        for found in row["threats"].values():
            needs, exact = found["attack_succeeds"]["attackers"], found["tolerated"]["exact"]
            assert exact < needs <= 1.1 * exact + 2


def test_what_is_printed(report, capsys):
    """Both numbers and what they are called, for people; one object for programs."""
    print_tightness(Console(width=140), report)
    shown = capsys.readouterr().out
    assert "published reproduction, not a guarantee" in shown
    assert "certificates that the attack beats: none" in shown
    assert "~0.6298" in shown


def test_the_command(monkeypatch, report):
    """`--quick --json` is one object, the report."""
    monkeypatch.setattr("precad.lab.papers.tightness.tightness", lambda quick: report if quick else None)
    done = CliRunner().invoke(app, ["experiment", "tightness", "--quick", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["rows"][0]["threats"] == report["rows"][0]["threats"]
