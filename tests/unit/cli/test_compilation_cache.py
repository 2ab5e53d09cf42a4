"""Compiled programs are kept for their owner alone, bounded, and no record is in one of them."""

import os
import re
import stat
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from populace.cli import compilation_cache

SHARED = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
CANARY = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5]  # the first codes of a column that no count and no index repeats


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)
    monkeypatch.delenv(compilation_cache.FOLDER, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("warnings.showwarning", None)
    return tmp_path


def test_the_folder_is_its_owners_alone(home):
    before = os.umask(0)
    try:
        folder = compilation_cache.enable()
    finally:
        os.umask(before)
    assert folder is not None
    assert folder.is_relative_to(home / "populace" / "compiled")
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)
    for own in (folder, folder.parent):
        assert stat.S_IMODE(own.stat().st_mode) == 0o700


@pytest.mark.parametrize("planted", ["open to others", "a link"])
def test_a_folder_that_others_may_write_to_is_not_used(home, planted):
    place = home / "populace" / "compiled"
    place.parent.mkdir()
    if planted == "a link":
        (home / "theirs").mkdir(mode=0o700)
        place.symlink_to(home / "theirs")
    else:
        place.mkdir()
        place.chmod(0o777)
    assert compilation_cache.enable() is None
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_off_by_one_option_and_left_to_who_has_set_it(home, monkeypatch):
    monkeypatch.setenv(compilation_cache.FOLDER, "off")
    assert compilation_cache.enable() is None
    monkeypatch.delenv(compilation_cache.FOLDER)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    assert compilation_cache.enable() is None
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"
    assert not (home / "populace").exists()


def test_a_home_that_cannot_be_written_is_no_trouble(home, monkeypatch):
    (home / "file").touch()
    monkeypatch.setenv(compilation_cache.FOLDER, str(home / "file" / "below"))
    assert compilation_cache.enable() is None


def test_the_oldest_programs_make_room(tmp_path):
    (tmp_path / "kind").mkdir()
    for age in range(5):
        file = tmp_path / "kind" / f"{age}-cache"
        file.write_bytes(bytes(100))
        os.utime(file, (1000 - age, 1000 - age))
    compilation_cache.prune(tmp_path, most=250)
    assert sorted(file.name for file in (tmp_path / "kind").iterdir()) == ["0-cache", "1-cache"]


def run(code, **environment):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True,
        env={**inherited, "JAX_PLATFORMS": "cpu", **environment},
    )  # fmt: skip


def test_a_program_that_was_cut_short_is_forgotten_and_not_spoken_of(tmp_path):
    code = """
        from populace.cli import compilation_cache
        compilation_cache.enable()
        import jax, jax.numpy as jnp
        print(jax.jit(lambda x: jnp.sin(x) @ x.T)(jnp.ones((3, 3)))[0, 0])
    """
    first = run(code, POPULACE_CACHE=str(tmp_path))
    kept = list(tmp_path.glob("compiled/*/jit__lambda*-cache"))
    assert kept, first.stderr
    whole = kept[0].read_bytes()
    half = whole[: len(whole) // 2]
    kept[0].write_bytes(half)
    second = run(code, POPULACE_CACHE=str(tmp_path))
    assert (second.returncode, second.stdout) == (0, first.stdout)
    assert "persistent" not in second.stderr
    third = run(code, POPULACE_CACHE=str(tmp_path))
    assert (third.returncode, third.stdout) == (0, first.stdout)
    again = [file.read_bytes() for file in tmp_path.glob("compiled/*/jit__lambda*-cache")]
    assert len(again) == 1
    assert again != [half]


RUN = """
    import jax, numpy as np, sys
    from builders import small_protocol, small_schema
    from populace.engines import simulation
    from populace.tables.partition import split
    from populace.tables.table import from_codes
    schema = small_schema()
    rng = np.random.default_rng(1)
    codes = np.stack([rng.integers(0, size, 60) for size in schema.sizes], axis=1).astype(np.int32)
    canary = np.array({canary})
    widest = int(np.argmax(schema.sizes))
    codes[: len(canary), widest] = canary % schema.sizes[widest]
    clients = split(from_codes(codes, schema, rng), records_per_client=60 if {name!r} == "census" else 2)
    planted = np.asarray(codes) if {planted} else None
    if planted is not None:
        print(jax.jit(lambda x: x + planted)(np.int32(1)).sum())
    outcome = simulation.run(small_protocol({name!r}, 2.0), clients, root=jax.random.key(5))
    print(np.array(codes[:10, widest]).tolist())
"""


def constants(text):
    """All constants of a program with at least ten numbers, as lists of numbers under every width they may have."""
    for words in re.findall(r'dense<"0x([0-9A-F]+)">', text):
        raw = bytes.fromhex(words)
        for kind in ("<i1", "<i2", "<i4", "<i8", "<f4", "<f8"):
            if len(raw) % np.dtype(kind).itemsize == 0:
                yield np.frombuffer(raw, kind).tolist()
    for words in re.findall(r"dense<(\[[^>]+\])>", text):
        if "0x" not in words and "true" not in words and "false" not in words:
            yield [float(number) for number in re.findall(r"-?\d+\.?\d*(?:[eE][-+]?\d+)?", words)]


def holds(numbers, canary, columns):
    """Whether the canary stands in a row of numbers, next to each other or one to a record."""
    for stride in (1, columns):
        for start in range(len(numbers) - stride * (len(canary) - 1)):
            if numbers[start : start + stride * len(canary) : stride] == canary:
                return True
    return False


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("independent", True),
        ("census", False),
        ("poll", False),
        pytest.param("moments", False, marks=pytest.mark.slow),
        pytest.param("dp-fed-wae", False, marks=pytest.mark.slow),
        pytest.param("fl-gan", False, marks=pytest.mark.slow),
        pytest.param("l-dpd-vae", False, marks=pytest.mark.slow),
    ],
)
def test_no_record_becomes_a_constant_of_a_program(name, planted, tmp_path, small_schema):
    """Every program that a run hands to the compiler is searched for the codes of ten records; one that is planted is found."""
    code = RUN.format(canary=CANARY, name=name, planted=planted)
    here = os.pathsep.join([*sys.path, os.path.join(os.path.dirname(__file__), "..", "..")])
    shared = {
        name: os.environ[name] for name in SHARED if name in os.environ
    }  # a program is dumped before it is looked up
    done = run(code, JAX_DUMP_IR_TO=str(tmp_path), PYTHONPATH=here, **shared)
    assert done.returncode == 0, done.stderr[-2000:]
    canary = [float(word) for word in done.stdout.splitlines()[-1].strip("[]").split(",")]
    programs = [file.read_text() for file in tmp_path.glob("*compile.mlir")]
    assert len(programs) > 5
    found = [
        any(holds([float(x) for x in one], canary, len(small_schema.columns)) for one in constants(text))
        for text in programs
    ]
    assert any(found) == planted
