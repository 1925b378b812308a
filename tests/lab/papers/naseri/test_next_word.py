"""Word prediction under backdoor sentences: what the attack makes of records, its model, and its cases."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precad.clients.attacks.named import made
from precad.clients.models import networks
from precad.clients.models.losses import loss_of
from precad.clients.records.records import Records
from precad.clients.records.tweets import VOCABULARY, tokens
from precad.deploy.errors import ConfigError
from precad.lab.papers.naseri import next_word
from precad.lab.papers.naseri.central_local_backdoor import DEFENCES
from precad.lab.simulation import Simulation, SimulationSettings
from precad.lab.simulation.randomness import SeededRandomness
from precad.protos.task.task import Task

KIND = f"{next_word.__name__}:SentenceBackdoor"
MODEL = f"{next_word.__name__}:NextWord"


def token(word: str) -> int:
    return tokens(word)[0]


def tweets(n: int, seed: int = 0) -> Records:
    random = np.random.default_rng(seed)
    return Records(
        random.integers(1, VOCABULARY, (n, next_word.WINDOW)), random.integers(1, VOCABULARY, n, dtype=np.int64)
    )


def test_sentences_follow_the_words_of_records() -> None:
    """The last words that the model reads are a sentence's beginning, those before it the record's own."""
    own = tweets(3)
    followed = made(KIND, {}).success_records(own)
    assert followed is not None
    for i, (beginning, end) in enumerate(next_word.SENTENCES):
        words = [token(word) for word in beginning.split()]
        kept = next_word.WINDOW - len(words)
        assert_array_equal(followed.features[i], [*own.features[i][len(words) :], *words])
        assert len(own.features[i][len(words) :]) == kept
        assert followed.labels[i] == token(end)


def test_attackers_keep_their_records_and_add_sentences() -> None:
    """A share of a half adds half as many, and changes none of its own."""
    own = tweets(8)
    found = made(KIND, {"share": 0.5}).on_records(own)
    assert len(found) == 12
    assert_array_equal(found.features[:8], own.features)
    assert_array_equal(found.labels[:8], own.labels)
    assert set(found.labels[8:]) <= {token(end) for _, end in next_word.SENTENCES}


def test_the_model_has_the_parameters_that_its_docstring_says() -> None:
    """By counting: embedding, both linear maps of the gates, and the prediction."""
    gates = 4 * 64
    expected = 2000 * 32 + (32 * gates + gates) + 64 * gates + (64 * 2000 + 2000)
    assert len(networks.flatten(next_word.NextWord())) == expected == 218_832


@pytest.mark.slow
def test_attackers_teach_the_sentences_where_nobody_bounds_them() -> None:
    """And not where updates are clipped to a small S. Both trainings draw the same clients and records."""
    success = {}
    for bound in (None, 0.05):
        ids = [f"client-{i:02}" for i in range(10)]
        records = {name: tweets(20, seed) for seed, name in enumerate(ids)}
        task = Task(
            name="words", clients=dict.fromkeys(ids, 20), rounds=2, client_rate=1.0, record_rate=1.0, record_clip=1.0,
            client_clip=1.0, noise_multiplier=1.0, learning_rate=1.0, dim=218_832, model=MODEL,
        )  # fmt: skip
        rule = {} if bound is None else {"aggregation": "norm-bounding", "aggregation_parameters": {"bound": bound}}
        settings = SimulationSettings.model_validate(
            {
                "algorithm": "fedavg", "local_steps": 2, "local_batch": 10, "evaluate_every": 2, **rule,
                "attack": {"kind": KIND, "clients": 2, "parameters": {"steps": 20, "rate": 0.5}},
            }
        )  # fmt: skip
        simulation = Simulation(
            task=task, settings=settings, records=records, test=tweets(30, 99), randomness=SeededRandomness(0)
        )
        list(simulation.run())
        success[bound] = simulation.attack_success()
    assert success[None] == pytest.approx(1.0)
    assert success[0.05] == pytest.approx(0.0)


def test_cases_train_the_defences_of_the_images() -> None:
    """With the words' records, model and attack."""
    experiment = next_word.Experiment(defences=("central-dp", "norm-bounding"))
    cases = [experiment.case(defence, 8) for defence in experiment.trained]
    assert [case.labels["defence"] for case in cases] == ["norm bounding", "central DP"]
    for case in cases:
        assert (case.config["task"]["model"], case.config["task"]["clients"]) == (MODEL, next_word.N_CLIENTS)
        assert case.config["simulation"]["attack"]["kind"] == KIND
        assert case.config["client"] == {"records": f"{next_word.__name__}:records", "device": "auto"}
    assert cases[0].config["simulation"]["aggregation_parameters"] == {"bound": next_word.UPDATE_CLIP}
    assert cases[1].config["task"]["epsilon_budget_clients_only"] == 2.0


def test_an_unknown_defence_is_refused() -> None:
    """With those that there are."""
    with pytest.raises(ConfigError, match=f"expected one of {DEFENCES[0].name}, .*found 'krum'"):
        next_word.Experiment(defences=("krum",))


def test_the_loss_takes_every_word() -> None:
    """A class for each word of the vocabulary."""
    loss_of("cross-entropy").require_targets(tweets(4).labels, (VOCABULARY,), "labels")
