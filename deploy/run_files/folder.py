"""Name what a run leaves behind, one folder per run:

Contents:

    config.toml       the resolved configuration: `precad run` on it repeats the experiment
    metrics.jsonl     one line per round
    model.pt          the final model, a PyTorch state_dict
    summary.json      the summary that `--json` prints
    report.html       all of it as one page (`precad report`)
    run-state         whether the run goes on, and what became of it (`run_state`)
    logs/             one file per process; logs-1/ and so on of those before the run was continued
    a/ b/             the aggregators' ledgers, burnt tuples, round records and models
    dealer/           which batches were dealt
    clients/          each client's count of its uploads
    pki/              the authority and the certificates of this run
    operations-token  opens the servers' dashboards, in runs that have them

A folder of several trainings holds such folders, and `trainings.json`.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomli_w

from precad.deploy.errors import ConfigError, refusing
from precad.deploy.files.whole import write_whole

TRAININGS: Final = "trainings.json"
"""Name of the file that says what several trainings came to, and which are finished."""
_NAME: Final = re.compile(r"seed-[0-9]{1,6}")


def each_training(folder: Path) -> list[Path]:
    """Return the runs of a folder of several trainings; the folder itself where it is one run. Raises ConfigError."""
    try:
        names = json.loads((folder / TRAININGS).read_text(encoding="utf-8"))["trainings"]
    except FileNotFoundError:
        return [folder]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{folder / TRAININGS}: expected the names of trainings, found something else") from None
    is_named = isinstance(names, list) and bool(names) and all(_NAME.fullmatch(str(name)) for name in names)
    if not is_named:
        raise ConfigError(f"{folder / TRAININGS}: expected names such as seed-0, found others")
    return [folder / name for name in names]


def shown_trainings(folder: Path) -> str:
    """Name the runs of a folder of several, for whoever asks for one. Nothing is named where it is none, or where it
    may not be looked into. Raises ConfigError."""
    try:
        if not (folder / TRAININGS).exists():
            return ""
    except OSError:
        return ""
    runs = [str(run) for run in each_training(folder)]
    return f"{len(runs)} trainings, each a run of its own: {', '.join(runs[:3])}{', ..' if len(runs) > 3 else ''}"


def write_trainings(folder: Path, found: dict[str, Any]) -> None:
    """Write what several trainings came to, which names the finished ones in `trainings`."""
    write_whole(folder / TRAININGS, (json.dumps(found, indent=2) + "\n").encode())


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside one run's folder."""

    root: Path

    @classmethod
    def create(cls, root: Path) -> RunFolder:
        """Create a new folder. Raises ConfigError when it exists and holds anything: a run never overwrites another."""
        with refusing(OSError, f"--output: expected a folder to write to, found {root}"):
            root.mkdir(parents=True, exist_ok=True)
        require_new(root)
        folder = cls(root.absolute())
        folder.logs.mkdir()
        return folder

    @property
    def times_resumed(self) -> int:
        """Return how often the run was continued."""
        return sum(1 for _ in self.root.glob("logs-*"))

    def keep_logs(self) -> None:
        """Put the logs of the processes before aside, for the logs of those that continue the run.

        Whoever was killed in between has put them aside already.
        """
        if self.logs.exists():
            self.logs.rename(self.root / f"logs-{self.times_resumed + 1}")
        self.logs.mkdir()

    @property
    def config(self) -> Path:
        """Return the resolved configuration."""
        return self.root / "config.toml"

    @property
    def logs(self) -> Path:
        """Return the folder with one log file per process."""
        return self.root / "logs"

    @property
    def pki(self) -> Path:
        """Return the folder with the certificates of this run."""
        return self.root / "pki"

    @property
    def initial_model(self) -> Path:
        """Return the public model that training starts from."""
        return self.root / "initial_model.npy"

    @property
    def model(self) -> Path:
        """Return the final model."""
        return self.root / "model.pt"

    @property
    def metrics(self) -> Path:
        """Return the file with one line per round."""
        return self.root / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """Return the path of what `--json` printed."""
        return self.root / "summary.json"

    @property
    def operations_token(self) -> Path:
        """Return the path of the token of the servers' operations ports, in runs that have them."""
        return self.root / "operations-token"

    @property
    def report(self) -> Path:
        """Return the page."""
        return self.root / "report.html"

    def state_dir(self, letter: str) -> Path:
        """Return the state folder of aggregator a or b."""
        return self.root / letter

    @property
    def state_dirs(self) -> tuple[Path, Path]:
        """Return the state folders of both aggregators, that of A first."""
        return self.state_dir("a"), self.state_dir("b")

    def write_config(self, raw: dict[str, Any]) -> None:
        """Write the resolved configuration, as TOML."""
        write_whole(self.config, tomli_w.dumps(raw).encode())

    def write_operations_token(self, token: str) -> None:
        """Write the token, for this user's eyes only."""
        descriptor = os.open(self.operations_token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token + "\n")

    def append_metrics(self, round_metrics: dict[str, Any]) -> None:
        """Append one line per round."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(round_metrics) + "\n")

    def write_all_metrics(self, rounds: list[dict[str, Any]]) -> None:
        """Write the lines of these rounds, and no other."""
        write_whole(self.metrics, "".join(json.dumps(one) + "\n" for one in rounds).encode())

    def outdate(self) -> None:
        """Remove what is not true of a run once it has a further round."""
        for path in (self.summary, self.report):
            path.unlink(missing_ok=True)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write the summary, for people and programs. Where it is, the run is over."""
        write_whole(self.summary, (json.dumps(summary, indent=2) + "\n").encode())


def is_simulated(root: Path) -> bool:
    """Tell whether a folder is of `precad simulate`."""
    return not RunFolder(root).metrics.exists() and any(root.glob("seed-*.jsonl"))


def require_deployed(root: Path, where: str, wanted: str = "a folder of `precad run`") -> None:
    """Raise ConfigError for the folder of a simulation, whose configuration has no servers. where: names the field."""
    if is_simulated(root):
        raise ConfigError(f"{where}: expected {wanted}, found one of `precad simulate`")


def require_new(root: Path) -> None:
    """Raise ConfigError unless the folder is empty or not there."""
    try:
        is_empty = not any(root.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"--output: expected a folder to write to, found {root}: {error.strerror}") from None
    if not is_empty:
        raise ConfigError(f"--output: expected a new or empty folder, found files in {root}")


def default_output(name: str) -> Path:
    """Return runs/<name>-<time>, a folder that does not exist yet. Raises ConfigError."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    candidates = (Path("runs") / f"{name}-{stamp}{suffix}" for suffix in ("", *(f"-{i}" for i in range(2, 1000))))
    with suppress(StopIteration):
        return next(path for path in candidates if not path.exists())
    raise ConfigError("--output: expected a free name under runs/, found none")
