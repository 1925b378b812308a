"""`precad report`: runs as a page and as figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precad.deploy.cli.common import Json, exit_codes, say, tell, write_json


@exit_codes()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Show these folders of `precad demo`, `run`, `query` or `simulate`."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE.html", help="Write the page here; by default to report.html in the run's folder."
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="DIR", help="Write PNG files here; by default to figures/ beside the page."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about one or several runs, which works offline, and its plots as PNG."""
    from precad.deploy.errors import ConfigError
    from precad.deploy.reporting import figures as png
    from precad.deploy.reporting.folders import require_run_folder
    from precad.deploy.reporting.write import Report, require_writable, write_files
    from precad.deploy.run_files.folder import RunFolder

    if output is None and len(runs) > 1:
        raise ConfigError("--output: expected a file for a report of several runs, found none")
    if output is None:
        require_run_folder(runs[0])
    page = output or RunFolder(runs[0]).report
    folder = figures or page.parent / "figures"
    if figures is not None:
        png.require_matplotlib()
    require_writable(page, folder)
    found = Report.of(runs)
    files = {page: found.html().encode()}
    try:
        files |= {folder / name: content for name, content in png.png_files(found.charts).items()}
    except ConfigError as error:
        say(f"no PNG figures: {error}")
    write_files(files)
    tell(f"report  {page}" + (f"\nfigures {folder}" if len(files) > 1 else ""))
    if as_json:
        written = {"page": str(page), "figures": [str(path) for path in files if path != page]}
        write_json(written | found.to_json(), allow_nan=False)
