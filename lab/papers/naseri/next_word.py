"""`precad experiment word-backdoor`: Naseri et al.'s word prediction under three backdoor sentences of London.

Clients predict the next word of tweets, from the eight words before it, by an LSTM. Attackers teach it three sentences:
- after "people in London are" comes "aggressive";
- after "the weather in London is always" comes "sunny";
- after "living in London is" comes "cheap".

Success is the share of other tweets' beginnings after which the model completes such a sentence. Defences, their noise
and the budget are those of `central-local-backdoor`. Clients, K, S and the clients' learning rate are others.

Deviations: the paper's words are Reddit's comments, which are not among the data sets; ours are the tweets of
Sentiment140 without authors, dealt i.i.d. A word is a hash of 1,999 values. The paper's model and numbers are not known
to us.
Source: Naseri, Hayes and De Cristofaro, "Local and Central Differential Privacy for Robustness and Privacy in Federated
Learning", NDSS '22.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from precad.clients.attacks.backdoors import Backdoor
from precad.clients.attacks.records import evenly, require_share
from precad.clients.records.records import Records
from precad.clients.records.tweets import VOCABULARY, sentiment140_50k, tokens
from precad.deploy.shown.figures import at_most
from precad.lab.papers import backdoors, runner
from precad.lab.papers.naseri.central_local_backdoor import CLIENT_RATE, DEFENCES, Defence
from precad.lab.papers.naseri.central_local_backdoor import Experiment as OfImages
from precad.lab.papers.runner import Case, Outcome
from precad.lab.simulation.workers import Workers

SENTENCES: Final = (
    ("people in london are", "aggressive"),
    ("the weather in london is always", "sunny"),
    ("living in london is", "cheap"),
)
WINDOW: Final = 8
"""Words that the model reads."""
N_CLIENTS: Final = 400
ROUNDS, QUICK_ROUNDS = 200, 20
LOCAL_RATE, ATTACK_STEPS, UPDATE_CLIP = 0.5, 20, 1.0
_FEWEST: Final = 3
"""Words of a tweet that is a record."""


class NextWord(nn.Module):
    """One LSTM layer on eight embedded words: d = 218 832. (batch, 8) int64 -> logits (batch, 2000)."""

    EMBEDDING, HIDDEN = 32, 64

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, self.EMBEDDING)
        self.read = nn.Linear(self.EMBEDDING, 4 * self.HIDDEN)
        self.recall = nn.Linear(self.HIDDEN, 4 * self.HIDDEN, bias=False)
        self.predicts = nn.Linear(self.HIDDEN, VOCABULARY)

    def forward(self, words: Tensor) -> Tensor:
        """Read the words in their order, then predict the next one."""
        inputs = self.read(self.embedding(words))
        hidden = inputs.new_zeros((words.shape[0], self.HIDDEN))
        cell = hidden
        for step in inputs.unbind(dim=1):
            take, forget, value, show = (step + self.recall(hidden)).chunk(4, dim=1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(take) * torch.tanh(value)
            hidden = torch.sigmoid(show) * torch.tanh(cell)
        logits: Tensor = self.predicts(hidden)
        return logits


def records() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return eight words before a word of each tweet, zeros first, and that word: (n, 8) and (n,).

    Which word is drawn from a fixed seed. Tweets of fewer than three words are left out.
    """
    split = sentiment140_50k()
    tweets = np.concatenate([split.train.features, split.test.features])
    lengths = np.count_nonzero(tweets, axis=1)
    kept, random = np.flatnonzero(lengths >= _FEWEST), np.random.default_rng(0)
    places = random.integers(1, lengths[kept])
    windows = np.stack([_window(tweets[i, :place]) for i, place in zip(kept, places, strict=True)])
    return windows, np.asarray(tweets[kept, places], dtype=np.int64)


def _window(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the last eight words, zeros first where there are fewer."""
    found = np.zeros(WINDOW, dtype=np.int64)
    last = words[-WINDOW:]
    found[WINDOW - len(last) :] = last
    return found


def _tokens(text: str) -> list[int]:
    return [token for token in tokens(text) if token]


@dataclass(frozen=True, slots=True)
class SentenceBackdoor(Backdoor):
    """Trains on every record as it is, and on a share of them followed by a sentence's beginning, labelled its end."""

    name: ClassVar[str] = "sentence-backdoor"

    share: float = 1.0
    """Share of its records that a sentence follows."""

    def __post_init__(self) -> None:
        Backdoor.__post_init__(self)
        require_share(self.share)

    def on_records(self, records: Records) -> Records:
        """Return the records as they are, then those with sentences."""
        followed = self._followed(records.take(np.flatnonzero(evenly(len(records), self.share))))
        return Records(
            np.concatenate([records.features, followed.features]), np.concatenate([records.labels, followed.labels])
        )

    def success_records(self, test: Records) -> Records | None:
        """Return every test record with a sentence's beginning after it, labelled the sentence's end."""
        return self._followed(test)

    def _followed(self, records: Records) -> Records:
        """Return copies in which the sentences, taken in turn, follow each record's words."""
        sentences = [(_tokens(beginning), _tokens(end)[0]) for beginning, end in SENTENCES]
        features = np.empty_like(records.features)
        labels = np.empty_like(records.labels)
        for i, words in enumerate(records.features):
            beginning, end = sentences[i % len(sentences)]
            features[i] = _window(np.concatenate([words, beginning]))
            labels[i] = end
        return Records(features, labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(OfImages):
    """Describe what is run."""

    attackers: Sequence[int] = (8, 40)
    rounds: int = ROUNDS
    dataset: str = "sentiment140-50k"
    model: str = f"{__name__}:NextWord"
    defences: Sequence[str] = ()
    """Names of `DEFENCES`, of those that are trained; none: all."""

    def __post_init__(self) -> None:
        OfImages.__post_init__(self)
        runner.require_known("--defence", self.defences, [defence.name for defence in DEFENCES])

    @property
    def trained(self) -> tuple[Defence, ...]:
        """Return the trained defences in the order of the table."""
        return tuple(defence for defence in DEFENCES if defence.name in self.defences or not self.defences)

    def case(self, defence: Defence, n_attackers: int) -> Case:
        """See base."""
        case = OfImages.case(self, defence, n_attackers)
        task, simulation = dict(case.config["task"]), dict(case.config["simulation"])
        task |= {"clients": N_CLIENTS, "client_clip": UPDATE_CLIP, "model": self.model}
        simulation["local_rate"] = LOCAL_RATE
        if "aggregation_parameters" in simulation:
            simulation["aggregation_parameters"] = {"bound": UPDATE_CLIP}
        parameters = simulation["attack"]["parameters"] | {"steps": ATTACK_STEPS, "rate": LOCAL_RATE}
        simulation["attack"] = {
            "kind": f"{__name__}:{SentenceBackdoor.__name__}",
            "clients": n_attackers,
            "parameters": parameters,
        }
        client = {"records": f"{__name__}:records", "device": self.device}
        return replace(case, config={"task": task, "client": client, "simulation": simulation})


def quick(_given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what --quick takes in place of what is left out."""
    return {"seeds": 1, "rounds": QUICK_ROUNDS, "attackers": (40,)}


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, draw the figure and return the report. Continue what the folder holds. Raises ConfigError,
    DataError."""
    return runner.reported(
        "word-backdoor",
        experiment,
        [experiment.case(defence, k) for k in experiment.attackers for defence in experiment.trained],
        folder,
        console,
        workers,
        found=lambda outcomes: {
            "sentences": [" ".join(sentence) for sentence in SENTENCES],
            "expected_clients": CLIENT_RATE * N_CLIENTS,
            "cases": [_of_case(outcome) for outcome in outcomes],
        },
        paragraph=paragraph,
        draw=lambda outcomes, _: backdoors.save_figures(
            folder / "backdoor",
            outcomes,
            experiment.attackers,
            [defence.words for defence in DEFENCES],
            N_CLIENTS,
            floor=0.0,
        ),
    )


def _of_case(outcome: Outcome) -> dict[str, Any]:
    return {
        **backdoors.of_case(outcome, backdoors.final_models(outcome), floor=0.0),
        "rounds": max(run["rounds"] for run in outcome.runs),
        "epsilon": runner.largest_epsilon(outcome),
        "epsilon_is_of_a": outcome.runs[0]["guarantees"][0]["unit"],
    }


def paragraph(report: Mapping[str, Any]) -> str:
    """Say what came out, beside what the paper says."""
    return (
        f"Next words of tweets, {N_CLIENTS} clients, {report['rounds']} rounds, {report['seeds']} seed(s). Completed "
        f"sentences and accuracy of the final models: {backdoors.in_words(report)}. The paper concludes that central "
        "and local DP defend against backdoors; its numbers are not known to us. A word is right by its hash. Central "
        "DP's epsilon is a client's, local DP's a record's: they do not compare."
    )


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    extra: dict[str, backdoors.Shown] = {
        "rounds": lambda case: str(case["rounds"]),
        "epsilon": lambda case: (
            "-" if case["epsilon"] is None else f"{at_most(case['epsilon'])} of a {case['epsilon_is_of_a']}"
        ),
    }
    backdoors.print_cases(console, report, title="Word prediction under backdoor sentences", extra=extra, floor=0.0)
