"""From files of answers to the counts a fit needs, a batch at a time; an interrupted count goes on where it was.

An answer counts if its client was asked its question and its report is one the question's mechanism can make: a liar chooses
neither. What is not so is dropped, and said. A client number that comes twice is refused: two collections' numbers overlap, or
one person's budget was spent twice.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from populace.border.documents import parse_json
from populace.border.models import DAMAGED, Form, check_document
from populace.errors import DataError, RunError
from populace.methods.base import Ask, Replies
from populace.methods.blocks.composed import RunState
from populace.methods.poll.protocol import Poll
from populace.privacy.source import Keyed
from populace.runs.poll.assignment import Assignment
from populace.runs.poll.files import MOST_CLIENTS, ROWS, Batch, answer_batches, starts_of, unpack
from populace.tables.files import read_arrays, replacing
from populace.types import Array, NumpyArray

SECONDS_BETWEEN_CHECKPOINTS = 5.0
ABSORBED_BYTES = 2**26  # of reports taken into the counts at a time, as 32-bit numbers
MOST_DROPPED = 0.01  # of the answers; more, and the files are not what they should be
REASONS = ("no client has that number", "not the question the client was asked", "not a report about its question")


class Seen:
    """Which client numbers have come: one bit each, up to the largest."""

    def __init__(self, bits: NumpyArray | None = None) -> None:
        self.bits = np.zeros(0, np.uint8) if bits is None else bits

    def add(self, clients: Array) -> int | None:
        """Note these numbers; the first that has come before, or comes twice, if there is one."""
        ordered = np.sort(clients)
        again = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(again) or not len(ordered):
            return int(again[0]) if len(again) else None
        byte, bit = ordered >> 3, (1 << (ordered & 7)).astype(np.uint8)
        if byte[-1] >= len(self.bits):
            room = max(int(byte[-1]) + 1, min(2 * len(self.bits), MOST_CLIENTS // 8 + 1))
            self.bits = np.concatenate([self.bits, np.zeros(room - len(self.bits), np.uint8)])
        twice = ordered[(self.bits[byte] & bit) != 0]
        np.bitwise_or.at(self.bits, byte, bit)
        return int(twice[0]) if len(twice) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted:
    """Where a count stands: poll's state, who has come, what was dropped, and how far the files are read."""

    state: RunState
    seen: Seen
    dropped: dict[str, int]
    answers: int = 0
    content: int = 0
    file: int = 0
    batches: int = 0

    @property
    def read(self) -> int:
        """Answers read, dropped ones included."""
        return self.answers + sum(self.dropped.values())

    def save(self, path: Path, root: Array) -> None:
        """Replace the checkpoint; `root` is the key the fit will start from."""
        leaves = jax.tree.leaves(self.state.learner.counts)
        arrays = {f"counts_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        numbers = {name: getattr(self, name) for name in ("dropped", "answers", "content", "file", "batches")}
        document = np.frombuffer(json.dumps(numbers).encode(), np.uint8)
        with replacing(path) as temporary:
            temporary.touch(mode=0o600)
            with temporary.open("wb") as file:
                np.savez(
                    file, allow_pickle=False, seen=self.seen.bits, document=document,
                    root=np.asarray(jax.random.key_data(root)), **arrays,
                )  # type: ignore[arg-type]  # fmt: skip


def nothing_counted(assignment: Assignment) -> Counted:
    return Counted(state=assignment.state, seen=Seen(), dropped=dict.fromkeys(REASONS, 0))


class _Numbers(Form):
    dropped: dict[str, int]
    answers: int
    content: int
    file: int
    batches: int


def load_counted(path: Path, assignment: Assignment) -> tuple[Counted, Array]:
    """What an interrupted count left, and the key its fit starts from."""
    try:
        arrays = read_arrays(path)
        text = arrays["document"].tobytes()
        numbers = check_document(
            parse_json(text, where=str(path)), _Numbers, where=str(path), advice="it cannot be used"
        )
        learner = assignment.state.learner
        leaves, tree = jax.tree.flatten(learner.counts)
        counts = [jnp.asarray(arrays[f"counts_{i}"]) for i in range(len(leaves))]
        if [leaf.shape for leaf in counts] != [leaf.shape for leaf in leaves]:
            raise RunError("its counts are of other questions")
        learner = dataclasses.replace(learner, counts=jax.tree.unflatten(tree, counts))
        state = dataclasses.replace(assignment.state, learner=learner)
        root = jax.random.wrap_key_data(jnp.asarray(arrays["root"]))
        numbers["dropped"] = dict(
            zip(REASONS, numbers["dropped"].values(), strict=True)
        )  # 0.2.0 worded a reason otherwise
        return Counted(state=state, seen=Seen(arrays["seen"]), **numbers), root
    except (RunError, *DAMAGED) as error:
        raise RunError(f"cannot resume: {error}; remove the run folder and start again") from error


def count_files(
    paths: Sequence[Path],
    assignment: Assignment,
    counted: Counted,
    *,
    after: Callable[[Counted, bool], None] = lambda *_: None,
) -> Counted:
    """All answers of these files added to what was counted; `after` each batch, and whether a checkpoint is due."""
    saved = time.monotonic()
    for number in range(counted.file, len(paths)):
        for batch in answer_batches(paths[number], skip=counted.batches):
            counted = _with_batch(counted, batch, assignment, paths[number])
            due = time.monotonic() - saved >= SECONDS_BETWEEN_CHECKPOINTS
            saved = time.monotonic() if due else saved
            after(counted, due)
        counted = dataclasses.replace(counted, file=number + 1, batches=0)
    _check_share(counted)
    return counted


def _with_batch(counted: Counted, batch: Batch, assignment: Assignment, path: Path) -> Counted:
    clients, questions = batch.clients, batch.questions
    known = (clients >= 0) & (clients < assignment.population.clients)
    twice = counted.seen.add(clients[known])
    if twice is not None:
        raise DataError(
            f"client {twice} comes a second time in {path}; each client answers once: name every file once, and collect with "
            "numbers that do not overlap (--first-client)"
        )
    panel = assignment.protocol.survey(assignment.population).panel
    asked = np.zeros(len(batch), bool)
    asked[known] = assignment.questions(clients[known]) == questions[known]
    right = np.flatnonzero(asked)
    state, reports, content = counted.state, batch.reports.take(right), 0
    step = min(ROWS, max(1, ABSORBED_BYTES // (4 * panel.width)))
    whole = 0
    for start in range(0, len(right), step):
        rows = right[start : start + step]
        values, fine = unpack(panel, questions[rows], reports.slice(start, step))
        arrays = (_padded(array, step) for array in (clients[rows], questions[rows], fine, values))
        state = _absorbed(assignment.protocol, state, *arrays)
        whole += int(fine.sum())
        content += int(np.diff(starts_of(reports.slice(start, step)))[fine].sum())
    lost = (int((~known).sum()), int((known & ~asked).sum()), len(right) - whole)
    return dataclasses.replace(
        counted, state=state, dropped={reason: counted.dropped[reason] + n for reason, n in zip(REASONS, lost, strict=True)},
        answers=counted.answers + whole, content=counted.content + content, batches=counted.batches + 1,
    )  # fmt: skip


def _padded(values: Array, length: int) -> Array:
    kind = values.dtype if values.dtype == bool else np.int32
    return np.pad(values.astype(kind), [(0, length - len(values))] + [(0, 0)] * (values.ndim - 1))


@functools.partial(jax.jit, static_argnums=0)
def _absorbed(
    protocol: Poll, state: RunState, clients: Array, questions: Array, present: Array, values: Array
) -> RunState:
    """`Poll.absorb` itself; a dropped answer is an absent one."""
    ask = Ask(round=state.round, cohort=clients, common=(), own=questions)
    replies = Replies(clients=clients, present=present, values=values)
    return protocol.absorb(state, ask, replies, Keyed(state.learner.coin))


def _check_share(counted: Counted) -> None:
    lost = sum(counted.dropped.values())
    if counted.answers == 0 or lost > MOST_DROPPED * counted.read:
        reasons = "; ".join(f"{number:,} {reason}" for reason, number in counted.dropped.items() if number)
        raise DataError(
            f"{lost:,} of {counted.read:,} answers are malformed ({reasons}), more than {MOST_DROPPED:.0%}: the files are "
            "damaged or forged, and nothing was fitted; ask who collected them"
            if lost
            else "the files hold no answers; expected at least one"
        )
