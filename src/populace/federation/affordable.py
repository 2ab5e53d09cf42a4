"""What a site checks before it agrees: that a run fits its limit, that its charges add up, whom it would have to trust."""

from __future__ import annotations

from populace.engines.agreement import Agreement
from populace.engines.site_file import SiteFile
from populace.errors import BudgetError, InputError
from populace.federation.sum_keys import seats_of
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Budget
from populace.privacy.relation import SEEN_WITHOUT_NOISE, relation_of


def check_affordable(agreement: Agreement, budget: Budget, *, clients: int, records: int) -> Guarantee:
    """The guarantee of one run; raises an error for a limit under which every request would be refused."""
    claim = agreement.protocol.guarantee(agreement.population(clients=clients, records=records))
    if claim.epsilon > budget.epsilon or claim.delta > budget.delta:
        pairs = (("--epsilon", claim.epsilon, budget.epsilon), ("--delta", claim.delta, budget.delta))
        raised = " and ".join(f"raise {option}" for option, needed, limit in pairs if needed > limit)
        raise BudgetError(
            f"a run of {agreement.method!r} takes {claim.bound} per {claim.unit}, more than the limit of epsilon "
            f"{budget.epsilon:g} and delta {budget.delta:g}; {raised}, or do not join"
        )
    return claim


def check_one_relation(file: SiteFile, *, clients: int) -> None:
    """Refuse agreements whose charges would not add up in one ledger."""
    found: dict[tuple[str, ...], str] = {}
    for agreement in file.agreements().values():
        population = agreement.population(clients=seats_of(agreement, clients), records=file.records)
        claim = agreement.protocol.guarantee(population)
        found.setdefault((claim.unit, *relation_of(claim).kind), f"{agreement.method} (per {claim.unit}, `{claim.neighbours}`, "
                         f"trust `{claim.trust}`)")  # fmt: skip
    if len(found) > 1:
        raise InputError(
            f"what {' and '.join(found.values())} release does not add up to one limit: join with each kind in a folder of its "
            "own and split the limit between them, or take the other one out of `agreed` in the site's file first"
        )


def check_trust(claim: Guarantee, *, trusted: bool) -> None:
    """Refuse messages without noise unless the site's owner has said that the coordinator may see them."""
    if claim.trust in SEEN_WITHOUT_NOISE and not trusted:
        raise InputError(
            f"under this method (trust `{claim.trust}`) the coordinator sees your clients' messages without noise, and the "
            "limit holds only against those who see what the coordinator shows: if you trust it so far, join with "
            "--trust-coordinator"
        )
