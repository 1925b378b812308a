"""Five organisations that start by kits, each with a folder of its own; transports between them are copies of files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from precad.deploy.cli import main as cli
from tests.harness.command_line import CliRunner
from tests.harness.organisations import CLIENTS, NAMES

SERVERS = ("aggregator-a", "aggregator-b")
PARTICIPANTS = (*SERVERS, *CLIENTS)
SHORTER = {"rounds = 10": "rounds = 3", "3600.0": "120.0"}


def tried(*arguments: object) -> tuple[int, str]:
    """Return the exit code, and what was said without the breaks of a terminal."""
    found = CliRunner().invoke(cli.app, [str(a) for a in arguments], prog_name="precad")
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found.exit_code, found.output


def precad(*arguments: object) -> str:
    """Return what a command said that had to succeed."""
    code, said = tried(*arguments)
    assert code == 0, said
    return said


@dataclass
class Project:
    """Record what was typed, and where: `owner` stands for one machine, `<participant>` for each other's."""

    root: Path
    precad: Callable[..., str]
    """Runs `precad ARGUMENTS` to its end and returns what it said."""
    commands: list[tuple[str, ...]] = field(default_factory=list)
    """Every command of precad that anybody typed."""

    def type(self, *arguments: object) -> str:
        """Run a command of an operator."""
        self.commands.append(tuple(map(str, arguments)))
        return self.precad(*self.commands[-1])

    @property
    def start(self) -> Path:
        """The owner's folder."""
        return self.root / "owner" / "start"

    def home(self, participant: str) -> Path:
        """Return what stands for /etc/precad of a machine."""
        return self.root / participant / "precad"

    def kit(self, participant: str) -> Path:
        """Where a kit arrives at its organisation."""
        return self.root / participant / "received"

    def join(self, participant: str, agreed: str) -> tuple[str, ...]:
        """Return the command that an organisation types to join and start."""
        return ("join", str(self.kit(participant)), str(self.home(participant)), "--agreed", agreed)

    def begin(self, addresses: Mapping[str, str]) -> None:
        """Write project and task, and agree on them. addresses: by server, and B's `lane`."""
        self.type("init", "deployment", self.start)
        changes = {**SHORTER, '"csv:/srv/': '"csv:', "0.0.0.0:7003": addresses["lane"]}
        for server in SERVERS:
            changes |= {NAMES[server]: addresses[server], f"0.0.0.0:{NAMES[server][-4:]}": addresses[server]}
        for name in ("task.toml", "project.toml"):
            self.replace(self.start / name, changes)
        self.replace(self.start / "project.toml", {'operations_listen = "127.0.0.1:9464"\n': ""})

    @staticmethod
    def replace(path: Path, changes: Mapping[str, str]) -> None:
        """Edit a file as a person would."""
        text = path.read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        path.write_text(text)

    def request(self) -> None:
        """Let everybody make a key, and send the request."""
        (self.start / "requests").mkdir()
        for participant in PARTICIPANTS:
            who = ("--role", participant) if participant in SERVERS else ("--role", "client", "--name", participant)
            self.type("pki", "request", self.home(participant), *who)
            asked = self.home(participant) / participant / "request.pem"
            shutil.copy(asked, self.start / "requests" / f"{participant}.pem")

    def provision(self) -> str:
        """Make the kits, send each to its organisation, and return the project's digest as it is shown."""
        said = self.type("provision", self.start / "project.toml")
        for participant in PARTICIPANTS:
            shutil.copytree(self.start / "kits" / participant, self.kit(participant))
        found = re.search(r"^project digest +([0-9a-f]{64})$", said, re.MULTILINE)
        assert found is not None, said
        return found[1]

    def give_records(self) -> None:
        """Let each client have a part of the made-up table, where its configuration looks for it."""
        header, *rows = (self.start / "client" / "records.csv").read_text().splitlines()
        for i, client in enumerate(CLIENTS):
            table = self.home(client) / client / "records" / f"{client}.csv"
            table.parent.mkdir()
            table.write_text("\n".join([header, *rows[i :: len(CLIENTS)]]) + "\n")
