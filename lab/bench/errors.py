"""Define what the benchmarks raise.

    BenchmarkError (DeployError)                one clear line, exit code 1
    ├── WrongVerdictError                       a measured check accepted what it must reject, or the other way round
    ├── ProcessFailedError                      a measured process ended with an error
    └── PlotUnavailableError (ConfigError)      a plot was asked for and matplotlib is not installed; exit code 2

A peer that is not installed is no error: it is left out, and the report says so.
"""

from __future__ import annotations

from precad.deploy.errors import ConfigError, DeployError


class BenchmarkError(DeployError):
    """Base of this package's errors."""


class WrongVerdictError(BenchmarkError):
    """A benchmark of a check that is wrong is worth nothing, so there is none."""


class ProcessFailedError(BenchmarkError):
    """A process did not reach its end; names it and quotes its last words."""


class PlotUnavailableError(BenchmarkError, ConfigError):
    """A plot was asked for, and matplotlib is missing."""
