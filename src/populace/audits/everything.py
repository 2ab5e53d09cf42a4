"""`populace audit all`: every mechanism and every method, in every way it can be run, spread over processes."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence

import jax

from populace.audits import gaussian_noise
from populace.audits.messages import FACES, MECHANISMS, Effort, audit_mechanism, make_mechanism
from populace.audits.methods import Audits, Subject, audit_subject
from populace.engines.runtime import make_key
from populace.errors import RunError
from populace.runs.workers import begin_worker

Say = Callable[[str], None]

GAUSSIAN = "gaussian"


def audit_named(name: str, *, epsilon: float, size: int, effort: Effort) -> Audits:
    """Audit both samplers of a mechanism: with a JAX key, and with the operating system's generator."""
    if name == GAUSSIAN:
        key = jax.random.fold_in(make_key(effort.seed), 3)
        pairs = [
            gaussian_noise.audit_gaussian(epsilon=epsilon, face=face, confidence=effort.confidence, key=key)
            for face in gaussian_noise.FACES
        ]
        return Audits(findings=tuple(pair[0] for pair in pairs), recorded=tuple(pair[1] for pair in pairs))
    oracle = make_mechanism(name, epsilon=epsilon, size=size)
    return Audits(
        findings=tuple(
            audit_mechanism(oracle, effort=effort, face=face, what=f"{name}, {size} values, {face}") for face in FACES
        )
    )


def audit_all(
    subjects: Sequence[Subject], *, epsilon: float, size: int, effort: Effort, jobs: int = 1, say: Say = lambda _: None
) -> Audits:
    """Audit all mechanisms, then these methods; the results are in that order."""
    began, names = time.monotonic(), (*MECHANISMS, GAUSSIAN)
    found = Audits()
    for name in names:
        found += audit_named(name, epsilon=epsilon, size=size, effort=effort)
    say(f"{len(names)} mechanisms, {time.monotonic() - began:.0f} s")
    done: dict[int, Audits] = {}
    for number, audits in _audited(subjects, jobs):
        done[number] = audits
        say(f"{len(done)} of {len(subjects)} methods: {subjects[number].label}, {time.monotonic() - began:.0f} s")
    return sum((done[number] for number in range(len(subjects))), start=found)


def _audited(subjects: Sequence[Subject], jobs: int) -> Iterator[tuple[int, Audits]]:
    """Yield audits as they finish. Processes are spawned, because a compiled program does not survive a fork."""
    if min(jobs, len(subjects)) <= 1:
        for number, subject in enumerate(subjects):
            yield number, audit_subject(subject, quick=True)
        return
    before = multiprocessing.active_children()
    pool = concurrent.futures.ProcessPoolExecutor(
        min(jobs, len(subjects)), mp_context=multiprocessing.get_context("spawn"), initializer=begin_worker
    )
    # The longest first, so that no process is left with one at the end.
    order = sorted(range(len(subjects)), key=lambda number: -subjects[number].trained)
    try:
        waiting = {pool.submit(_audit, subjects[number]): number for number in order}
        for future in concurrent.futures.as_completed(waiting):
            yield waiting[future], future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise RunError("a process that audited died (out of memory?); give the command again with --jobs 1") from error
    finally:
        for child in multiprocessing.active_children():
            if child not in before:
                child.terminate()
        pool.shutdown(cancel_futures=True)


def _audit(subject: Subject) -> Audits:
    return audit_subject(subject, quick=True)
