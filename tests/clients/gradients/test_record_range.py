"""Labels and tokens that a model has no place for are refused where records are read; nothing of a record is told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from precad.clients.config import ClientConfig
from precad.clients.errors import RecordRangeError
from precad.clients.gradients.record_range import require_range
from precad.clients.loading import load_records
from precad.clients.models.networks import build
from precad.clients.process import Trainer
from precad.clients.records import DataSource, Records, Split
from precad.clients.records.source import _TEXTS
from precad.clients.training.conduct import Honest
from precad.deploy.configuration.model_and_records import load_split
from precad.deploy.errors import INVALID_INPUT, exit_code_of
from precad.lab.simulation import SeededRandomness, Simulation, SimulationSettings
from precad.protos.task.task import Task
from tests.harness.harness import small_task

LENGTH, VOCABULARY = 32, 700
"""The length of every text data set here, and the words that the small model below has, where data sets have 2000."""


class SmallVocabulary(nn.Module):
    """Reads texts of 32 tokens below 700."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 4)
        self.last = nn.Linear(4, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (n, 10)."""
        logits: Tensor = self.last(self.words(tokens).mean(dim=1))
        return logits


class Folding(SmallVocabulary):
    """Reads any token that is no negative one."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Modulo its vocabulary."""
        return super().forward(tokens % VOCABULARY)


def texts(outside: dict[tuple[int, int], int] | None = None, n: int = 50) -> Records:
    """Texts whose largest token is the model's last, but for those at (row, place)."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (n, LENGTH))
    tokens[n // 2, 3] = VOCABULARY - 1
    for at, token in (outside or {}).items():
        tokens[at] = token
    return Records(tokens, np.arange(n) % 10)


@pytest.mark.parametrize("token", [VOCABULARY, VOCABULARY + 1, 1999, 2**40, -1, -(2**40)])
def test_the_first_row_with_a_token_outside_the_vocabulary_is_named(token: int) -> None:
    bad = texts({(17, 5): token, (30, 0): token})
    with pytest.raises(RecordRangeError) as refused:
        require_range(SmallVocabulary(), {"a": texts(), "b": bad})
    assert str(refused.value) == "b: expected tokens in [0, 699] in row 17, found one outside"
    assert exit_code_of(refused.value) == INVALID_INPUT
    with pytest.raises(IndexError):  # what it would come to in a round
        SmallVocabulary()(torch.from_numpy(bad.features))


def test_tokens_that_the_model_reads_are_taken() -> None:
    require_range(SmallVocabulary(), {"a": texts()})
    require_range(Folding(), {"a": texts({(1, 1): 2**40})})


def test_labels_beyond_the_logits_are_refused_and_not_shown() -> None:
    """A set of records may have any classes, whatever the model."""
    records = Records(np.zeros((4, 1, 8, 8), np.float32), np.array([9, 0, 43, 10]))
    with pytest.raises(RecordRangeError) as refused:
        require_range(build("mlp"), {"records of alice": records})
    assert str(refused.value) == "records of alice: expected a label in [0, 9] in row 2, found one outside"


MODEL = f"{__name__}:SmallVocabulary"


@pytest.fixture
def _one_bad_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set whose row 23 has a token that the small model has no place for."""
    with_one = texts({(23, 31): 1234})
    monkeypatch.setattr(
        "precad.clients.records.source._TEXTS", {**_TEXTS, "sentiment140": lambda: Split(with_one, texts())}
    )


@pytest.mark.usefixtures("_one_bad_text")
def test_a_client_and_a_run_refuse_such_a_data_set_before_they_start() -> None:
    expected = r"^client.dataset sentiment140, training half: expected tokens in \[0, 699\] in row 23, found one"
    settings = {"certificates": "/c", "authority": "/a", "dataset": "sentiment140"}
    config = ClientConfig.model_validate(settings, context={"base": "/"})
    task = small_task(model=MODEL, dim=VOCABULARY * 4 + 50)
    with pytest.raises(RecordRangeError, match=expected):
        load_records(task, config, list(task.clients))
    with pytest.raises(RecordRangeError, match=expected):
        load_split(DataSource(dataset="sentiment140"), {"model": MODEL})


def trainer(task: Task, records: dict[str, Records]) -> object:
    return Trainer(task=task, records=records, conducts=dict.fromkeys(records, Honest()), device="cpu")


def simulation(task: Task, records: dict[str, Records]) -> object:
    return Simulation(
        task=task,
        settings=SimulationSettings(),
        records=records,
        test=texts(),
        randomness=SeededRandomness(0),
        device="cpu",
    )


@pytest.mark.parametrize("start", [trainer, simulation])
def test_no_training_begins_on_such_records(start: Callable[[Task, dict[str, Records]], object]) -> None:
    task = small_task(model=MODEL, dim=VOCABULARY * 4 + 50)
    records = {client: texts({(4, 4): VOCABULARY} if client == "bob" else None) for client in task.clients}
    with pytest.raises(RecordRangeError, match=r"^records of bob: expected tokens in \[0, 699\] in row 4, found"):
        start(task, records)
