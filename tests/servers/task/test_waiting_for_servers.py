"""How long a server waits for another one: from each loss on, but no longer for one that only comes back to hang up.

Failure means: such a server keeps this one, and its audit log growing, for ever. Or one that rounds go on with after
each loss is given up.
"""

from __future__ import annotations

from precad.servers.task.patience import Patience
from tests.harness.clock import Clock


def after_a_loss(clock: Clock, waiting: Patience, *, next_round: int, away_s: float) -> float:
    """Lose the other server, meet it again, and run for an hour. Return what was left at the meeting, seconds."""
    assert waiting.starts_or_goes_on(next_round)
    clock.now += away_s
    left_s = waiting.left_s
    waiting.ends()
    clock.now += 3600
    return left_s


def test_each_loss_has_its_own_time_where_clients_were_drawn_in_between() -> None:
    clock = Clock()
    waiting = Patience(60.0, 600.0, clock)
    waiting.ends()
    assert [after_a_loss(clock, waiting, next_round=t, away_s=500) for t in (1, 2, 7)] == [100.0] * 3


def test_losses_without_a_draw_in_between_share_their_time() -> None:
    """Time together does not count: a wait for clients may be long."""
    clock = Clock()
    waiting = Patience(60.0, 600.0, clock)
    waiting.ends()
    assert [after_a_loss(clock, waiting, next_round=3, away_s=200) for _ in range(2)] == [400.0, 200.0]
    assert waiting.starts_or_goes_on(3)
    clock.now += 200
    assert not waiting.starts_or_goes_on(3)


def test_a_server_that_comes_back_and_draws_nobody_is_waited_for_no_longer() -> None:
    """Its silence at a draw counts, from the second loss on; the wait for clients before does not."""
    clock = Clock()
    waiting = Patience(60.0, 600.0, clock)
    waiting.ends()
    for silent_s, left_s in ((0, 599.0), (500, 98.0)):
        clock.now += silent_s
        assert after_a_loss(clock, waiting, next_round=3, away_s=1) == left_s
        waiting.awaits_a_draw()
    clock.now += 100
    assert not waiting.starts_or_goes_on(3)
