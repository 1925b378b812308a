"""Name a foreign trainer: which code, in which interpreter, told what, and how much it may take."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precad.clients.external.kept_state import KeptState


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Name a trainer's code, where it runs, and how much it may take."""

    kind: str
    """`callable`, `flower` or `nvflare`."""
    path: str
    """module:name; the script's file for `nvflare`"""
    folder: Path
    """Where its modules are looked for, and its current folder."""
    python: Path = Path(sys.executable)
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the operator's; Flower's `run_config`."""
    node: Mapping[str, Any] = field(default_factory=dict)
    """Settings of this client's; Flower's `node_config`."""
    message: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the task's."""
    hidden: tuple[Path, ...] = ()
    """Folders and files that it must not read: keys, and what counts uploads."""
    timeout_s: float = 60.0
    """How long a round's training may take."""
    memory_bytes: int = 8 << 30
    threads: int = 1
    is_isolation_required: bool = True
    """Whether it is not started at all where the kernel does not grant every namespace."""
    state: KeptState = field(default_factory=KeptState)
    """Keeps what it leaves for its next process."""
    output: Path | None = None
    """Where what it prints goes; nowhere without a file. It may hold records."""
    has_accuracy: bool = True
    """Whether a record can be right: in evaluations with other targets than classes, none is."""

    @property
    def name(self) -> str:
        """Return what the configuration calls it."""
        return self.path if self.kind == "callable" else f"{self.kind}:{self.path}"
