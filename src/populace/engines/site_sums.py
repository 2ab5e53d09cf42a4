"""A site's side of a secure sum over a network: which sums it takes part in, and the charge for the one vector it masks.

Guarantee: of a run and round one vector is masked, with one share of the noise, drawn here; its charge, what the client
remembers, the masked bytes and the secrets behind them are on disk in one transaction before anything leaves
(`secure_sum.site` has the steps). The sum's roster, threshold and colluders are those that were agreed at join, and the site's
own key is in it.
Edge cases: a site hosts one client in a sum, itself. A site that cannot pay refuses the first step, so that the others do not
wait for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import numpy as np

from populace.engines.agreement import Agreement, shapes_of
from populace.engines.asked import Batch, common_digest, read_ask
from populace.engines.messages import RefusedError, Request, make_sum_reply
from populace.engines.runtime import Keys
from populace.engines.secure_sum.journal import SqliteJournal
from populace.engines.secure_sum.messages import Step
from populace.engines.secure_sum.primitives import signing_public
from populace.engines.secure_sum.roster import Opening, SumRoster
from populace.engines.secure_sum.site import SumSite
from populace.engines.site_answers import answer_one, look_up, memory_of, pack_memory
from populace.engines.sums import with_share
from populace.methods.base import Ask, Population, Protocol
from populace.privacy.ledger import Charge
from populace.privacy.noise_shares import NoiseShares
from populace.privacy.source import Keyed, Source, System
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.types import ArrayTree, NumpyArray

if TYPE_CHECKING:
    from populace.engines.site import Site


def answer_step(site: Site, request: Request, step: Step) -> bytes:
    """The reply of a site to one step of a secure sum, kept before this returns."""
    agreement = site.agreed(request.terms)
    population = site.population(agreement, request)
    roster, signing_key = _roster(site, agreement, population)
    shares = _shares(agreement, population, request, roster)
    opening = Opening(
        run=request.run, round=request.round, roster=roster, size=shares.mechanism.size, bits=shares.bits,
        question=request.question,
    )  # fmt: skip
    place = [member.key for member in roster.members].index(signing_public(signing_key).hex())
    with SqliteLedger(site.ledger_path, site.budget, create=False) as ledger:
        journal = SqliteJournal(ledger.connection)
        own = SumSite(opening=opening, place=place, signing_key=signing_key, journal=journal)
        if step == "mask":
            taken = own.stored(step, request.rows) or _mask(site, ledger, agreement, population, request, shares, own)
            ledger.keep_head()  # also where they were stored before: nothing leaves that an old ledger would not know
        else:
            if step == "advertise" and own.stored(step, request.rows) is None:
                _check_paying(site, ledger, agreement, population, request)
            taken = own.answer(step, request.rows)
    return make_sum_reply(agreement.digest, run=request.run, round_id=request.round, step=step, taken=taken)


def opens_sum(protocol: Protocol, population: Population, round_id: int) -> bool:
    """Whether all that is seen of a round is a sum; other rounds of the same method have their whole noise at each client."""
    cohort = np.arange(population.clients, dtype=np.int32)
    return protocol.sum_shares(Ask(round=round_id, cohort=cohort, common=(), own=()), population) is not None


def _roster(site: Site, agreement: Agreement, population: Population) -> tuple[SumRoster, bytes]:
    roster = agreement.roster
    if roster is None or site.signing_key is None:
        raise RefusedError("roster", "no roster of a secure sum was agreed to, or this site has no key to sign with")
    if signing_public(site.signing_key).hex() not in {member.key for member in roster.members}:
        raise RefusedError("roster", "the roster that was agreed to does not name this site's own key")
    if gone := sorted(site.revoked & {member.site for member in roster.members}):
        raise RefusedError("roster", f"{', '.join(gone)} of the roster that was agreed to is revoked; agree to another")
    if population.clients != len(roster.members) or len(site.hosted.accounts) != 1:
        raise RefusedError(
            "population",
            f"a secure sum is over sites that are one client each, {len(roster.members)} as agreed, and the run has "
            f"{population.clients} clients, {len(site.hosted.accounts)} of them here",
        )
    return roster, site.signing_key


def _shares(agreement: Agreement, population: Population, request: Request, roster: SumRoster) -> NoiseShares:
    """The noise of this sum; refuses a method whose noise is calibrated for other survivors than the roster allows."""
    cohort = np.arange(population.clients, dtype=np.int32)
    ask = Ask(round=request.round, cohort=cohort, common=(), own=())
    shares = agreement.protocol.sum_shares(ask, population)
    if shares is None:
        raise RefusedError("guarantee", "the method opens no sum in this round")
    if (shares.least_survivors, shares.colluders) != (roster.threshold, roster.colluders):
        raise RefusedError(
            "roster",
            f"the method's noise is for {shares.least_survivors} survivors with {shares.colluders} colluders, and the roster "
            f"has a threshold of {roster.threshold} with {roster.colluders}",
        )
    return shares


def _charge(agreement: Agreement, population: Population, request: Request) -> Charge:
    cohort = np.arange(population.clients, dtype=np.int32)
    return agreement.protocol.charge(Ask(round=request.round, cohort=cohort, common=(), own=()), population)


def _check_paying(
    site: Site, ledger: SqliteLedger, agreement: Agreement, population: Population, request: Request
) -> None:
    """Refuse a sum that could not be paid for, before anything of it is sent."""
    limit, relation = site.run_limit(agreement.protocol, population, request)
    charge = _charge(agreement, population, request)
    ledger.check_relation(relation)
    (account,) = site.hosted.accounts
    ledger.check_run(account, charge, run=request.run, limit=limit)
    ledger.check(account, charge)


def _mask(
    site: Site,
    ledger: SqliteLedger,
    agreement: Agreement,
    population: Population,
    request: Request,
    shares: NoiseShares,
    own: SumSite,
) -> bytes:
    """Mask this site's numbers with its share of the noise, charged in the transaction that keeps them."""
    limit, relation = site.run_limit(agreement.protocol, population, request)
    shapes = shapes_of(agreement.protocol, population, request.round)
    asked = read_ask(request, shapes, hosted=len(site.hosted.accounts))
    if common_digest(asked.common) != request.question:
        raise RefusedError("sum", "this site is asked something else than all sites of the sum")
    charge = _charge(agreement, population, request)
    batch = site.batch(site.begun(ledger, request), request, asked)
    charges = ledger.read(batch.accounts, run=request.run, round_id=request.round, questions=batch.questions)
    replies, new = look_up(charges, request, batch, charge, limit)
    if replies or not new:
        raise RefusedError("changed", f"round {request.round} of run {request.run} was answered before, in another sum")
    ledger.check_relation(relation)
    account, question = batch.accounts[0], batch.questions[0]

    after: list[ArrayTree] = []  # what the client remembers from now on, once its numbers are made

    def keep(write: Callable[[], None], reply: bytes) -> None:
        paid = hashlib.sha256(reply).digest()  # the bytes themselves are kept with the step
        ledger.commit_many(
            [(account, question, paid, pack_memory(after[-1]))], charge, run=request.run, round_id=request.round, limit=limit,
            before=[new[0]], relation=relation, beside=write,
        )  # fmt: skip

    def numbers() -> NumpyArray:
        before = memory_of(site, ledger, agreement, population, request, batch, 0, shapes)
        value, memory = answer_one(site, agreement, population, request, batch, 0, before)
        after.append(memory)
        return with_share(jax.tree.map(np.asarray, value), shares, _source(site, request, batch))

    return own.answer("mask", request.rows, numbers, keep=keep)


def _source(site: Site, request: Request, batch: Batch) -> Source:
    if site.root is None:
        return System()
    return Keyed(Keys(site.root).share(request.round, int(batch.clients[0])))
