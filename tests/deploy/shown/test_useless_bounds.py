"""A bound that is too large to mean anything is called that, wherever people read; its figure is in JSON alone."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path

import pytest
from rich.console import Console

from precad.deploy.localhost.summary import print_summary
from precad.deploy.oversight.status_shown import status_table
from precad.deploy.reporting.guarantees import guarantees_of
from precad.deploy.reporting.key_figures import key_figures
from precad.deploy.reporting.numbers import Format
from precad.deploy.reporting.numbers import shown as on_page
from precad.deploy.reporting.run_folder import read_deployed
from precad.deploy.reporting.write import Report
from precad.deploy.shown.figures import LARGEST_USEFUL, NO_USEFUL_BOUND, at_most, says_nothing, shown, three_digits
from precad.dp.accountants.pld import Label, View
from precad.lab.simulation.guarantee import Guarantee
from precad.servers.telemetry.status import Status, epsilons_of
from tests.deploy.localhost.test_watch import round_of
from tests.deploy.localhost.test_watch import shown as table_of
from tests.harness.harness import small_task
from tests.harness.run_folders import changed, deployed

ROOT = Path(__file__).resolve().parents[3]
USELESS = 57_700.0
"""A whole client's epsilon of a run in the setting of PRECAD's Figure 2."""


def test_the_odds_that_such_a_bound_allows() -> None:
    """e^100 changes odds of one in 10^43 to even ones: no prior that anybody has is beyond that."""
    assert math.exp(LARGEST_USEFUL) > 1e43
    assert [says_nothing(e) for e in (0.0, 100.0, 100.001, USELESS, math.inf)] == [False, False, True, True, False]


@pytest.mark.parametrize("write", [at_most, three_digits, lambda e: shown(e, Label.BOUND)])
def test_a_figure_is_written_up_to_there(write) -> None:
    assert write(USELESS) == NO_USEFUL_BOUND
    assert write(99.994) in {"<= 100", "<= 100.00", "<= 99.994"}
    assert write(2.5) in {"<= 2.5", "<= 2.50", "<= 2.500"}
    assert on_page(USELESS, Format.EPSILON) == NO_USEFUL_BOUND
    assert on_page(math.inf, Format.EPSILON) == write(math.inf) == "no bound"


def test_a_page_says_it_and_its_figures_file_has_the_number(tmp_path: Path) -> None:
    """Text, chart and script hold none of its digits."""
    run = deployed(tmp_path / "run")
    useless = {"epsilon_one_server": USELESS, "realised_epsilon_one_server": USELESS, "epsilon_client": USELESS}
    changed(run / "summary.json", **useless)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["epsilon_one_server"] = USELESS
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = Report.of([run]).html()
    assert NO_USEFUL_BOUND in page
    assert not re.search(r"57.?700", page)
    found = read_deployed(run)
    figures = {figure.name: figure for figure in key_figures(found)}
    (name,) = [name for name in figures if "record, against one" in name and name.endswith("discarded or not")]
    assert (figures[name].shown, figures[name].exact) == (NO_USEFUL_BOUND, USELESS)
    row = next(row for row in guarantees_of(found, "none") if not row.is_proved)
    assert row.rests_on == "no useful bound: ε is above 100"


def test_a_terminal_says_it(tmp_path: Path) -> None:
    """The table of rounds, the summary, a status and a simulation's sentence."""
    table = table_of(120, [round_of(0, epsilon_one_server=USELESS)])
    assert "none: no useful bound, as it is above 100" in table
    assert "57700" not in table
    assert "no useful bound" not in table_of(120, [round_of(0)])

    task = small_task(rounds=3)
    summary = json.loads((deployed(tmp_path / "run") / "summary.json").read_text())
    file = io.StringIO()
    print_summary(Console(file=file, width=160), summary | {"epsilon_one_server": USELESS}, task)
    assert NO_USEFUL_BOUND in file.getvalue()
    assert "57700" not in file.getvalue()

    epsilons = epsilons_of(task, {View.ONE_SERVER: USELESS, View.CLIENTS_ONLY: 1.0})
    status = Status(
        role="a", version="1", state="x", since=0, started_at=0, is_ready=True, epsilons=epsilons, rounds_planned=3
    )
    Console(file=file, width=160).print(status_table({"a": status}))
    assert "no useful bound (no budget)" in " ".join(file.getvalue().split())

    sentence = str(Guarantee(unit="record", against="one server", epsilon=USELESS, delta=1e-5))
    assert sentence.startswith("no useful bound at delta = 1e-05 for one record")


def test_the_scripts_of_both_pages_have_the_same_limit() -> None:
    for script in ("servers/operations/dashboard/dashboard.js", "deploy/reporting/assets/report.js"):
        text = (ROOT / script).read_text()
        assert re.findall(r"LARGEST_USEFUL = (\d+);", text) == [f"{LARGEST_USEFUL:g}"]
        assert f'"{NO_USEFUL_BOUND}"' in text
