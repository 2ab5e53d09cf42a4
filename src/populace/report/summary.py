"""A few lines to paste: what was made and what is guaranteed, which may be published, and the figures, which may not."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from populace.evaluation.baselines import REAL, SYNTHETIC
from populace.report.plain_language import in_plain_language
from populace.report.statement import PAGE, made_in_words, total_in_words
from populace.runs.folder import digest_of
from populace.types import JsonObject

KEEP = "KEEP WITH THE DATA, do not publish: these figures were computed on real rows without noise."
SHOWN = ("Values", "Pairs of columns", "Predicting", "Prediction")  # how the names of tiles begin that matter most
OF_IMAGES = ("class_distance", "frechet", "accuracy: CNN")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """Lines that may be published, and lines that may not."""

    publishable: tuple[str, ...]
    internal: tuple[str, ...]
    digest: str


def digest_beside(run: JsonObject) -> str:
    """The SHA-256 of the run's privacy.json, where it has one."""
    return digest_of(run["folder"] / "privacy.json") if "folder" in run else ""


def summary_of(run: JsonObject, figures: Sequence[str]) -> Summary | None:
    """The summary of a run; of two tables alone there is none, because nothing is guaranteed about them."""
    if "privacy" not in run:
        return None
    digest = digest_beside(run)
    return Summary(publishable=_publishable(run["privacy"], digest), internal=(KEEP, *figures), digest=digest)


def _publishable(privacy: JsonObject, digest: str) -> tuple[str, ...]:
    """What privacy.html says, in few lines; nothing that is not there."""
    run = privacy.get("run") or {}
    plain = in_plain_language(privacy)
    lines = [
        made_in_words(privacy, run),
        f"Guarantee: {plain.short}",
        f"Epsilon and delta: {privacy['headline']}, for {privacy['unit_in_words']}.",
        f"Neighbours: {privacy['neighbours_in_words']}.",
        f"Trust: {privacy['trust_in_words']}.",
        total_in_words(privacy),
        _not_covered(privacy),
        f"Versions: {', '.join(f'{name} {number}' for name, number in run.get('versions', {}).items())}."
        if run.get("versions")
        else "",
        f"In full: privacy.html. SHA-256 of privacy.json: {digest}. To check: populace verify RUN." if digest else "",
    ]
    return tuple(line for line in lines if line)


def _not_covered(privacy: JsonObject) -> str:
    read = privacy.get("read_from_data") or ()
    if not read:
        return ""
    return (
        f"Not covered: the possible values of {len(read)} column{'s' if len(read) > 1 else ''}, read from the records."
    )


def figures_of_table(tiles: Sequence[JsonObject], flags: Sequence[str]) -> list[str]:
    """The three figures that matter most, as the tiles have them, and how many red flags there are."""
    lines = []
    for tile in tiles:
        if tile["name"].startswith(SHOWN):
            beside = "; ".join(part for part in (tile["verdict"], tile["beside"]) if part)
            said = tile["words"] if tile["figure"] == "–" else f"{tile['figure']} {tile['words']}"
            lines.append(f"{tile['name']}: {said}{f' ({beside})' if beside else ''}.")
    return [*lines, f"Red flags: {len(flags) or 'none'}."]


def figures_of_images(document: JsonObject) -> list[str]:
    """Three figures of images, each beside that of real ones."""
    lines = []
    for key in OF_IMAGES:
        metric = document["metrics"].get(key)
        if metric is None or "value" not in metric["values"][SYNTHETIC]:
            continue
        real = metric["values"][REAL].get("value")
        beside = f" (real images: {real:.3f})" if real is not None else ""
        lines.append(
            f"{metric['title']}: {metric['values'][SYNTHETIC]['value']:.3f}{beside}; {metric['better']} is better."
        )
    return lines


def statement_beside(run: JsonObject, page: Path | None) -> str:
    """The address of the run's statement, seen from a page; empty where there is none to lead to."""
    if page is None or "folder" not in run or not (run["folder"] / PAGE).is_file():
        return ""
    return quote(os.path.relpath((run["folder"] / PAGE).resolve(), page.resolve().parent))
