"""`populace demo` calls `synthesize` as a function, and gives every option: else an object of typer comes through."""

import inspect

from populace.cli import demo, evaluate, synthesize

OPTIONS = set(inspect.signature(synthesize.command).parameters)


def test_the_demo_gives_every_option(monkeypatch, tmp_path):
    given = {}
    monkeypatch.setattr(synthesize, "command", lambda **options: given.update(options))
    monkeypatch.setattr(evaluate, "command", lambda **_: None)
    demo.command(out=tmp_path / "run", epsilon=4.0, seed=1)
    assert set(given) == OPTIONS
