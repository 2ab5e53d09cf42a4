"""A long-lived process is found again whatever the clock says, and no other is taken for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytest.importorskip("nvflare")

from populace.engines.flare import processes

INJECTED = Path(__file__).parents[1] / "drill" / "injected"
LOOK = """
import sys
from pathlib import Path
from populace.engines.flare import processes
print(processes.alive(Path(sys.argv[1])))
"""


@pytest.fixture
def running(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path)])
    try:
        processes.note(tmp_path, process.pid)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("offset", [-86_400.0, 0.0, 3.0, 86_400.0])
def test_a_process_is_found_after_the_clock_was_set(running, tmp_path, offset):
    (tmp_path / "clock").write_text(repr(offset))
    environment = {**os.environ, "PYTHONPATH": str(INJECTED), "POPULACE_DRILL_CLOCK": str(tmp_path / "clock")}
    words = [sys.executable, "-c", LOOK, str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(running.pid)


def test_another_process_with_the_number_does_not_count(running, tmp_path):
    noted = json.loads((tmp_path / "process.json").read_text())
    (tmp_path / "process.json").write_text(
        json.dumps({**noted, "seconds_after_boot": noted["seconds_after_boot"] - 60})
    )
    assert processes.alive(tmp_path) is None
    (tmp_path / "process.json").write_text(json.dumps({**noted, "pid": os.getpid()}))
    assert processes.alive(tmp_path) is None


def test_what_version_0_3_0_wrote_down_is_read(running, tmp_path):
    began = psutil.Process(running.pid).create_time()
    (tmp_path / "process.json").write_text(json.dumps({"pid": running.pid, "began": began}))
    assert processes.alive(tmp_path) == running.pid
