"""Write a software bill of materials (CycloneDX 1.5, JSON) of what requirements.lock installs, beside a distribution.

    python tools/sbom.py --out dist

Name, version and hashes come from the lock; licences from the packages installed here, where they say one. The document says
nothing of the machine, and its serial number is derived from its content: the same lock and licences give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
import uuid
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
CLASSIFIER = "License :: "
Document = dict[str, Any]


def locked(text: str) -> list[tuple[str, str, list[str]]]:
    """Name, version and hashes of each package in a lock file."""
    found: list[tuple[str, str, list[str]]] = []
    for line in text.splitlines():
        if entry := ENTRY.match(line):
            found.append((entry[1], entry[2], []))
        if (value := HASH.search(line)) and found:
            found[-1][2].append(value[1])
    return found


def licence_of(name: str, version: str) -> list[Document]:
    """What the installed package of this very version says of its licence; nothing where it is not installed."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return []
    if about["Version"] != version:
        return []
    said = about.get("License-Expression") or about.get("License") or ""
    try:
        return [{"expression": str(canonicalize_license_expression(said))}]
    except InvalidLicenseExpression:
        pass
    classes = [each.split(" :: ")[-1] for each in about.get_all("Classifier") or () if each.startswith(CLASSIFIER)]
    short = said.strip().splitlines()[0][:120] if said.strip() else ""
    names = classes or ([short] if short else [])
    return [{"license": {"name": each}} for each in names]


def component(name: str, version: str, hashes: list[str]) -> Document:
    address = f"pkg:pypi/{canonicalize_name(name)}@{version}"
    found: Document = {
        "type": "library", "bom-ref": address, "name": name, "version": version, "purl": address,
        "hashes": [{"alg": "SHA-256", "content": value} for value in sorted(hashes)],
    }  # fmt: skip
    if licences := licence_of(name, version):
        found["licenses"] = licences
    return found


def bill(lock: str, project: Document, *, at: int) -> Document:
    """The document for a project, as pyproject.toml describes it, and its lock."""
    components = sorted((component(*each) for each in locked(lock)), key=lambda each: str(each["purl"]))
    address = f"pkg:pypi/{project['name']}@{project['version']}"
    content = json.dumps([address, components], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "library", "bom-ref": address, "name": project["name"], "version": project["version"], "purl": address,
                "licenses": [{"expression": project["license"]}],
            },
        },
        "components": components,
        "dependencies": [{"ref": address, "dependsOn": [each["bom-ref"] for each in components]}],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")
    given = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    made = bill((ROOT / "requirements.lock").read_text(), project, at=int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{project['name']}-{project['version']}.cdx.json"
    path.write_text(json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    without = [each["name"] for each in made["components"] if "licenses" not in each]
    print(f"{path}: {len(made['components'])} packages; no licence known of {', '.join(without) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
