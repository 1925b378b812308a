"""`precad bench overhead`: its rows, whose processor time they have, and what it compares."""

from __future__ import annotations

import pytest

from precad.lab.bench import overhead, tables


@pytest.mark.slow
def test_overhead_report():
    """A whole deployment and both baselines, four clients; the phases that the table shows are all known."""
    report = overhead.run(overhead.Plan(clients=4, rounds=2, warm_up=1, gates=("native",)))
    assert report["targets"] == []
    by_setting = {row["setting"]: row for row in report["rows"]}

    assert set(by_setting) == {"precad", "precad-without-validation", "local-dp", "no-privacy", "local-dp-pipes"}
    assert set(by_setting["precad"]["phases_s"]) == set(overhead.PHASES) - {"update", "prove"}
    assert (report["dataset"], report["d"]) == ("digits", 26_010)
    assert "validate" not in by_setting["precad-without-validation"]["phases_s"]
    assert by_setting["local-dp"]["ratio"] == {"local-dp": 1}
    assert all(row["seconds_per_round"] > 0 for row in report["rows"])


@pytest.mark.slow
def test_overhead_says_whose_processor_time_a_round_takes():
    """So does the table. The baseline has one server, which does less. Threads are no more than their processes."""
    report = overhead.run(overhead.Plan(clients=16, rounds=20, warm_up=1, gates=("native",)))
    ours, plain = ({row["setting"]: row for row in report["rows"]}[name] for name in ("precad", "local-dp"))
    assert [*ours["servers_cpu_s"]] == ["aggregator-a", "aggregator-b", "dealer"]
    assert [*plain["servers_cpu_s"]] == ["server"]
    for row in (ours, plain):
        assert sum(row["servers_threads_s"].values()) <= 1.05 * sum(row["servers_cpu_s"].values())
        assert row["clients_cpu_s"] > 0
    assert sum(plain["servers_cpu_s"].values()) < sum(ours["servers_cpu_s"].values())
    shown = tables.text_of(tables.print_overhead, report)
    assert "servers' processor time by thread, native: event loop " in shown


@pytest.mark.slow
def test_overhead_report_of_proofs():
    """A deployment without a dealer; 30 ms between the servers are in each exchange, even in rounds of nobody. Which
    phase has them depends on who comes first to a step."""
    plan = overhead.Plan(clients=4, rounds=3, warm_up=1, gates=("proved",), delays_ms=(30.0,), parameters=5_000)
    report = overhead.run(plan)
    assert report["d"] == 67 * (64 + 1 + 10) + 10
    near, far = (row for row in report["rows"] if row["setting"] == "precad")
    (bare,) = (row for row in report["rows"] if row["setting"] == "bare-servers")
    assert (bare["gate"], bare["clients"]) == ("proved", near["clients"])
    assert bare["seconds_per_round"] > 0
    assert (near["delay_ms"], far["delay_ms"]) == (0, 30)
    assert far["phases_s"]["select"] > 0.055  # two exchanges
    assert far["seconds_per_round"] > 0.18  # seven, of which the peer's lead may hide one
    assert [row["what"] for row in report["targets"]] == ["round / local-dp"]


def test_targets_compare_what_was_measured():
    """A miss is said to be one; without gate `native` there is nothing to compare processor time with. A dealer is a
    server too. Rounds of twice the clients may take twice the time."""
    three = {"aggregator-a": 0.04, "aggregator-b": 0.03, "dealer": 0.01}
    two = {"aggregator-a": 0.03, "aggregator-b": 0.01}
    of_all = {"setting": "precad", "delay_ms": 0.0, "clients": 8}
    rows = [
        of_all | {"gate": "native", "ratio": {"local-dp": 1.5}, "servers_cpu_s": three},
        of_all | {"gate": "proved", "ratio": {"local-dp": 1.4}, "servers_cpu_s": two},
        of_all | {"gate": "proved", "ratio": {"local-dp": 9.0}, "servers_cpu_s": two, "delay_ms": 20.0},
    ]
    found = {row["what"]: (row["measured"], row["met"]) for row in overhead.compared(rows)}
    assert found == {
        "round / local-dp": (1.4, False),
        "servers' processor time of a client / native": (pytest.approx(0.5), True),
    }
    twice = rows[1] | {"servers_cpu_s": three, "clients": 16}
    assert overhead.compared([rows[0], twice])[-1]["measured"] == pytest.approx(0.5)
    assert [row["what"] for row in overhead.compared(rows[1:])] == ["round / local-dp"]
    nobody = rows[1] | {"clients": 0}
    assert [row["what"] for row in overhead.compared([rows[0], nobody])] == ["round / local-dp"]
    assert [row["what"] for row in overhead.compared([rows[0] | {"servers_cpu_s": None}, *rows[1:]])] == [
        "round / local-dp"
    ]


def test_a_round_is_said_beside_what_the_paper_says_of_its_own():
    """The paper: seven times local DP. A delayed row says so, a row of another setting does not count."""
    row = {"setting": "precad", "gate": "crypten", "delay_ms": 0.0, "seconds_per_round": 0.1, "phases_s": {}}
    row |= {"clients": 10, "seconds_per_round_q1": 0.1, "seconds_per_round_q3": 0.2, "ratio": {"local-dp": 1.834}}
    delayed = row | {"gate": "proved", "delay_ms": 20.0, "ratio": {"local-dp": 4.0}}
    other = row | {"setting": "local-dp", "gate": None, "ratio": {"local-dp": 1.0}}
    report = {"dataset": "mnist", "d": 26_010, "rows": [row, delayed, other], "targets": []}
    shown = tables.text_of(tables.print_overhead, report)
    assert "by gate: crypten 1.83, proved 4 at 20 ms; the paper, by CrypTen on its machine: about 7" in shown
