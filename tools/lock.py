"""Write requirements.lock anew: every package with its version and the SHA-256 of each file that may be installed.

    python tools/lock.py             the versions that stand there, with all their hashes
    python tools/lock.py --add       the same, and the newest versions of what pyproject.toml names since
    python tools/lock.py --upgrade   the newest versions that pyproject.toml allows
    python tools/lock.py --check     exit code 1 where the file would change

Files are those for CPython 3.11 and newer on Linux and macOS, and the sources. They come from the index that pip is configured
for; no address is written. A version whose files changed on the index after it was locked is refused by `pip --require-hashes`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, canonicalize_name
from packaging.utils import parse_sdist_filename as of_sdist
from packaging.utils import parse_wheel_filename as of_wheel

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
EXTRAS = "collector,databases,dev,docs,federation,papers"
TO_BUILD = ("hatchling", "editables")  # what an installation without build isolation needs beside
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)")
PYTHON = re.compile(r"cp3(\d+)t?|py3|py2\.py3")
OLDEST = 11
PLATFORMS = ("any", "linux", "manylinux", "musllinux", "macosx")


def pins(text: str) -> dict[str, str]:
    """The versions in a lock file, by the names written there."""
    return {found[1]: found[2] for line in text.splitlines() if (found := PIN.match(line))}


def newest(held: dict[str, str] | None = None) -> dict[str, str]:
    """What pip would install now, without installing it; `held` versions stay."""
    with tempfile.TemporaryDirectory() as folder:
        report, constraints = Path(folder) / "report.json", Path(folder) / "held.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in (held or {}).items()))
        subprocess.run(  # noqa: S603 - our own interpreter
            [
                sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report),
                "--constraint", str(constraints), f"{ROOT}[{EXTRAS}]", *TO_BUILD,
            ],
            check=True,
        )  # fmt: skip
        found = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    return {each["name"]: each["version"] for each in found if canonicalize_name(each["name"]) != "populace"}


def may_be_installed(filename: str, name: str, version: str) -> bool:
    """Whether a file is of this version, for a Python and a platform that are supported."""
    try:
        if not filename.endswith(".whl"):
            made = of_sdist(filename)
            return made[0] == canonicalize_name(name) and str(made[1]) == version
        of_name, of_version, _, tags = of_wheel(filename)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return False
    if of_name != canonicalize_name(name) or str(of_version) != version:
        return False
    return any(
        _fits(tag.interpreter, tag.abi) and tag.platform.split("_")[0].rstrip("0123456789") in PLATFORMS for tag in tags
    )


def _fits(interpreter: str, abi: str) -> bool:
    found = PYTHON.fullmatch(interpreter)
    if found is None:
        return False
    return found[1] is None or abi in ("abi3", "none") or int(found[1]) >= OLDEST


def files_of(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """For each package the files on pip's index with their SHA-256, asked with pip's own session and settings."""
    from pip._internal.commands import create_command
    from pip._internal.index.collector import parse_links
    from pip._internal.models.link import Link

    command = create_command("download")
    options, _ = command.parse_args(["--quiet", "nothing"])
    found: dict[str, dict[str, str]] = {}
    with command.main_context():
        finder = command._build_package_finder(options, command.get_default_session(options))
        collector = finder._link_collector
        for name in names:
            files = found.setdefault(name, {})
            for address in collector.search_scope.get_index_urls_locations(canonicalize_name(name)):
                page = collector.fetch_response(Link(address))
                for link in parse_links(page) if page is not None else ():
                    if link.hash_name == "sha256" and link.hash is not None:
                        files[link.filename] = link.hash
    return found


def written(versions: dict[str, str]) -> str:
    """The text of the lock file."""
    lines = ["# Written by tools/lock.py; `pip install --require-hashes -r requirements.lock` takes nothing else."]
    files = files_of(versions)
    for name in sorted(versions, key=str.lower):
        version = versions[name]
        hashes = sorted({value for file, value in files[name].items() if may_be_installed(file, name, version)})
        if not hashes:
            raise SystemExit(f"the index has no file of {name} {version}; run with --upgrade")
        lines.append(" \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{value}" for value in hashes)]))
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", action="store_true", help="the newest versions that pyproject.toml allows")
    parser.add_argument(
        "--add", action="store_true", help="keep versions, add packages that pyproject.toml names since"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the file would change")
    given = parser.parse_args()
    before = LOCK.read_text() if LOCK.is_file() else ""
    held = None if given.upgrade or not before else pins(before)
    text = written(held if held is not None and not given.add else newest(held))
    if given.check:
        return int(text != before)
    LOCK.write_text(text)
    print(f"{len(pins(text))} packages, {text.count('--hash')} hashes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
