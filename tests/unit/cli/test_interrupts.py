"""An interrupt that Python drops is raised again when something is said next."""

import os
import signal

import pytest

from populace.cli import interrupts, show


@pytest.fixture
def remembering(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(interrupts, "_asked", [])
    interrupts.remember()
    yield
    signal.signal(signal.SIGINT, before)


def test_a_dropped_interrupt_is_raised_at_the_next_word(remembering, capsys):
    show.say("before")
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    # As if a callback of the garbage collector had swallowed it, the program goes on.
    with pytest.raises(KeyboardInterrupt):
        show.say("after")
    assert capsys.readouterr().out == "before\n"


def test_without_one_nothing_happens(remembering, capsys):
    show.say("a")
    show.say("b")
    assert capsys.readouterr().out == "a\nb\n"
