"""A report from run folders to files: everything is made before anything is written, and each file appears whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from precad.deploy.errors import ConfigError, refusing
from precad.deploy.files.whole import write_whole
from precad.deploy.reporting import page
from precad.deploy.reporting.certificates import RunCertificate, certificate_of, with_certificate_note
from precad.deploy.reporting.charts import Chart, charts_of
from precad.deploy.reporting.folders import completed, read_folders
from precad.deploy.reporting.guarantees import sentence
from precad.deploy.reporting.key_figures import key_figures
from precad.deploy.reporting.runs import Run

_HEAD: Final = 4096
"""Bytes of a file in which a page of ours says that it is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Hold what is said of the runs, before it is laid out."""

    runs: tuple[Run, ...]
    certificates: tuple[RunCertificate | str, ...]
    charts: tuple[Chart, ...]

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Report:
        """Raises ConfigError where a folder is not one of a finished run, or the runs cannot be compared."""
        runs = [completed(run) for run in read_folders(paths)]
        certificates = tuple(certificate_of(run) for run in runs)
        noted = tuple(with_certificate_note(run, found) for run, found in zip(runs, certificates, strict=True))
        return cls(runs=noted, certificates=certificates, charts=charts_of(noted, certificates))

    def html(self) -> str:
        """Return the page."""
        return page.render(self.runs, self.certificates, self.charts)

    def to_json(self) -> dict[str, Any]:
        """Return what the page shows, for programs."""
        return {
            "runs": [
                {
                    "folder": str(run.folder),
                    "label": run.label,
                    "sentence": sentence(run, certificate),
                    "figures": {figure.name: figure.exact for figure in key_figures(run)},
                    "configuration": dict(run.configuration),
                    "notes": list(run.notes),
                    **({} if run.answer is None else {"answer": run.answer.to_json()}),
                }
                for run, certificate in zip(self.runs, self.certificates, strict=True)
            ],
            "charts": {chart.key: chart.to_json() for chart in self.charts},
        }


def require_writable(page_file: Path, figures: Path) -> None:
    """Refuse, before anything is computed, to write over a file that is no report. Raises ConfigError."""
    if not page_file.parent.is_dir() or page_file.is_dir():
        raise ConfigError(f"--output: expected a file in an existing folder, found {page_file}")
    if figures.exists() and not figures.is_dir():
        raise ConfigError(f"--figures: expected a folder, found a file: {figures}")
    try:
        with page_file.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"--output: expected a file to write, found {page_file}: {error.strerror}") from None
    if f'content="{page.GENERATOR}"'.encode() not in head:
        raise ConfigError(f"--output: expected a new file or an earlier report, found another file: {page_file}")


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write each in one step: whoever looks finds the file before or the file after. Raises ConfigError."""
    for path, content in files.items():
        with refusing(OSError, f"--output: expected a file to write, found {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
