"""Read what a kit's maker has set in one organisation's configuration: no digest that operators compare is of it."""

from __future__ import annotations

from pathlib import Path

from tests.harness.kits import Project, precad, tried

ADDRESSES = {"aggregator-a": "127.0.0.1:9", "aggregator-b": "127.0.0.1:10", "lane": "127.0.0.1:11"}


def test_an_operator_reads_what_the_maker_of_its_kit_has_set(tmp_path: Path) -> None:
    """Print each setting, also where it is a section, and none of the fields that every kit has."""
    project = Project(tmp_path / "one", precad)
    project.begin(ADDRESSES)
    project.request()
    path = project.start / "project.toml"
    path.write_text(f'{path.read_text()}\n[client.holder]\nledger = "paid/{{client}}"\nlimit_epsilon = 9.5\n')
    digest = project.provision()
    project.give_records()
    _, said = tried(*project.join("hospital-1", digest), "--no-start")
    told = [line for line in said.splitlines() if line.startswith("set by the kit's maker: ")]
    assert "set by the kit's maker: client.holder = " + '{"ledger": "paid/{client}", "limit_epsilon": 9.5}' in told
    assert not [line for line in told if "certificate" in line or "authority" in line or "client-state" in line]
    assert all(line.startswith("set by the kit's maker: client.") for line in told)
