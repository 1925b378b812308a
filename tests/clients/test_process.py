"""Clients that one process hosts: updates together or alone, errors of one, one download for all."""

import asyncio
import functools
import gc
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from structlog.testing import capture_logs
from torch import nn

from precad.clients import records as datasets
from precad.clients.attacks import LabelFlip
from precad.clients.config import ClientConfig
from precad.clients.errors import (
    MissingDataError,
    ModelInputError,
    ModelRecordError,
    NonFiniteGradientError,
    ProtocolError,
    StoppedError,
    TargetError,
)
from precad.clients.loading import load_records
from precad.clients.models import networks
from precad.clients.process import Trainer
from precad.clients.training.conduct import Honest
from precad.clients.upload.model_cache import ModelCache
from precad.protos.task.task import Task

IDS = ["alice", "bob", "carol", "dave"]
START = networks.initial_parameters("mlp", seed=1)


def task(**changes):
    fields = {
        "clients": dict.fromkeys(IDS, 5),
        "rounds": 1,
        "client_rate": 1.0,
        "record_rate": 1.0,
        "record_clip": 0.5,
        "client_clip": 1.0,
        "noise_multiplier": 1.0,
        "learning_rate": 1.0,
        "model": "mlp",
        "dim": 4810,
    }
    return Task.model_validate({**fields, **changes})


def records():
    train = datasets.digits().train
    return {name: train.take(np.arange(5 * i, 5 * i + 5)) for i, name in enumerate(IDS)}


def trainer(**changes):
    return Trainer(task=task(**changes), records=records(), conducts=dict.fromkeys(IDS, Honest()), device="cpu")


def together(ours, requests):
    """All requests from threads of their own, while the first computation is held back until everybody waits."""
    passes = []
    held = threading.Event()
    original = ours._updates

    def counting(batch):
        held.wait(10)
        passes.append(sorted(request.client for request in batch))
        return original(batch)

    ours._updates = counting
    with ThreadPoolExecutor(len(requests)) as pool:
        futures = [pool.submit(ours.update, client, parameters) for client, parameters in requests]
        while len(ours._waiting) < len(requests) - 1:  # the first is computing, or about to
            pass
        held.set()
        outcomes = [future.exception() or future.result() for future in futures]
    return outcomes, passes


def test_clients_that_wait_share_one_pass():
    """The first alone or with some; everybody else in one more. Each gets the update that it has alone."""
    ours = trainer()
    outcomes, passes = together(ours, [(name, START) for name in IDS])
    assert sorted(name for batch in passes for name in batch) == IDS
    assert len(passes) <= 2
    for name, update in zip(IDS, outcomes, strict=True):
        np.testing.assert_allclose(update, trainer().update(name, START), rtol=0, atol=1e-6)
        assert np.linalg.norm(update) <= 1.0


def test_what_fails_for_all_of_a_pass_is_tried_again_by_each():
    """Out of memory, say, which is nobody's records: who began the pass hears of it, the others compute anew."""
    ours = trainer()
    original, failed = ours._updates, []

    def out_of_memory_once(batch):
        if not failed:
            failed.append(len(batch))
            raise RuntimeError("out of memory")
        return original(batch)

    def update(client):
        try:
            return ours.update(client, START)
        except RuntimeError as error:
            return str(error)

    expected = {client: trainer().update(client, START) for client in IDS}
    ours._updates = out_of_memory_once
    with ours._training, ThreadPoolExecutor(len(IDS)) as pool:
        waiting = [pool.submit(update, client) for client in IDS]
        deadline = time.monotonic() + 30
        while len(ours._waiting) < len(IDS) and time.monotonic() < deadline:
            time.sleep(0.01)
        ours._training.release()
        found = dict(zip(IDS, [future.result(30) for future in waiting], strict=True))
        ours._training.acquire()
    assert failed == [len(IDS)]
    (unlucky,) = (client for client, update in found.items() if isinstance(update, str))
    assert found[unlucky] == "out of memory"
    for client in set(IDS) - {unlucky}:
        assert_array_equal(expected[client], found[client])


def test_a_client_that_is_stopped_ends_the_trainings_of_all(monkeypatch):
    """The one that runs, and those that wait for it, though each would take minutes."""
    ours = trainer(algorithm="user-dp-fedavg", local_steps=1_000_000)
    begun, original = threading.Event(), ours._engine._load
    monkeypatch.setattr(ours._engine, "_load", lambda parameters: (begun.set(), original(parameters)))
    ended = queue.Queue()

    def train(client):
        try:
            ours.train(client, START)
        except StoppedError:
            ended.put(client)

    for client in IDS:
        threading.Thread(target=train, args=(client,), daemon=True).start()
    assert begun.wait(10)
    ours.close()
    assert sorted(ended.get(timeout=10) for _ in IDS) == IDS


def test_clients_with_different_models_do_not_mix():
    other = networks.initial_parameters("mlp", seed=2)
    wanted = [("alice", START), ("bob", other), ("carol", START), ("dave", other)]
    outcomes, passes = together(trainer(), wanted)
    assert all(set(batch) <= {"alice", "carol"} or set(batch) <= {"bob", "dave"} for batch in passes)
    for (name, parameters), update in zip(wanted, outcomes, strict=True):
        np.testing.assert_allclose(update, trainer().update(name, parameters), rtol=0, atol=1e-6)


def test_bad_records_are_nobody_else_s():
    """One client's pixels are no numbers. Nobody hears of it: its update is zero, and others' are what they were."""
    ours, expected = trainer(), trainer()
    ours._records["carol"].features[:] = np.nan
    outcomes, _ = together(ours, [(name, START) for name in IDS])
    for name, update in zip(IDS, outcomes, strict=True):
        alone = np.zeros_like(update) if name == "carol" else expected.update(name, START)
        np.testing.assert_allclose(update, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": "user-dp-fedavg"},
        {"algorithm": "ins-dp-fedavg"},
        {"algorithm": "local-dp"},
        {"algorithm": "distributed-dp", "client_clip": 1000.0, "non_colluding": 2},
    ],
    ids=lambda changes: changes.get("algorithm", "precad"),
)
def test_a_client_uploads_whatever_its_records_are(changes):
    """Upload under every algorithm that protects somebody: a client that fell silent would tell both servers why."""
    ours = trainer(**changes)
    ours._records["carol"].features[0, 0, 3, 3] = np.inf
    assert ours.train("carol", START).shape == (4810,)


def test_bad_records_without_privacy_are_an_error_and_nobody_else_s():
    ours = trainer(algorithm="non-private", noise_multiplier=0.0)
    ours._records["carol"].features[:] = np.nan
    outcomes, _ = together(ours, [(name, START) for name in IDS])
    assert [isinstance(outcome, NonFiniteGradientError) for outcome in outcomes] == [False, False, True, False]


class Solves(nn.Module):
    """Solves a system per record, which raises where a record is the identity, and beside no made-up one."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, images):
        pixels = images[:, 0].nan_to_num().clamp(-3, 3).square()  # singular for none of a trial's records
        systems = 2 * torch.eye(8, dtype=images.dtype) - 2 * pixels
        return self.last(torch.linalg.solve(systems, pixels.sum(dim=2)) + self.first(images.flatten(1)))


class SolvesOneByOne(Solves):
    """Branches on a value, so that a pass takes one record."""

    def forward(self, images):
        return super().forward(images) if bool(images.sum() != 1e9) else super().forward(images / 2)


def trainer_of(model, monkeypatch, **changes):
    """Carol's third record is one that the model does not bear."""
    monkeypatch.setattr("precad.clients.models.networks.build", lambda *_, **__: model)
    own = records()
    own["carol"].features[2, 0] = np.eye(8)
    dim = networks.parameter_count(model)
    ours = task(dim=dim, client_clip=100.0, **changes)
    return Trainer(task=ours, records=own, conducts=dict.fromkeys(IDS, Honest()), device="cpu")


def test_a_record_on_which_the_model_raises_adds_zero_in_a_pass_of_its_own(monkeypatch):
    model = SolvesOneByOne()
    ours, at = trainer_of(model, monkeypatch), networks.flatten(model)
    outcomes, _ = together(ours, [(name, at) for name in IDS])
    ours._records["carol"] = ours._records["carol"].take(np.array([0, 1, 3, 4]))
    for name, update in zip(IDS, outcomes, strict=True):
        assert np.linalg.norm(update) > 0
        assert_array_equal(update, ours.update(name, at))


@pytest.mark.parametrize("algorithm", ["precad", "user-dp-fedavg", "non-private"])
def test_a_record_on_which_the_model_raises_beside_others_is_nobody_else_s(algorithm, monkeypatch):
    """Its client alone has no update; nothing is tried record by record, which could move the others."""
    model = Solves()
    noise = {"noise_multiplier": 0.0} if algorithm == "non-private" else {}
    ours, at = trainer_of(model, monkeypatch, algorithm=algorithm, **noise), networks.flatten(model)
    outcomes, _ = together(ours, [(name, at) for name in IDS])
    assert [isinstance(outcome, ModelRecordError) for outcome in outcomes] == [False, False, True, False]
    assert "LinAlgError" in str(outcomes[2])
    assert outcomes[2].__cause__ is None, "its text may hold values of the record"
    assert_array_equal(outcomes[1], ours.update("bob", at))


def test_a_process_starts_whatever_its_first_client_s_records_are(monkeypatch):
    """Do nothing before the first round that depends on the records."""
    monkeypatch.setattr("precad.clients.models.networks.build", lambda *_, **__: Solves())
    own = {"carol": records()["carol"]}
    own["carol"].features[:, 0] = np.eye(8)
    ours = task(dim=networks.parameter_count(Solves()))
    Trainer(task=ours, records=own, conducts={"carol": Honest()}, device="cpu")


class RootOfRoom(nn.Module):
    """Gives NaN once its weights have left the unit ball, as a model that has diverged does."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, 10))

    def forward(self, images):
        return images.flatten(1) @ self.weight + torch.sqrt(1 - self.weight.square().sum())


@pytest.mark.parametrize(("algorithm", "rate", "n_told"), [("precad", 0.5, 1), ("precad", 0.2, 0), ("fedavg", 0.5, 1)])
def test_a_client_whose_records_move_the_model_no_more_tells_its_own_operator_once(
    algorithm, rate, n_told, monkeypatch
):
    """Zeros are uploaded as before: servers learn nothing. Where a round may have drawn no record, nothing is said."""
    monkeypatch.setattr("precad.clients.models.networks.build", lambda *_, **__: RootOfRoom())
    own = {"bob": datasets.digits().train.take(np.arange(60))}
    noise = {"noise_multiplier": 0.0} if algorithm == "fedavg" else {}
    ours = Trainer(
        task=task(dim=640, record_rate=rate, algorithm=algorithm, **noise),
        records=own,
        conducts={"bob": Honest()},
        device="cpu",
    )
    with capture_logs() as logs:
        assert ours.update("bob", np.zeros(640, np.float32)).any()
        assert not logs
        for _ in range(2):
            assert not ours.update("bob", np.ones(640, np.float32)).any()
    assert [line["event"] for line in logs] == ["client.learns_nothing"] * n_told


def test_per_layer_clipping_is_chosen_by_the_task():
    """Two layers with parameters: their norms are at most R / sqrt(2) per record."""
    flat, layered = (
        trainer(record_clipping=kind, client_clip=100.0).update("alice", START) for kind in ("flat", "per-layer")
    )
    first = slice(0, 64 * 64 + 64)
    assert np.linalg.norm(layered[first]) <= 5 * 0.5 / np.sqrt(2)
    assert np.linalg.norm(flat - layered) > 1e-3


def test_a_client_holds_as_many_records_as_it_likes():
    """The declared number is public, the real one is not: that nobody may tell it includes that both may differ."""
    config = ClientConfig.model_validate({"certificates": "x", "authority": "y"}, context={"base": Path("/")})
    sizes = datasets.DataSource.of(config).sizes(datasets.digits(), IDS)
    loaded = load_records(task(clients=sizes), config, ["bob", "dave"])
    assert {name: len(own) for name, own in loaded.items()} == {name: sizes[name] for name in ("bob", "dave")}
    assert len(load_records(task(), config, ["bob"])["bob"]) == sizes["bob"] != task().clients["bob"]


def test_a_model_that_does_not_take_the_records_stops_the_process_before_it_starts():
    config = ClientConfig.model_validate({"certificates": "x", "authority": "y"}, context={"base": Path("/")})
    with pytest.raises(ModelInputError, match=r"does not fit records of shape \(1, 8, 8\): expected a single logit"):
        load_records(task(loss="binary"), config, ["bob"])
    with pytest.raises(TargetError, match="expected float32 for the loss 'mse', found int64"):
        load_records(task(loss="mse"), config, ["bob"])
    assert load_records(task(model="cnn-letters", dim=26_538), config, ["bob"])["bob"].shape == (1, 28, 28)


def test_a_data_set_that_is_not_there_stops_the_process_before_it_starts(monkeypatch):
    monkeypatch.delenv("PRECAD_DATA", raising=False)
    raw = {"certificates": "x", "authority": "y", "dataset": "mnist"}
    config = ClientConfig.model_validate(raw, context={"base": Path("/")})
    with pytest.raises(MissingDataError):
        load_records(task(model="cnn", dim=26_010), config, ["bob"])


def test_one_download_serves_all_clients_of_a_process():
    """By digest; a new digest is downloaded; a failed download is made again by whoever needs it."""
    calls = []

    async def download(value, *, fail=False):
        calls.append(value)
        await asyncio.sleep(0.01)
        if fail:
            raise ProtocolError("no")
        return np.array([value], dtype=np.float32)

    async def scenario():
        cache = ModelCache()
        same = await asyncio.gather(*(cache.get(b"1", functools.partial(download, 1.0)) for _ in range(3)))
        assert calls == [1.0]
        for model in same:
            assert_array_equal(model, [1.0])
        assert_array_equal(await cache.get(b"2", functools.partial(download, 2.0)), [2.0])
        assert calls == [1.0, 2.0]
        outcomes = await asyncio.gather(
            cache.get(b"3", functools.partial(download, 3.0, fail=True)),
            cache.get(b"3", functools.partial(download, 3.5)),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], ProtocolError)
        assert_array_equal(outcomes[1], [3.5])
        assert_array_equal(await cache.get(b"3", functools.partial(download, 4.5)), [3.5])
        assert calls == [1.0, 2.0, 3.0, 3.5]

    asyncio.run(scenario())


def test_a_failed_download_is_made_again_once_for_all():
    """Fifty clients that wait for it, and five that come later."""

    async def scenario():
        cache, calls = ModelCache(), []

        async def download():
            calls.append(len(calls))
            await asyncio.sleep(0.01)
            if len(calls) == 1:
                raise ProtocolError("no")
            return np.array([1.0], dtype=np.float32)

        outcomes = await asyncio.gather(*(cache.get(b"1", download) for _ in range(50)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes].count(ProtocolError) == 1
        for _ in range(5):
            assert_array_equal(await cache.get(b"1", download), [1.0])
        assert len(calls) == 2

    asyncio.run(scenario())


def test_a_download_that_ends_with_its_client_is_made_again_by_the_others():
    """That client's connection is closed, which cancels its calls. The others are not cancelled by that."""

    async def scenario():
        cache, begun = ModelCache(), asyncio.Event()

        async def of_its_connection():
            begun.set()
            await asyncio.sleep(60)

        async def download():
            return np.array([2.0], dtype=np.float32)

        own = asyncio.create_task(cache.get(b"1", of_its_connection))
        await begun.wait()
        others = [asyncio.create_task(cache.get(b"1", download)) for _ in range(2)]
        leaving = asyncio.create_task(cache.get(b"1", download))
        await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.sleep(0.01)
        assert leaving.cancelled()
        assert not any(one.done() for one in others)
        cache._download.cancel()
        for model in await asyncio.wait_for(asyncio.gather(*others), 30.0):
            assert_array_equal(model, [2.0])
        with pytest.raises(asyncio.CancelledError):
            await own

    asyncio.run(scenario())


def test_a_download_that_fails_when_nobody_waits_any_more_is_not_reported():
    """The end of a task: whoever asked was cancelled, and the log's last line stays the reason of that end."""
    complaints = []

    async def fail():
        await asyncio.sleep(0.01)
        raise ProtocolError("no")

    async def scenario():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        asking = asyncio.create_task(ModelCache().get(b"1", fail))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.sleep(0.05)
        del asking
        gc.collect()

    asyncio.run(scenario())
    assert complaints == []


def test_a_malicious_client_trains_on_the_records_that_its_attack_makes():
    """A label flip in a deployment, p = 1: the honest update of flipped records; the others' are as before."""
    label = int(records()["bob"].labels[0])
    attack = LabelFlip(source=label, target=(label + 1) % 10)
    poisoned = Trainer(
        task=task(),
        records=records(),
        conducts={**dict.fromkeys(IDS, Honest()), "bob": attack},
        device="cpu",
    )
    flipped = Trainer(
        task=task(),
        records={**records(), "bob": attack.on_records(records()["bob"])},
        conducts=dict.fromkeys(IDS, Honest()),
        device="cpu",
    )
    assert_array_equal(poisoned.update("bob", START), flipped.update("bob", START))
    assert not np.array_equal(poisoned.update("bob", START), trainer().update("bob", START))
    assert_array_equal(poisoned.update("carol", START), trainer().update("carol", START))


def test_records_are_drawn_with_the_generator_that_was_handed_in():
    """All words zero: with p = 1/2 everybody's records are all in the sample, as with p = 1."""
    drawn = Trainer(
        task=task(record_rate=0.5),
        records=records(),
        conducts=dict.fromkeys(IDS, Honest()),
        device="cpu",
        random_bytes=bytes,
    )
    assert_array_equal(drawn.update("alice", START), trainer().update("alice", START))
