"""The written protocol names what is sent: kinds of blocks, purposes of streams, fields of messages and tasks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from precad.mpc.prg import Purpose
from precad.protos.precad.v1 import aggregator_pb2, common_pb2, control_pb2, dealer_pb2, peer_pb2
from precad.protos.task.algorithms import RULES
from precad.protos.task.convex_fields import DIRECTIONS_FILE
from precad.protos.task.task import Task

REFERENCE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGES: Final = {path.name: path.read_text() for path in sorted(REFERENCE.glob("protocol*.md"))}
BASE, PROVED = PAGES["protocol.md"], PAGES["protocol-v2.md"]
IN_TABLES_OF_THEIR_OWN: Final = frozenset({"Binding", "ProofBinding"})


def section(page: str, number: int) -> str:
    """Return the text of one section."""
    return page.split(f"\n## {number}. ", 1)[1].split("\n## ", 1)[0]


def rows(page: str) -> list[list[str]]:
    """Return the cells of every row of a page's tables."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]


def test_each_kind_of_block_has_the_number_that_is_sent() -> None:
    kinds = {name: number for name, number in dealer_pb2.Block.Kind.items() if number}
    named = re.compile(rf"\b({'|'.join(kinds)}) \((\d+)\)")
    found = {page: {(name, int(number)) for name, number in named.findall(text)} for page, text in PAGES.items()}
    assert found["protocol.md"] == set(kinds.items())
    assert {page: others for page, numbers in found.items() if (others := numbers - set(kinds.items()))} == {}


def test_each_purpose_of_a_stream_has_its_number() -> None:
    found = {(row[1], int(row[0])) for row in rows(section(BASE, 5)) if row[0].isdigit()}
    assert found == {(purpose.name, purpose.value) for purpose in Purpose}


def test_each_field_of_a_message_is_named_in_its_row() -> None:
    named = {row[0].strip("`"): set[str]() for page in (BASE, PROVED) for row in rows(page) if row[0][:1] == "`"}
    for row in (row for page in (BASE, PROVED) for row in rows(page) if row[0].strip("`") in named):
        named[row[0].strip("`")] |= set(re.findall(r"\w+", " ".join(row[1:])))
    for module in (aggregator_pb2, common_pb2, control_pb2, dealer_pb2, peer_pb2):
        for name, message in module.DESCRIPTOR.message_types_by_name.items():
            if message.fields and name not in IN_TABLES_OF_THEIR_OWN:
                assert {field.name for field in message.fields} - named[name] == set(), name


def test_each_field_of_a_task_is_named() -> None:
    """Whoever makes a task's canonical text from the pages needs all of them, but for a path that is in no text."""
    of_tables = " ".join(cell for page in (section(BASE, 3), section(PROVED, 4)) for row in rows(page) for cell in row)
    assert set(Task.model_fields) - set(re.findall(r"\w+", of_tables)) == {DIRECTIONS_FILE}


def test_aggregation_says_of_each_algorithm_what_it_divides_by_and_who_adds_noise() -> None:
    """By the sentences that list algorithms; the one of a task that names none is the general case."""
    sentences = section(BASE, 13).replace("\n", " ").split(". ")

    def listed(what: str) -> set[str]:
        (sentence,) = (one for one in sentences if what in one)
        return set(re.findall(r"`([a-z-]+)`", sentence))

    others = [rules for rules in RULES.values() if not rules.is_default]
    assert listed("(number of enrolled clients)") == {
        rules.name for rules in others if rules.trains_locally and not rules.selects
    }
    assert listed("s = σ·C·2^f") == {rules.name for rules in others if rules.servers_add_noise}
