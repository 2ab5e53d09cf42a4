"""A short drill: all invariants hold after some minutes of chaos."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_a_short_drill_holds_all_invariants(tmp_path):
    words = [
        "--seconds",
        "100",
        "--seed",
        "7",
        "--sites",
        "3",
        "--folder",
        str(tmp_path / "drill"),
        "--out",
        str(tmp_path / "out"),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.drill", *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summary = json.loads((tmp_path / "out").read_text())
    assert summary["wrong"] == []
    assert summary["events_in_all"] >= 3
    assert summary["rounds"] >= 100
    assert summary["requests_of_a_lying_coordinator"] >= 40
