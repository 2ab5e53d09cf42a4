"""Where pages come from: templates, escaping, and the style sheet that goes into each of them."""

from __future__ import annotations

import functools

import jinja2
import markupsafe


@functools.cache
def environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("populace.report", "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    source = found.loader.get_source(found, "style.css")[0] if found.loader else ""
    found.globals["style"] = markupsafe.Markup(source)  # noqa: S704 - our own style sheet
    return found
