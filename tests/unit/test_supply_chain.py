"""What is installed is locked by hashes, names no address, and stands in the bill of materials."""

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


lock, sbom = tool("lock"), tool("sbom")


def test_every_locked_package_has_hashes_and_no_address_stands_there():
    entries = sbom.locked(LOCK)
    assert {name: version for name, version, _ in entries} == lock.pins(LOCK)
    assert len(entries) > 100
    assert all(hashes and len(set(hashes)) == len(hashes) for _, _, hashes in entries)
    assert "://" not in LOCK
    assert "--index" not in LOCK
    kept = r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?"
    assert all(re.fullmatch(kept, line) for line in LOCK.splitlines())
    assert "--require-hashes" in (ROOT / "Makefile").read_text()


def test_what_the_project_needs_is_locked_also_to_build_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    names = {re.match(r"[A-Za-z0-9._-]+", each)[0] for each in wanted} | set(lock.TO_BUILD)
    locked = {re.sub(r"[-_.]+", "-", name).lower() for name in lock.pins(LOCK)}
    assert {re.sub(r"[-_.]+", "-", name).lower() for name in names} <= locked


@pytest.mark.parametrize(
    ("filename", "wanted"),
    [
        ("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", True),
        ("numpy-2.4.6-cp313-cp313-macosx_14_0_arm64.whl", True),
        ("numpy-2.4.6-cp311-cp311-musllinux_1_2_aarch64.whl", True),
        ("numpy-2.4.6.tar.gz", True),
        ("numpy-2.4.6-cp39-abi3-manylinux2014_x86_64.whl", True),
        ("numpy-2.4.6-py3-none-any.whl", True),
        ("numpy-2.4.6-cp310-cp310-manylinux2014_x86_64.whl", False),
        ("numpy-2.4.6-cp311-cp311-win_amd64.whl", False),
        ("numpy-2.4.6-pp311-pypy311_pp73-macosx_14_0_arm64.whl", False),
        ("numpy-2.4.7-py3-none-any.whl", False),
        ("other-2.4.6-py3-none-any.whl", False),
        ("numpy-2.4.6.exe", False),
    ],
)
def test_files_for_supported_pythons_and_systems_are_locked(filename, wanted):
    assert lock.may_be_installed(filename, "numpy", "2.4.6") is wanted


def test_the_bill_of_materials_lists_every_locked_package_and_is_the_same_each_time(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for name in ("first", "second"):
        monkeypatch.setattr(sys, "argv", ["sbom.py", "--out", str(tmp_path / name)])
        assert sbom.main() == 0
    (first,), (second,) = (list((tmp_path / name).iterdir()) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    document = json.loads(first.read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    listed = {each["name"]: each for each in document["components"]}
    assert len(listed) == len(document["components"])
    for name, version, hashes in sbom.locked(LOCK):
        assert listed[name]["version"] == version
        assert {each["content"] for each in listed[name]["hashes"]} == set(hashes)
        assert listed[name].get("licenses") == (sbom.licence_of(name, version) or None)
    assert set(listed) == set(lock.pins(LOCK))
    assert listed["numpy"]["licenses"]
    assert sum("licenses" in each for each in listed.values()) > 0.9 * len(listed)
    assert not [address for address in re.findall(r"\w+://", first.read_text()) if address != "http://"]


def test_a_package_that_is_missing_or_changed_is_noticed():
    project = {"name": "populace", "version": "0", "license": "Apache-2.0"}
    whole = sbom.bill(LOCK, project, at=0)
    less = sbom.bill(LOCK.replace("numpy==", "numpi=="), project, at=0)
    assert whole["serialNumber"] != less["serialNumber"]
    assert "numpy" not in {each["name"] for each in less["components"]}
