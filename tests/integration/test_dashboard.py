"""The dashboard in a real browser, served by real servers, at the size of a desk and of a phone.

What counts as failure:
- a round, a verdict with its reason or an epsilon that is on the server's disk is not on the page, without a reload;
- the page asks any other host for anything, breaks its own policy, or throws;
- text that came from outside enters the page as anything but text;
- text is too faint to read (WCAG 2.1 AA), a control has no name, or a phone has to scroll sideways.

Skipped where there is no Chromium. With PRECAD_SCREENSHOTS=DIR the screenshots stay, to be looked at.
"""

from __future__ import annotations

import asyncio
import base64
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from precad.dp.accountants.pld import View
from precad.protos.tls.identity import Role
from precad.servers.operations.access import Token
from precad.servers.operations.port import OperationsPort
from precad.servers.rounds.sessions import Sessions
from precad.servers.telemetry.events import Telemetry
from precad.servers.telemetry.status import (
    AbsentClient,
    Checkpoint,
    ClientOutcome,
    ClientStanding,
    Epsilon,
    LiveRound,
    Queue,
    RoundSummary,
    Status,
)
from tests.harness.browser import Page, chromium, find_chromium
from tests.harness.harness import Pki, asynchronous, small_task, until
from tests.integration.test_operations import CLIENTS, TOKEN, join_all, submission, tampered, watched
from tests.servers.operations.test_client_table import snapshots
from tests.servers.telemetry import test_audit_file as audit_file

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium in PATH, and PRECAD_CHROMIUM names none")
DESK, PHONE = (1280, 900), (390, 844)

FAINT = """(() => {
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length === 4 ? n : [...n, 1]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const [text, node] = [walker.currentNode.textContent.trim(), walker.currentNode.parentElement];
    if (!text || !node.getClientRects().length || ["SCRIPT", "TITLE", "title"].includes(node.tagName)) continue;
    const style = getComputedStyle(node);
    const ink = parse(node instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(node))].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (isLarge ? 3 : 4.5)) faint.push(`${text}: ${ratio.toFixed(2)}`);
  }
  return faint;
})()"""

UNNAMED = """(() => {
  const faults = [];
  const controls = document.querySelectorAll("a, button, input, summary");
  const hasName = (node) => node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length;
  for (const node of controls) if (!hasName(node)) faults.push(node.outerHTML);
  for (const node of document.querySelectorAll("img")) if (!node.hasAttribute("alt")) faults.push(node.outerHTML);
  for (const node of document.querySelectorAll("svg, [role=progressbar]"))
    if (!node.getAttribute("aria-label")) faults.push(node.outerHTML.slice(0, 80));
  for (const node of document.querySelectorAll("[aria-labelledby], [aria-describedby]"))
    if (!document.getElementById(node.getAttribute("aria-labelledby") ?? node.getAttribute("aria-describedby")))
      faults.push(node.outerHTML.slice(0, 80));
  for (const node of controls) {
    const box = node.getBoundingClientRect();
    const isInline = getComputedStyle(node).display === "inline" || node.matches(".skip");
    if (box.width && !isInline && box.height < 24) faults.push(`small: ${node.outerHTML.slice(0, 80)}`);
  }
  const levels = [...document.querySelectorAll("h1, h2, h3")].map((node) => Number(node.tagName[1]));
  if (levels.filter((level) => level === 1).length !== 1) faults.push("not one h1");
  if (levels.some((level, i) => i && level > levels[i - 1] + 1)) faults.push("a level of headings is left out");
  if (document.documentElement.lang !== "en" || !document.title) faults.push("no language or no title");
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  if (new Set(ids).size !== ids.length) faults.push("an id stands twice");
  return faults;
})()"""


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


def text_of(selector: str) -> str:
    return f"document.querySelector({selector!r})?.textContent ?? ''"


def says(selector: str, text: str) -> str:
    return f"({text_of(selector)}).includes({text!r})"


async def sign_in(page: Page, url: str, token: str = TOKEN) -> None:
    """As a person does."""
    await page.goto(f"{url}/")
    await page.evaluate("document.querySelector('#token').focus()")
    await page.call("Input.insertText", text=token)
    await page.evaluate("document.querySelector('form').requestSubmit()")


async def require_readable(page: Page, name: str) -> None:
    """At both sizes and in both schemes: no faint text, no nameless control, nothing beside the screen."""
    for size in (DESK, PHONE):
        for scheme in ("dark", "light"):
            await page.look_like(*size, scheme)
            await asyncio.sleep(0.2)  # charts are drawn to the new width
            assert await page.evaluate("document.documentElement.scrollWidth") <= size[0], (name, size)
            assert await page.evaluate(FAINT) == [], (name, size, scheme)
            assert await page.evaluate(UNNAMED) == [], (name, size, scheme)
            picture = await page.screenshot()
            assert picture.startswith(b"\x89PNG")
            if (folder := os.environ.get("PRECAD_SCREENSHOTS")) is not None:
                Path(folder, f"{name}-{size[0]}-{scheme}.png").write_bytes(picture)


def rounded_up(epsilon: float) -> str:
    return f"{math.ceil(epsilon * 100) / 100:.2f}"


@asynchronous
async def test_rounds_appear_as_they_happen(pki: Pki, tmp_path: Path) -> None:
    """Signed in before the first upload; two rounds later, without a reload, the page says what the records say."""
    task = small_task(rounds=3, epsilon_budget_one_server=50.0)
    assert CHROMIUM is not None
    async with watched(task, pki, tmp_path) as watch, chromium(CHROMIUM, tmp_path / "browser") as page:
        url = watch.sources[0].url
        clients = await join_all(watch.deployment)
        await page.look_like(*DESK)
        await sign_in(page, url, "a wrong one that is long enough")
        await page.until(says("#message", "not this server's token"))
        await require_readable(page, "sign-in")
        await sign_in(page, url)
        await page.until(says("#connection", "Live"))
        await page.until(says("#live-clients", "alice: waiting"))
        await page.until(says("#tiles .warn + .note", "waits for 3 clients, "))
        await page.evaluate("window.stayed = true")

        too_long = round(2 * task.client_clip * 2**task.frac_bits)
        made = {
            name: await submission(client, too_long if name == "mallory" else 1) for name, client in clients.items()
        }
        await clients["alice"].submit(made["alice"])
        await page.until("!document.querySelector('#live-clients').textContent.includes('alice')")
        await tampered(clients["bob"], made["bob"])
        await clients.pop("bob").leave()
        await clients["mallory"].submit(made["mallory"])
        await page.until(says("#tiles", "1 of 3"))
        for name, client in clients.items():
            await client.submit(await submission(client, too_long if name == "mallory" else 1))
        await page.until(says("#tiles", "2 of 3"))

        await until(lambda: len(watch.deployment.rounds(0)) == 2)
        first, second = watch.deployment.rounds(0)
        await page.until(says("#announcer", "Round 1 committed: 1 accepted, 1 rejected, 1 missing."))
        for record, item, reason in ((second, 1, "not connected"), (first, 2, "bytes differ from their digest")):
            row = f"#rounds-list > li:nth-child({item})"
            assert await page.evaluate(says(row, "mallory: rejected, norm above the bound"))
            assert await page.evaluate(says(row, f"bob: missing, {reason}"))
            assert await page.evaluate(says(row, f"ε {rounded_up(record['epsilon_one_server'])} / "))
            assert await page.evaluate(says(row, record_digest(record)[:16]))
        await page.until(says("#live-clients", "bob: not connected"))
        await page.until(says("#tiles", "absent: bob since "))
        await page.until(says("#tiles", " left"))
        cells = "[...row.children].map((cell) => cell.textContent)"
        standings = f"[...document.querySelectorAll('#clients-rows tr')].map((row) => {cells})"
        bob, mallory, alice = await page.evaluate(standings)
        assert (bob[0], bob[2:], mallory, alice) == (
            "bob",
            ["0", "0", "2"],
            ["mallory", "connected", "0", "2", "0"],
            ["alice", "connected", "2", "0", "0"],
        )
        assert re.fullmatch(r"\d\d:\d\d:\d\d", bob[1])
        assert await page.evaluate(says("#happened-list", "Round 1 was committed: 1 accepted, 1 rejected, 1 missing."))
        assert await page.evaluate(says("#happened-list", "bob left."))
        spent = f"ε ≤ {rounded_up(second['epsilon_one_server'])}"
        assert await page.evaluate(says('[data-view="one_server"]', spent))
        assert await page.evaluate(says('[data-view="one_server"]', "of a budget of 50"))
        assert await page.evaluate(says("#refused-list", "bytes differ from their digest"))
        assert await page.evaluate("document.querySelectorAll('#timings-rows tr').length") == 8
        assert await page.evaluate("fetch('/checkpoints/model.npy').then((answer) => answer.status)") == 200
        assert await page.evaluate("document.cookie") == ""
        await page.evaluate("document.querySelector('#rounds-list summary').click()")
        await require_readable(page, "dashboard")
        assert await page.evaluate("window.stayed") is True
        await page.evaluate("document.querySelector('header form').requestSubmit()")
        await page.until("location.pathname === '/login'")

        elsewhere = [address for address in page.requests if not address.startswith((url, "data:", "about:"))]
        assert elsewhere == []
        assert all(TOKEN not in address for address in page.requests)
        assert page.complaints == []


def record_digest(record: dict[str, Any]) -> str:
    return base64.b64decode(record["model_digest"]).hex()


HOSTILE = "<img src=http://evil.example/x onerror=window.caught=1><script>window.caught=1</script>\"'&{{role}}"


def hostile_status() -> Status:
    """Every string that a server could be made to say, as an attacker would have it; and very long ones."""
    outcomes = tuple(
        ClientOutcome(client=f"{i}{HOSTILE}", verdict=verdict, reason=HOSTILE if i else "constructor")
        for i, verdict in enumerate(("rejected", "missing", "accepted"))
    )
    rounds = tuple(
        RoundSummary(
            round=i,
            n_chosen=10**4,
            n_accepted=1,
            n_rejected=1,
            n_missing=1,
            seconds={HOSTILE: 1.0, "collect": 1e-9, "validate": 1e6},
            bytes={},
            epsilon={View.ONE_SERVER: 1e9, View.CLIENTS_ONLY: 0.0},
            model_digest=HOSTILE,
            outcomes=outcomes,
        )
        for i in range(30)
    )
    return Status(
        role=HOSTILE,
        version=HOSTILE,
        task="x" * 500,
        state=HOSTILE,
        since=0.0,
        started_at=0.0,
        is_ready=True,
        ended=HOSTILE,
        clients=(ClientStanding(client=HOSTILE, rejected=10**9, absent_since=1e9),),
        absent=tuple(AbsentClient(client=f"{i}{HOSTILE}", since=0.0) for i in range(5)),
        rounds_planned=10**6,
        rounds_done=30,
        live=LiveRound(
            round=31, phase=HOSTILE, began_at=0.0, n_chosen=3, n_complete=1, n_receiving=0, outcomes=outcomes
        ),
        uploads={HOSTILE: 1},
        refused={HOSTILE: 10**12, "__proto__": 3},
        bytes={HOSTILE: 10**15},
        epsilons=(Epsilon(view=View.ONE_SERVER, spent=1e9, budget=1e-9, delta=1e-5),),
        queues=(Queue(name=HOSTILE, depth=10**9),),
        rounds=rounds,
        checkpoints=(Checkpoint(name=f"../{HOSTILE}", n_bytes=10**12, modified_at=0.0),),
    )


@asynchronous
async def test_hostile_names_and_reasons_are_text(tmp_path: Path) -> None:
    """Nothing of them is an element, runs, or is fetched; and the page still fits a phone."""
    assert CHROMIUM is not None
    telemetry = Telemetry(Role.AGGREGATOR_A)
    operations = OperationsPort(Token(TOKEN), telemetry, hostile_status, None, is_tls=False)
    async with operations.listening("127.0.0.1:0", None) as number, chromium(CHROMIUM, tmp_path / "browser") as page:
        await page.look_like(*PHONE)
        await sign_in(page, f"http://127.0.0.1:{number}")
        await page.until(says("#connection", "Live"))
        for place in (
            "#role",
            "#tiles",
            "#clients-rows",
            "#happened-list",
            "#live-clients",
            "#rounds-list",
            "#banner",
            "#refused-list",
            "#checkpoints-list",
        ):
            assert await page.evaluate(says(place, HOSTILE[:60])), place
        await page.evaluate("document.querySelectorAll('summary').forEach((summary) => summary.click())")
        await require_readable(page, "hostile")
        assert await page.evaluate("window.caught") is None
        assert await page.evaluate("document.querySelectorAll('img').length") == 1
        assert await page.evaluate("document.querySelectorAll('script').length") == 1
        assert not [address for address in page.requests if "evil" in address]
        assert page.complaints == []


@asynchronous
async def test_an_audit_appears_beside_the_proved_figures_without_a_reload(tmp_path: Path) -> None:
    """Rounded down, with its own label; and in words where it contradicts what is proved."""
    assert CHROMIUM is not None
    telemetry = Telemetry(Role.AGGREGATOR_A)
    taken = snapshots(telemetry, Sessions(("alice", "bob", "mallory")), tmp_path)
    operations = OperationsPort(Token(TOKEN), telemetry, taken.take, None, is_tls=False)
    async with operations.listening("127.0.0.1:0", None) as number, chromium(CHROMIUM, tmp_path / "browser") as page:
        await page.look_like(*DESK)
        await sign_in(page, f"http://127.0.0.1:{number}")
        await page.until(says("#connection", "Live"))
        await page.until(says('[data-view="one_server"]', "so far"))
        assert not await page.evaluate(says("#epsilons", "audit"))
        audit_file.write(tmp_path, audit_file.report())
        shown = "audit (95 %): what an attack showed, of ε ≤ 4.38 proved for the same 20 rounds"
        await page.until(says('[data-view="one_server"] .audit', shown))
        for view, lower in (("one_server", ("3.20", "2.50", "0.00")), ("clients_only", ("2.00", "1.50", "0.75"))):
            names = zip(("per round", "f-DP in one run", "strict in one run"), lower, strict=True)
            told = "".join(f"{name}ε\u00a0≥\u00a0{figure}" for name, figure in names)
            assert await page.evaluate(text_of(f'[data-view="{view}"] dl')) == told
        await require_readable(page, "audit")
        audit_file.write(tmp_path, audit_file.report(passed=False))
        await page.until(says("#epsilons", "The audit contradicts what is proved"))
        await require_readable(page, "contradicted")
        assert page.complaints == []


@asynchronous
async def test_figures_of_evaluations_have_their_error_bars(tmp_path: Path) -> None:
    """In the tile and in the round that made the model; the ends of a bar are no figures of their own."""
    quality = {"accuracy": 0.8125, "accuracy_low": 0.75, "accuracy_high": 0.875, "loss": 1.5, "loss_low": 1.25}
    round = RoundSummary(
        round=4,
        n_chosen=1,
        n_accepted=1,
        n_rejected=0,
        n_missing=0,
        seconds={"collect": 1.0},
        bytes={},
        epsilon=dict.fromkeys(View, 1.0),
        model_digest="ab" * 32,
        quality=quality | {"loss_high": 1.75},
        outcomes=(ClientOutcome(client="alice", verdict="accepted"),),
    )
    status = Status(
        role=Role.AGGREGATOR_A,
        version="0.1.0",
        state="collecting",
        since=0,
        started_at=0,
        is_ready=True,
        evaluation="clients",
        rounds_planned=5,
        rounds_done=5,
        rounds=(round,),
    )
    operations = OperationsPort(Token(TOKEN), Telemetry(Role.AGGREGATOR_A), lambda: status, None, is_tls=False)
    async with operations.listening("127.0.0.1:0", None) as number, chromium(CHROMIUM, tmp_path / "browser") as page:
        await sign_in(page, f"http://127.0.0.1:{number}")
        await page.until(says("#connection", "Live"))
        tiles = await page.evaluate(text_of("#tiles"))
        assert "Accuracy" in tiles
        assert "[0.750, 0.875] at 95 %; on clients' held-out records, round 4; loss 1.500 [1.250, 1.750]" in tiles
        assert "_low" not in tiles
        rounds = await page.evaluate(text_of("#rounds-list"))
        assert "accuracy 0.813 [0.750, 0.875] · loss 1.500 [1.250, 1.750]" in rounds
        assert not page.complaints


@asynchronous
async def test_a_server_that_goes_is_missed(tmp_path: Path) -> None:
    """The page says so, keeps what it knew, and finds the server again when it is back: at the sign-in."""
    assert CHROMIUM is not None
    telemetry = Telemetry(Role.AGGREGATOR_B)
    status = hostile_status().model_copy(update={"role": "aggregator-b", "ended": "", "state": "collecting"})
    operations = OperationsPort(Token(TOKEN), telemetry, lambda: status, None, is_tls=False)
    async with chromium(CHROMIUM, tmp_path / "browser") as page:
        async with operations.listening("127.0.0.1:0", None) as number:
            await sign_in(page, f"http://127.0.0.1:{number}")
            await page.until(says("#connection", "Live"))
        await page.until(says("#connection", "No connection"))
        assert await page.evaluate(says("#role", "Aggregation server B"))
        again = OperationsPort(Token(TOKEN), telemetry, lambda: status, None, is_tls=False)
        async with again.listening(f"127.0.0.1:{number}", None):
            await page.until("location.pathname === '/login'")


@asynchronous
@pytest.mark.parametrize(("is_finished", "kind"), [(True, "over"), (False, "lost")])
async def test_a_server_that_is_done_is_not_missed(is_finished: bool, kind: str, tmp_path: Path) -> None:
    """After a task's own end it goes without an alarm, in the colour of the text; after another end with one."""
    assert CHROMIUM is not None
    changes = {"ended": "30 rounds done", "is_finished": is_finished}
    status = hostile_status().model_copy(update=changes)
    operations = OperationsPort(Token(TOKEN), Telemetry(Role.AGGREGATOR_A), lambda: status, None, is_tls=False)
    async with chromium(CHROMIUM, tmp_path / "browser") as page:
        async with operations.listening("127.0.0.1:0", None) as number:
            await sign_in(page, f"http://127.0.0.1:{number}")
            await page.until(says("#connection", "Live"))
        await page.until(says("#connection", "Server has ended"))
        colour = "getComputedStyle(document.querySelector({!r})).color"
        badge, text = [await page.evaluate(colour.format(place)) for place in ("#connection", "body")]
        assert await page.evaluate("document.querySelector('#connection').dataset.kind") == kind
        assert (badge == text) == is_finished
