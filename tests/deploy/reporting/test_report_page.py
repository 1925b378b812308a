"""The page of `precad report`: it works without a network, runs nobody else's code, and is drawn as it is told.

The last tests look at it in a headless Chromium, where there is one.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from precad.deploy.reporting.charts import MOST_COLUMNS, MOST_POINTS, Kind
from precad.deploy.reporting.numbers import Format, power_of_ten, shown
from tests.harness import browser
from tests.harness.browser import chromium, find_chromium
from tests.harness.command_line import precad
from tests.harness.harness import asynchronous
from tests.harness.report_page import Page, report
from tests.harness.run_folders import (
    asked,
    changed,
    deployed,
    of_bins,
)


def test_the_page_needs_nothing_from_anywhere(run: Path) -> None:
    """No address in it, and a policy that allows its own script and style alone, by hashes computed here."""
    page = report(run)
    fetching = ("src", "href", "srcset", "action", "poster", "data", "background", "ping", "style")
    assert not [a for a in page.attributes if a[1] in fetching or a[1].startswith("on")]
    assert page.tags["link"] == page.tags["img"] == page.tags["iframe"] == 0
    policy = next(v for _, n, v in page.attributes if n == "content" and v is not None and "default-src" in v)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("default-src") == "'none'"
    for name, element in (("script-src", "script"), ("style-src", "style")):
        digest = base64.b64encode(hashlib.sha256(page.raw[element].encode()).digest()).decode()
        assert rules.pop(name) == f"'sha256-{digest}'"
    assert set(rules.values()) == {"'none'"}
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|innerHTML", page.raw["script"] + page.raw["style"])
    assert set(re.findall(r"https?://[^\"' ]*", page.html)) == {"http://www.w3.org/2000/svg"}  # a namespace
    assert len(page.html) < 100_000


HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7 * 7 }}&lt;"


def test_text_of_a_run_folder_is_never_markup(run: Path, simulations: tuple[Path, Path], tmp_path: Path) -> None:
    """Folder, client ids, reasons, models, guarantees: the elements stay those of a harmless page."""
    harmless, hostile = report(run), deployed(tmp_path / HOSTILE.replace("/", "-"))
    changed(hostile / "summary.json", rejected_clients=[HOSTILE], ended=HOSTILE)
    page = report(hostile)
    assert page.tags == harmless.tags
    assert page.text.count(HOSTILE) == 2
    assert "49" not in page.text.split("Plots")[0]
    benign, theirs = shutil.copytree(simulations[1], tmp_path / "b"), shutil.copytree(simulations[1], tmp_path / "t")
    for folder, name in ((benign, "their.code:Algorithm"), (theirs, f"x:{HOSTILE}")):
        raw = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(raw.replace('"non-private"', json.dumps(name)))
        summary = json.loads((folder / "summary.json").read_text())
        summary["seeds"][0]["guarantees"][0] |= {"against": name, "note": name, "epsilon": 1.5}
        (folder / "summary.json").write_text(json.dumps(summary | {"algorithm": name}))
    assert report(theirs).tags == report(benign).tags
    assert HOSTILE in report(theirs).text


def test_the_same_runs_give_the_same_page(run: Path) -> None:
    assert report(run).html == report(run).html


def test_long_runs_are_thinned_and_say_so(tmp_path: Path) -> None:
    """Five thousand rounds: every so many are drawn, the last among them; columns are means of rounds."""
    run = deployed(tmp_path / "run", rounds=5000, noise_multiplier=1000.0)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    spent = [{"round": t, "epsilon_one_server": 1e-3 * t} for t in range(5000)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(lines[t % 3] | spent[t]) + "\n" for t in range(5000)))
    fates = {fate: sum(len(lines[t % 3][fate]) for t in range(5000)) for fate in ("accepted", "rejected", "missing")}
    changed(
        run / "summary.json",
        rounds=5000,
        epsilon_one_server=4.999,
        epsilon_clients_only=0.9,
        realised_epsilon_one_server=4.999,
        realised_epsilon_clients_only=0.41,
        **fates,
    )
    page = report(run)
    points = next(iter(page.series("epsilon").values()))
    assert len(points) <= MOST_POINTS
    assert points[-1] == (5000, 4.999)
    assert f"At most {MOST_POINTS} rounds of a line are drawn" in page.text
    columns = page.series("uploads")["accepted"]
    assert len(columns) <= MOST_COLUMNS
    assert columns[-1][0] == 5000
    assert all(1 <= y <= 2 for _, y in columns if y is not None)
    assert len(page.html) < 300_000


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (2.4902787, Format.EPSILON, "2.50"),
        (0.6, Format.EPSILON, "0.600"),
        (13.657, Format.EPSILON, "13.7"),
        (99.95, Format.EPSILON, "100"),
        (1234.5, Format.EPSILON, "no useful bound"),
        (0.0, Format.EPSILON, "0"),
        (0.99995, Format.SECONDS, "1 s"),
        (0.0274, Format.SECONDS, "27.4 ms"),
        (12_345.6, Format.SECONDS, "12,346 s"),
        (999_900, Format.BYTES, "1 MB"),
        (32, Format.BYTES, "32 B"),
        (1600, Format.COUNT, "1,600"),
        (2 / 3, Format.SHARE, "0.667"),
        (math.inf, Format.EPSILON, "no bound"),
    ],
)
def test_numbers_are_written_for_people(value: float, kind: Format, text: str) -> None:
    assert shown(value, kind) == text


def test_deltas_are_powers_of_ten() -> None:
    assert [power_of_ten(delta) for delta in (1e-5, 0.0029, 1.0)] == ["10⁻⁵", "2.9·10⁻³", "10⁰"]


def test_every_chart_is_a_png_too(run: Path, simulations: tuple[Path, Path], tmp_path: Path) -> None:
    """In figures/ beside the page, or where --figures says; 1200 pixels wide, as their headers say."""
    pytest.importorskip("matplotlib")
    done = precad("report", run, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    page = Page(Path(told["page"]).read_text())
    assert told["page"] == str(run / "report.html")
    assert told["charts"] == page.charts
    assert sorted(told["figures"]) == sorted(str(path) for path in (run / "figures").iterdir())
    assert {path.stem for path in (run / "figures").iterdir()} == set(page.charts)
    where, charts = tmp_path / "all" / "figures", report(run, *simulations).charts
    done = precad("report", run, *simulations, "--output", tmp_path / "page.html", "--figures", where)
    assert done.exit_code == 0, done.output
    assert {chart["kind"] for chart in charts.values()} == {Kind.LINES, Kind.BARS}
    for name in charts:
        header = (where / f"{name}.png").read_bytes()[:24]
        assert header.startswith(b"\x89PNG")
        assert int.from_bytes(header[16:20], "big") == 1200


def test_without_matplotlib_there_is_a_page_and_a_word(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for figures, the command refuses instead, and writes nothing."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused = precad("report", run, "--figures", run / "figures")
    assert refused.exit_code == 2
    assert "--figures needs matplotlib: install 'precad[bench]' from where precad came from" in refused.stderr
    assert not (run / "report.html").exists()
    done = precad("report", run)
    assert done.exit_code == 0
    assert "no PNG figures" in done.stderr
    assert (run / "report.html").exists()


@pytest.mark.slow
def test_the_locale_changes_nothing(run: Path, tmp_path: Path) -> None:
    """The page's bytes are those of this process, whose texts are UTF-8, in a locale that has ASCII alone."""
    here, there = tmp_path / "here.html", tmp_path / "there.html"
    assert precad("report", run, "--output", here).exit_code == 0
    ascii_only = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}
    command = [sys.executable, "-P", "-m", "precad.deploy.cli.main", "report", run, "--output", there]
    subprocess.run(command, env=ascii_only, check=True, capture_output=True, timeout=120)
    assert there.read_bytes() == here.read_bytes()


CHROMIUM = find_chromium()


in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium in PATH, and PRECAD_CHROMIUM names none")


OVERLAPPING = """[...document.querySelectorAll('.plot svg')].flatMap((svg) => {
  const texts = [...svg.querySelectorAll('text')];
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  const edge = svg.getBoundingClientRect();
  const hit = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
  return boxes.flatMap(([name, box], i) => [
    ...(box.left < edge.left - 1 || box.right > edge.right + 1 ? [name] : []),
    ...boxes.slice(i + 1).filter(([, other]) => hit(box, other)).map(([other]) => `${name} on ${other}`),
  ]);
})"""


OF_FIGURE = """((figure) => {
  const texts = (selector) => [...figure.querySelectorAll(selector)].map((node) => node.textContent);
  const last = [...figure.querySelectorAll('tbody tr')].pop();
  return {
    values: texts('.value'), tips: texts('.tip b'), title: texts('.tip p')[0] ?? '', body: texts('tbody td'),
    cells: [...last.querySelectorAll('th, td')].map((node) => node.textContent),
  };
})"""


async def require_drawn(page: browser.Page, n_least: int = 7) -> None:
    """Plots are drawn, within their edges and the screen's, and say in numbers what their tables say."""
    width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await page.evaluate(width) == 0
    n_figures = await page.evaluate("document.querySelectorAll('figure').length")
    assert await page.evaluate("document.querySelectorAll('.plot svg').length") == n_figures >= n_least
    assert await page.evaluate(OVERLAPPING) == []
    for i in range(n_figures):
        figure = f"document.querySelectorAll('figure')[{i}]"
        found = await page.evaluate(f"{OF_FIGURE}({figure})")
        if found["values"]:
            assert sorted(found["values"]) == sorted(found["body"])
            continue
        await page.evaluate(f"{figure}.querySelector('.plot').focus()")
        await page.press("End")
        found = await page.evaluate(f"{OF_FIGURE}({figure})")
        assert sorted(found["tips"]) == sorted(cell for cell in found["cells"][1:] if cell)
        assert found["title"].endswith(f" {found['cells'][0]}")


@in_a_browser
@asynchronous
async def test_a_browser_shows_the_page(run: Path, simulations: tuple[Path, Path], tmp_path: Path) -> None:
    """Nothing is requested, nothing complains, nothing hangs over the edge; plots are drawn and answer."""
    assert CHROMIUM is not None
    path = tmp_path / "page.html"
    path.write_text(report(run, *simulations).html)
    async with chromium(CHROMIUM, tmp_path / "browser") as page:
        for width, scheme in itertools.product((1280, 390), ("light", "dark")):
            await page.look_like(width, 900, scheme)
            await page.call("Emulation.setTouchEmulationEnabled", enabled=width < 500)
            await page.goto(path.as_uri())
            await page.until("document.querySelector('.plot svg') !== null")
            await require_drawn(page)
            if width < 500:
                await page.tap("#uploads .plot")
                await page.until("document.querySelector('#uploads .tip').checkVisibility()")
            button = "document.querySelector('#accuracy .legend button')"
            await page.evaluate(f"{button}.click()")
            assert await page.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
            if (folder := os.environ.get("PRECAD_SCREENSHOTS")) is not None:
                Path(folder, f"report-{width}-{scheme}.png").write_bytes(await page.screenshot())
        assert set(page.requests) == {path.as_uri()}
        assert page.complaints == []


@in_a_browser
@asynchronous
async def test_a_browser_draws_error_bars(tmp_path: Path) -> None:
    """Show two queries within the edges, each bar from its low to its high end."""
    assert CHROMIUM is not None
    one = asked(tmp_path / "one", "histogram", bins=of_bins(-4.0, 70.25, 2.0, reach=6.5))
    other = asked(tmp_path / "other", "histogram", bins=of_bins(*range(61), reach=3.0))
    path = tmp_path / "page.html"
    path.write_text(report(one, other).html)
    async with chromium(CHROMIUM, tmp_path / "browser") as page:
        for width, scheme in ((1280, "dark"), (390, "light")):
            await page.look_like(width, 900, scheme)
            await page.goto(path.as_uri())
            await page.until("document.querySelector('.plot svg') !== null")
            await require_drawn(page, n_least=3)
            heights = "[...document.querySelectorAll('#bins .bar')].map((bar) => bar.getBBox().height)"
            found = await page.evaluate(heights)
            assert len(found) == 3 + 31
            assert found[:3] == pytest.approx([found[0]] * 3, abs=0.1)
            assert found[3] / found[0] == pytest.approx(18**0.5 / 6.5, abs=0.02)
        assert page.complaints == []


@in_a_browser
@asynchronous
async def test_a_browser_runs_nothing_of_a_hostile_folder(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    hostile = deployed(tmp_path / HOSTILE.replace("/", "-"))
    changed(hostile / "summary.json", rejected_clients=[HOSTILE], ended=HOSTILE)
    path = tmp_path / "page.html"
    path.write_text(report(hostile).html)
    async with chromium(CHROMIUM, tmp_path / "browser") as page:
        await page.goto(path.as_uri())
        await page.until("document.querySelector('.plot svg') !== null")
        assert page.requests == [path.as_uri()]
        assert page.complaints == []
        assert await page.evaluate("document.querySelectorAll('img').length") == 0
