"""Where pages come from: templates, escaping, and the style sheet and the few lines of script that go into them."""

from __future__ import annotations

import base64
import functools
import hashlib

import jinja2
import markupsafe


@functools.cache
def environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("populace.report", "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    style, script = (
        found.loader.get_source(found, name)[0] if found.loader else "" for name in ("style.css", "copy.js")
    )
    found.globals["style"] = markupsafe.Markup(style)  # noqa: S704 - our own style sheet
    found.globals["script"] = markupsafe.Markup(script)  # noqa: S704 - our own few lines
    found.globals["script_digest"] = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return found
