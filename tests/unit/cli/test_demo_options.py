"""`populace demo` calls `synthesize` as a function, and gives every option: else an object of typer comes through."""

import inspect

from populace.cli import demo, evaluate, synthesize

OPTIONS = set(inspect.signature(synthesize.command).parameters)
JUDGED = set(inspect.signature(evaluate.command).parameters)


def test_the_demo_gives_every_option(monkeypatch, tmp_path):
    given, judged, polled = {}, {}, []
    monkeypatch.setattr(synthesize, "command", lambda **options: given.update(options))
    monkeypatch.setattr(evaluate, "command", lambda **options: judged.update(options))
    monkeypatch.setattr(demo, "_poll", lambda files, *_, **__: polled.extend(files))
    monkeypatch.setattr(demo, "_compare", lambda *_: None)
    (tmp_path / "run").mkdir()
    demo.command(out=tmp_path / "run", epsilon=1.0, seed=None)
    assert set(given) == OPTIONS
    assert set(judged) == JUDGED
    assert given["data"] == judged["real"] == [str(file) for file in polled]
    assert [file.parent.parent.name for file in polled] == ["run-2"] * 3  # beside what is there
