"""Progress of several trainings: on a terminal in place, off it a line a minute, with an estimate that is right."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from rich.console import Console

from precad.lab.simulation import RoundMetrics
from precad.lab.simulation.progress import Trainings
from precad.lab.simulation.workers import Workers


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class InTurn:
    """Workers of this process: ten minutes a job."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def run(self, jobs: Sequence[Callable[[], Any]]) -> Iterator[Any]:
        for job in jobs:
            self.clock.now += 600
            yield job()


def done(number: int) -> RoundMetrics:
    found = RoundMetrics.__new__(RoundMetrics)
    for name, value in (("round", number), ("accuracy", 0.5)):
        object.__setattr__(found, name, value)
    return found


def console(*, is_terminal: bool, width: int = 80) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=width, force_terminal=is_terminal, no_color=True), file


def test_off_a_terminal_there_is_a_line_a_minute() -> None:
    """Fifteen trainings of ten rounds, each of which takes ten seconds: 25 minutes, so 24 lines and a bit."""
    clock, (shown, file) = Clock(), console(is_terminal=False)
    with Trainings(shown, 15, clock=clock) as trainings:
        for seed in range(15):
            with trainings.one(f"seed {seed}", 10) as advance:
                for i in range(10):
                    clock.now += 10
                    advance(done(i))
    lines = file.getvalue().splitlines()
    assert len(lines) == 25
    assert lines[0] == "training 1 of 15, 24 minutes left"
    assert lines[10] == "training 7 of 15, 14 minutes left"
    assert lines[-1] == "training 15 of 15, less than a minute left"


def test_rounds_that_a_folder_holds_take_no_time() -> None:
    """A training that goes on at round 8 of 10, after one that was whole: the rest goes by the rounds trained here."""
    clock, (shown, _) = Clock(), console(is_terminal=False)
    trainings = Trainings(shown, 3, clock=clock)
    with trainings.one("seed 0", 10):
        pass
    with trainings.one("seed 1", 10) as advance:
        assert trainings.left() == ""
        for i in (8, 9):
            clock.now += 60
            advance(done(i))
    assert trainings.left() == "10 minutes left"


def test_a_terminal_shows_which_training_it_is_and_what_is_left() -> None:
    clock, (shown, file) = Clock(), console(is_terminal=True)
    with Trainings(shown, 15, clock=clock) as trainings:
        for _ in range(6):
            with trainings.one("seed", 1) as advance:
                clock.now += 80
                advance(done(0))
        with trainings.one("precad, seed 6", 4) as advance:
            clock.now += 20
            advance(done(0))
            trainings._bar.refresh()
    text = file.getvalue()
    assert "training 7 of 15: precad, seed 6" in text
    assert "accuracy 0.500, 12 minutes left" in text
    assert "1/4" in text


def test_trainings_side_by_side_are_counted() -> None:
    clock, (shown, file) = Clock(), console(is_terminal=False)
    with Trainings(shown, 3, clock=clock) as trainings:
        found = trainings.side_by_side([lambda i=i: {"seed": i} for i in range(3)], cast(Workers, InTurn(clock)))
    assert found == [{"seed": 0}, {"seed": 1}, {"seed": 2}]
    assert file.getvalue().splitlines()[0] == "training 2 of 3, 20 minutes left"
