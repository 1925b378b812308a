"""A link opens one session, once, for whoever had the token; and is worth nothing afterwards."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import aiohttp
import pytest
from rich.console import Console

from precad.deploy.configuration.sections import Deployment
from precad.deploy.localhost.dashboards import Dashboards, one_time_link
from precad.deploy.localhost.watch import LiveTable
from precad.deploy.run_files.folder import RunFolder
from precad.servers.operations.access import LINK_LIFETIME_S, MAX_FAILURES, MAX_LINKS, OneTimeLinks
from tests.harness.harness import asynchronous
from tests.servers.operations.test_operations_port import BEARER, TOKEN, WRONG, browser, log_in, served


def test_a_code_is_redeemed_once_and_ends_by_itself() -> None:
    now = 0.0
    links = OneTimeLinks(clock=lambda: now)
    code, other, late = links.make(), links.make(), links.make()
    assert len({code, other, late}) == 3
    assert not links.redeem("")
    assert not links.redeem(code[:-1])
    assert [links.redeem(code), links.redeem(code), links.redeem(other)] == [True, False, True]
    now = LINK_LIFETIME_S
    assert not links.redeem(late)
    assert not links.redeem(late)


def test_codes_are_few_and_are_not_kept_in_the_clear() -> None:
    links = OneTimeLinks()
    codes = [links.make() for _ in range(MAX_LINKS + 1)]
    assert not any(code in repr(vars(links)) for code in codes)
    assert [links.redeem(code) for code in codes] == [False] + [True] * MAX_LINKS


@asynchronous
async def test_a_link_opens_the_page_in_one_browser() -> None:
    """Another browser with the same link gets the form. A preview's HEAD request uses nothing up."""
    async with served() as server, browser(server) as session, browser(server) as other:
        link = await one_time_link(server.url.removeprefix("http://"), TOKEN)
        assert link is not None
        assert TOKEN not in link
        assert (await other.head(link, allow_redirects=False)).status == 200
        answer = await session.get(link, allow_redirects=False)
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        assert "SameSite=Strict" in answer.headers["Set-Cookie"]
        assert "HttpOnly" in answer.headers["Set-Cookie"]
        assert (await session.get("/metrics")).status == 200
        again = await other.get(link, allow_redirects=False)
        assert (again.status, "Set-Cookie" in again.headers) == (403, False)
        assert "was used, or is too old" in await again.text()
        assert (await other.get("/metrics")).status == 401


@asynchronous
async def test_only_the_token_itself_gets_a_link() -> None:
    """No stranger, no wrong token, and no session: a stolen cookie makes no further ones."""
    async with served() as server, browser(server) as session:
        assert (await session.post("/links")).status == 401
        assert (await session.post("/links", headers={"Authorization": f"Bearer {WRONG}"})).status == 401
        assert await one_time_link(server.url.removeprefix("http://"), WRONG) is None
        await log_in(session)
        assert (await session.post("/links")).status == 403
        assert (await session.post("/links", headers={"Authorization": f"Bearer {WRONG}"})).status == 403
        async with aiohttp.ClientSession(server.url) as program:
            assert (await program.post("/links", headers=BEARER)).status == 200


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_terminal", [True, False])
@asynchronous
async def test_a_run_shows_links_on_a_terminal_alone(is_terminal: bool, tmp_path: Path) -> None:
    """And not the token. A server whose token is another's, over TLS, or without a port gets no request."""
    folder = RunFolder(tmp_path)
    folder.write_operations_token(TOKEN)
    screen = Screen() if is_terminal else io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200)  # as FORCE_COLOR has it, whatever the file is
    async with served() as server:
        common = {"operations_listen": server.url.removeprefix("http://"), "operations_tls": False}
        a = SimpleNamespace(**common, operations_token=folder.operations_token)
        b = SimpleNamespace(**common, operations_token=tmp_path / "another")
        dealer = SimpleNamespace(operations_listen=None)
        deployment = SimpleNamespace(aggregator=SimpleNamespace(a=a, b=b), dealer=dealer)
        dashboards = Dashboards.of(cast(Deployment, deployment), folder)
        await dashboards.show_links(console, LiveTable(console, title="").note)
    lines = screen.getvalue().splitlines()
    assert len(lines) == 2 * is_terminal
    assert TOKEN not in screen.getvalue()
    for said, link in zip(lines[::2], lines[1::2], strict=True):
        assert said.startswith("dashboard of aggregator-a, ")
        assert re.fullmatch(rf"{server.url}/login\?once=[\w-]{{43}}", link)


@asynchronous
async def test_guessing_codes_is_slow() -> None:
    async with served() as server, browser(server) as session:
        found = [(await session.get(f"/login?once=guess-{i}")).status for i in range(MAX_FAILURES + 1)]
        assert found == [403] * MAX_FAILURES + [429]


@asynchronous
async def test_another_site_uses_up_no_attempts_and_no_link() -> None:
    """A page that the operator's browser shows may ask for pictures of wrong links. Nobody is shut out by them."""
    async with served() as server, browser(server) as session:
        link = await one_time_link(server.url.removeprefix("http://"), TOKEN)
        assert link is not None
        foreign = {"Sec-Fetch-Site": "cross-site"}
        found = [(await session.get(f"/login?once={i}", headers=foreign)).status for i in range(MAX_FAILURES + 1)]
        assert set(found) == {403}
        assert (await session.get(link, headers=foreign)).status == 403
        typed = await session.get(link, headers={"Sec-Fetch-Site": "none"}, allow_redirects=False)
        assert typed.status == 303


@asynchronous
async def test_a_session_guesses_tokens_no_faster() -> None:
    wrong = {"Authorization": f"Bearer {WRONG}"}
    async with served() as server, browser(server) as session:
        await log_in(session)
        found = [(await session.post("/links", headers=wrong)).status for _ in range(MAX_FAILURES + 1)]
        assert found == [403] * MAX_FAILURES + [429]
