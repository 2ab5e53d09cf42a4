"""What a site lets a coordinator do: four files in the site's own kit, written by populace and checked before every start.

resources.json       exactly one class may be named by a job, error logs do not stream
authorization.json   no role may ship code or run commands, all may submit jobs that name the one class
privacy.json         every task result passes the gate, and no other scope exists
populace.json        the site's own data, ledger, limit and agreements
"""

from __future__ import annotations

from pathlib import Path

from populace.border.models import Form, read_document
from populace.errors import RunError
from populace.tables.files import read_json, write_json
from populace.types import JsonObject

EXECUTOR = "populace.engines.flare.executor.SiteExecutor"
GATE = "populace.engines.flare.executor.Gate"
CONTROLLER = "populace.engines.flare.controller.SegmentController"
SCOPE = "populace"
SITE_FILE = "populace.json"
LIST_FILE = "revoked.crl"  # in the folder of a federation, and of a site
ROLES = ("project_admin", "org_admin", "lead", "member")
NOTHING = {
    "submit_job": "none", "clone_job": "none", "manage_job": "none", "download_job": "none", "view": "none", "operate": "none",
    "shell_commands": "none", "byoc": "none", "server-predeployed-flwr": "none",
}  # fmt: skip
JOBS_ONLY = {**NOTHING, "submit_job": "any", "manage_job": "any", "view": "any"}
KEPT_COMPONENTS = ("resource_manager", "resource_consumer", "process_launcher")


class _Component(Form):
    id: str


class _ClientResources(Form):
    """FLARE's own file in a site's kit."""

    client: JsonObject
    components: list[_Component]


def _else(path: Path) -> object:
    """What stands in a policy file; nothing where it cannot be read, which is not what populace wrote either."""
    try:
        return read_json(path)
    except RunError:
        return None


def site_policy(kit: Path) -> JsonObject:
    """The three files FLARE reads, as they must stand."""
    given = read_document(kit / "local" / "resources.json.default", _ClientResources, advice="join again")
    kept = [component for component in given["components"] if component["id"] in KEPT_COMPONENTS]
    return {
        "resources.json": {
            "format_version": 2,
            "class_list_enforcement_mode": "enforce",
            "class_allow_list": [EXECUTOR],
            "allow_log_streaming": False,
            "client": given["client"],
            "components": kept,
        },
        # User and role in a job come from the server, so every role has the same: jobs, and nothing else.
        "authorization.json": {"format_version": "1.0", "permissions": dict.fromkeys(ROLES, JOBS_ONLY)},
        "privacy.json": {
            "scopes": [
                {
                    "name": SCOPE,
                    "properties": {},
                    "task_data_filters": [],
                    "task_result_filters": [{"path": GATE, "args": {}}],
                }
            ],
            "default_scope": SCOPE,
        },
    }


def write_site_policy(kit: Path, own: JsonObject) -> None:
    for name, document in site_policy(kit).items():
        write_json(kit / "local" / name, document)
    write_json(kit / "local" / SITE_FILE, own, mode=0o600)


def check_site_policy(kit: Path) -> None:
    """Raise RunError unless the files stand exactly as written: a looser one would let others decide."""
    for name, document in site_policy(kit).items():
        path = kit / "local" / name
        if not path.is_file() or _else(path) != document:
            raise RunError(f"{path} is not as populace wrote it; nothing is started. Join again to write it anew")
    for extra in ("custom", "job_resources.json"):
        if (kit / "local" / extra).exists():
            raise RunError(f"{kit / 'local' / extra} does not belong in a site's kit; remove it")
    if not (kit / "local" / SITE_FILE).is_file():
        raise RunError(f"{kit / 'local' / SITE_FILE} is missing; join again")


def write_server_policy(kit: Path, store: Path) -> None:
    """The coordinator's own server: one controller class, job and snapshot stores in its own folder."""
    resources = read_json(kit / "local" / "resources.json.default")
    resources["class_allow_list"] = [CONTROLLER]
    resources["servers"][0]["heart_beat_timeout"] = 30
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(store / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(store / "jobs")
    resources["components"] = [part for part in resources["components"] if part["id"] != "log_receiver"]
    write_json(kit / "local" / "resources.json", resources)
    permissions = {role: NOTHING for role in ROLES if role != "lead"}
    lead = {**JOBS_ONLY, "download_job": "any", "operate": "any"}
    write_json(
        kit / "local" / "authorization.json", {"format_version": "1.0", "permissions": {**permissions, "lead": lead}}
    )
