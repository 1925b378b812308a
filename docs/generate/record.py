"""Run the command of a row of `docs/results/papers/rows.toml`, and record what came out.

    python -m docs.generate.record ROW [--first-seed N] [--name NAME] [--output DIR]
                                       [--threads N] [--workers N] [--device DEVICE]

writes `docs/results/papers/NAME.json`: the command as it ran, date, version, machine, seeds, and the report of
`--json`. `--output` continues the trainings of a folder. A row that draws nothing takes `--name` alone. The command has
the lowest priority, so that it takes idle cores.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from docs.generate.papers import FOLDER
from precad.lab.bench import machine

ROOT: Final = FOLDER.parents[2]
_COMMAND: Final = "from precad.deploy.cli.main import main; main()"
_NOT_KEPT: Final = ("output", "peers_python")
"""Fields of a report that say where something lay on the machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one row's command and write its record. Return the command's exit status."""
    given = _parsed(arguments)
    declared = tomllib.loads((FOLDER / "rows.toml").read_text(encoding="utf-8"))["row"]
    row = next((one for one in declared if one["id"] == given.row), None)
    if row is None or "command" not in row:
        print(f"ROW: expected the id of a row with a command, found {given.row!r}", file=sys.stderr)
        return 2
    extra = [f"--{name}={value}" for name, value in _extra(given).items()]
    facts = {name: value for name, value in machine.facts().items() if name != "kernel"}
    began = datetime.now(UTC)
    words = [*shlex.split(row["command"]), *extra]
    done = subprocess.run(
        ["nice", "-n", "19", sys.executable, "-c", _COMMAND, *words[1:], "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        return done.returncode
    report = json.loads(done.stdout)
    record = {
        "row": row["id"],
        "command": row["command"],
        "ran": shlex.join(word for word in words if not word.startswith("--output")),
        "date": began.date().isoformat(),
        "version": _version(),
        "machine": facts,
        "first_seed": given.first_seed or 0,
        "seeds": report.get("seeds", 0),
        "report": {name: value for name, value in report.items() if name not in _NOT_KEPT},
    }
    path = FOLDER / f"{given.name or row['id']}.json"
    path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(f"written: {path.relative_to(ROOT)}")
    return 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m docs.generate.record", description="Record a result.")
    parser.add_argument("row", metavar="ROW")
    parser.add_argument("--first-seed", type=int)
    parser.add_argument("--name")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--device")
    return parser.parse_args(arguments)


def _extra(given: argparse.Namespace) -> dict[str, Any]:
    found = {"first-seed": given.first_seed, "threads": given.threads, "workers": given.workers, "device": given.device}
    found["output"] = None if given.output is None else given.output.absolute()
    return {name: value for name, value in found.items() if value is not None}


def _version() -> str:
    """Return the commit, marked where a file other than a result differs from it."""
    done = subprocess.run(["git", "describe", "--always"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ".", ":!docs/results"], cwd=ROOT, check=False)
    return done.stdout.strip() + ("-dirty" if changed.returncode else "")


if __name__ == "__main__":
    sys.exit(main())
