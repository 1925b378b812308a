"""Two tasks that differ: whoever refuses the other names the first field, with both values.

Failure means a difference that no message names, or a hello that grows with the number of clients. It also means a peer
whose fields end a server in another way than by a refusal, or fill its log.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precad.clients.errors import TaskRefusedError
from precad.clients.upload.session import ClientSession
from precad.mpc.errors import PeerMismatchError
from precad.protos.task.task import Task
from precad.protos.task.task_fields import MOST_SHOWN, differences, first_difference, hello_to
from precad.servers.aggregator import Aggregator
from precad.servers.dealer import Dealer
from precad.servers.errors import ServerError
from precad.servers.rounds.equipment import SYSTEM_RANDOMNESS
from precad.servers.store.standing import Standing
from precad.servers.task.meeting import compare, hello_of
from tests.harness.harness import Pki, asynchronous, free_addresses, running, small_task
from tests.protos.task.test_task import OTHER_VALUES

TASK = small_task()
NEW = Standing("", 0, 0, 0, bytes(32), bytes(32))


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_the_field_that_differs_is_named_with_both_values(name: str) -> None:
    """Each field of a task alone, from both sides."""
    other = small_task(**{name: OTHER_VALUES[name]})
    for task, theirs in ((TASK, other), (other, TASK)):
        found = first_difference(task, theirs.carried_fields)
        assert found is not None
        if name == "clients":
            assert found.field == "task.clients.mallory"
        elif name == "mode":  # which says so twice, and this comes first
            assert found.field == "task.accept_weak_wire_form"
        else:
            assert found.field == f"task.{name}"
        assert found.ours != found.theirs
    assert first_difference(TASK, TASK.carried_fields) is None


def test_values_are_shown_as_the_canonical_text_has_them() -> None:
    found = first_difference(TASK, small_task(learning_rate=0.5, rounds=9).carried_fields)
    assert found == ("task.learning_rate", "0.3", "0.5")
    assert first_difference(TASK, small_task(lost_rounds=7).carried_fields) == ("task.lost_rounds", "null", "7")
    fewer = first_difference(TASK, small_task(["alice", "bob"]).carried_fields)
    assert fewer == ("task.clients.mallory", "12", "nothing")
    added = {**TASK.carried_fields, "zeal": "1"}
    assert first_difference(TASK, added) == ("task.zeal", "nothing", "1")


def test_every_field_that_differs_is_named_at_once() -> None:
    """Entries of one object too; of very many, the first eight."""
    other = small_task(["alice", "bob", "carol"], learning_rate=0.5, rounds=9)
    assert differences(TASK, other.carried_fields) == [
        ("task.clients.carol", "nothing", str(other.clients["carol"])),
        ("task.clients.mallory", str(TASK.clients["mallory"]), "nothing"),
        ("task.learning_rate", "0.3", "0.5"),
        ("task.rounds", str(TASK.rounds), "9"),
    ]
    assert len(differences(TASK, dict.fromkeys(TASK.carried_fields, "other"))) == MOST_SHOWN


def test_a_hello_does_not_grow_with_the_number_of_clients() -> None:
    """Far below the 64 KiB that a server takes of a call before it knows who makes it."""
    names = [f"{i:063d}" for i in range(10_000)]
    many, others = small_task(names), small_task([*names[1:], "last"])
    assert hello_to(many).ByteSize() < 8_000
    found = first_difference(many, others.carried_fields)
    assert found is not None
    assert (found.field, found.ours[:25]) == ("task.clients", "10000 entries of SHA-256 ")
    assert found.ours != found.theirs


@given(st.dictionaries(st.sampled_from([*TASK.carried_fields, "other"]), st.text(), max_size=4))
@settings(max_examples=30)
def test_anything_that_a_peer_says_makes_one_short_line(said: dict[str, str]) -> None:
    found = first_difference(TASK, {**TASK.carried_fields, **said})
    for text in found or ():
        assert len(text) <= 120
        assert text.isprintable()
        assert text.isascii()


@pytest.mark.parametrize(
    "text", ["{" * 5000, "[" * 5000, '{"alice":' * 50, '{"alice":[' + "9" * 400 + "]}", "\x00\n", "9" * 10**6]
)
def test_a_value_that_is_none_is_shown_cut(text: str) -> None:
    found = first_difference(TASK, {**TASK.carried_fields, "clients": text})
    assert found is not None
    assert found.field.startswith("task.clients")
    assert len(found.theirs) <= 83


@pytest.mark.parametrize("party", [0, 1])
def test_a_server_names_what_the_other_one_has(party: Any) -> None:
    ours, theirs = (hello_of(task, NEW, os.urandom(16), lane_port=0) for task in (TASK, small_task(client_clip=2.0)))
    with pytest.raises(
        PeerMismatchError, match=r"^config_digest: task\.client_clip differs .*: ours 1\.0, peer's 2\.0$"
    ):
        compare(party, TASK, ours, theirs)
    theirs.task_fields.clear()
    with pytest.raises(PeerMismatchError, match=r"^config_digest differs between the servers: ours [0-9a-f]{16}, "):
        compare(party, TASK, ours, theirs)
    theirs.protocol_version = "precad/v1"
    with pytest.raises(PeerMismatchError, match=r"^protocol_version differs .*: ours precad/v1\.1, peer's precad/v1$"):
        compare(party, TASK, ours, theirs)


@asynchronous
async def test_two_servers_with_different_tasks_refuse_each_other_by_name(tmp_path: Path) -> None:
    """Over real connections: both, or one of them and the other hears it."""
    errors = await errors_of_servers(tmp_path, (TASK, small_task(learning_rate=0.5)), TASK)
    told = [str(error) for error in errors if "task.learning_rate" in str(error)]
    assert told, errors
    assert any("ours 0.3, peer's 0.5" in text or "ours 0.5, peer's 0.3" in text for text in told)
    assert all(isinstance(error, PeerMismatchError | ServerError) for error in errors)


@asynchronous
async def test_a_dealer_with_another_task_refuses_both_servers_by_name(tmp_path: Path) -> None:
    errors = await errors_of_servers(tmp_path, (TASK, TASK), small_task(frac_bits=15))
    assert any("differ in task.frac_bits: expected 15, found 16" in str(error) for error in errors), errors


async def errors_of_servers(folder: Path, tasks: tuple[Task, Task], of_dealer: Task) -> list[BaseException]:
    """Return what ended A and B, which have different tasks, or another one than the dealer."""
    pki = Pki.create(folder / "pki", TASK.clients)
    np.save(folder / "initial.npy", np.zeros(TASK.dim, dtype=np.float32))
    a, b, dealer_address = free_addresses(3)
    servers = [
        Aggregator(
            party=party,  # type: ignore[arg-type] # 0 or 1
            task=task,
            config=pki.aggregator(party, listen=(a, b)[party], folder=folder),
            addresses=(b, dealer_address),
        )
        for party, task in enumerate(tasks)
    ]
    dealer = asyncio.create_task(Dealer(task=of_dealer, config=pki.dealer(listen=dealer_address, folder=folder)).run())
    ends = await asyncio.gather(*(server.run() for server in servers), return_exceptions=True)
    dealer.cancel()
    await asyncio.gather(dealer, return_exceptions=True)
    return [end for end in ends if isinstance(end, BaseException)]


@asynchronous
async def test_a_client_with_another_task_is_told_which_field(tmp_path: Path) -> None:
    pki = Pki.create(tmp_path / "pki", TASK.clients)
    async with running(TASK, pki, tmp_path, noises=(SYSTEM_RANDOMNESS.noise, SYSTEM_RANDOMNESS.noise)) as deployment:
        session = ClientSession(
            client="alice",
            task=small_task(noise_multiplier=0.5),
            addresses=deployment.addresses,
            tls=pki.tls("alice"),
            train=lambda _: np.zeros(TASK.dim, dtype=np.int64),
        )
        with pytest.raises(TaskRefusedError, match=r"differ in task\.noise_multiplier: expected 1\.0, found 0\.5"):
            await session.run()
