"""PRECAD: federated learning that is private and robust, over two servers that need not be trusted alone.

The front door. `simulate` trains in this process, and `run` over real processes on this machine; an `App` brings
records, model and loss of your own. `account` and `certify` say what a training proves, and `audit` what an attack on
it shows. `verify_export` checks a model that somebody hands over. docs/tutorial/library.md shows each of them.

Importing `precad` loads none of its parts: a name here loads what it needs when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from precad.clients.app import App
    from precad.clients.models.adapters import lora
    from precad.deploy.errors import (
        ConfigError,
        ExportRefusedError,
        InterruptedRunError,
        RunFailedError,
        UnfulfilledError,
    )
    from precad.front_door import account, audit, certify, fix, run, simulate, verify_export
    from precad.results import Account, AuditResult, Certificates, RunResult, SimulationResult, VerifiedExport
    from precad.tasks import Task

    __version__: str

__all__ = [
    "Account",
    "App",
    "AuditResult",
    "Certificates",
    "ConfigError",
    "ExportRefusedError",
    "InterruptedRunError",
    "RunFailedError",
    "RunResult",
    "SimulationResult",
    "Task",
    "UnfulfilledError",
    "VerifiedExport",
    "__version__",
    "account",
    "audit",
    "certify",
    "fix",
    "lora",
    "run",
    "simulate",
    "verify_export",
]

_HOMES: Final = {
    "precad.clients.app": ("App",),
    "precad.clients.models.adapters": ("lora",),
    "precad.front_door": ("account", "audit", "certify", "fix", "run", "simulate", "verify_export"),
    "precad.results": ("Account", "AuditResult", "Certificates", "RunResult", "SimulationResult", "VerifiedExport"),
    "precad.tasks": ("Task",),
    "precad.deploy.errors": (
        "ConfigError",
        "ExportRefusedError",
        "InterruptedRunError",
        "RunFailedError",
        "UnfulfilledError",
    ),
}
"""Names by the module that defines them."""


if not TYPE_CHECKING:  # a type checker shall refuse other names, not take them for objects

    def __getattr__(name: str) -> object:
        """Load a name of the front door when it is first used."""
        import importlib

        if name == "__version__":
            from importlib import metadata

            found = metadata.version("precad")
        else:
            home = next((module for module, names in _HOMES.items() if name in names), None)
            if home is None:
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            found = getattr(importlib.import_module(home), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """Return the names of the front door, and those of the module that are loaded."""
    return sorted({*__all__, *globals()})
