"""What must hold after a run, whatever happened in it: each check returns the sentences of what does not."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from populace.privacy import events
from populace.privacy.accounting import epsilon_of
from populace.privacy.ledger import composed

from .evidence import Books, Entry, Log, account_of, place_of, same_state

SLACK = 1 + 1e-9  # of sums of decimals


def check_chain(site: str, books: Books) -> list[str]:
    """Every entry is linked to the one before it, and the file beside the ledger names one of them."""
    chain = books.base[1]
    chains = {books.base[0]: chain}
    for entry in books.entries:
        row = (
            entry.account,
            entry.run,
            entry.round,
            entry.question,
            entry.unit,
            entry.event,
            entry.neighbours,
            entry.trust,
        )
        digest = hashlib.sha256(bytes(entry.reply)).hexdigest()
        chain = hashlib.sha256(json.dumps([chain, *row, digest, float(entry.at)]).encode()).hexdigest()
        if entry.chain != chain:
            return [f"{site}: the chain of the ledger breaks at entry {entry.id}"]
        chains[entry.id] = chain
    if chains.get(books.head["last"]) != books.head["chain"]:
        return [f"{site}: the head names entry {books.head['last']}, which the ledger does not have so"]
    return []


def check_head(log: Log, books: Mapping[str, Books]) -> list[str]:
    """Nothing was absorbed that the file beside the ledger did not know: it is written before a reply leaves."""
    return [
        f"round {entry.round}: a reply of {site} was absorbed, and entry {entry.id} is past the ledger's head"
        for site in log.seats
        for entry in books[site].of(log.run)
        if entry.id > books[site].head["last"] and absorbed_in(log, books, site, entry.round)
    ]


def check_one_charge(site: str, books: Books) -> list[str]:
    """One charge per participation: nobody is charged twice in a round of a run."""
    counts = Counter((entry.account, entry.run, entry.round) for entry in books.entries)
    return [f"{site}: {key} was charged {count} times" for key, count in counts.items() if count > 1]


def check_spending(site: str, books: Books, guarantees: Mapping[str, float]) -> list[str]:
    """No account has spent more in a run than its guarantee, nor more in all than the site's limit."""
    found = []
    spent: dict[tuple[str, str], Counter[str]] = {}
    for entry in books.entries:
        for run in (entry.run, ""):
            spent.setdefault((entry.account, run), Counter())[entry.event] += 1
    totals: dict[tuple[tuple[str, int], ...], float] = {}
    for (account, run), counts in spent.items():
        kinds = tuple(sorted(counts.items()))
        if kinds not in totals:
            parts = [(events.from_json(json.loads(text)), count) for text, count in kinds]
            totals[kinds] = epsilon_of(composed(parts), delta=books.delta)
        most = guarantees.get(run, books.limit) if run else books.limit
        if totals[kinds] > most * SLACK:
            found.append(f"{site}: {account} spent {totals[kinds]:g} in {run or 'all'}, more than {most:g}")
    return found


def check_absorbed(log: Log, books: Mapping[str, Books]) -> list[str]:
    """Every reply that was absorbed was charged: by the log, round for round, and by the checkpoint, client for client."""
    found = []
    per_round = {
        site: Counter(entry.round for entry in books[site].of(log.run)) if site in books else Counter()
        for site in log.seats
    }
    for line in log.lines:
        for site, replies in line.replies.items():
            if replies and per_round[site][line.round] != replies:
                found.append(
                    f"round {line.round}: {replies} replies of {site} were absorbed, {per_round[site][line.round]} charged"
                )
    for site, (first, clients) in log.seats.items():
        charged = Counter(entry.account for entry in books[site].of(log.run)) if site in books else Counter()
        for place in range(clients):
            if log.heard[first + place] > charged[account_of(place)]:
                found.append(
                    f"{site}: {log.heard[first + place]} replies of {account_of(place)} were absorbed, "
                    f"{charged[account_of(place)]} charged"
                )
    return found


def check_lost(log: Log, books: Mapping[str, Books]) -> list[str]:
    """A charge without an absorbed reply belongs to a site that the log calls missing or refused in that round."""
    found = []
    for site in log.seats:
        for round_id in sorted({entry.round for entry in books[site].of(log.run)}):
            line = log.line(round_id)
            if line is None or line.replies.get(site):
                continue
            if site not in line.missing and site not in line.refusals:
                found.append(f"round {round_id}: {site} charged, and the log neither has its replies nor misses them")
    return found


def check_log(log: Log) -> list[str]:
    """The log has each round at most once, and says together with the checkpoint how often each site was heard."""
    found = []
    counts = Counter(line.round for line in log.lines)
    found += [f"the log has round {number} {count} times" for number, count in counts.items() if count > 1]
    found += [f"the log has round {number} of a run with {log.rounds}" for number in counts if number >= log.rounds]
    unknown = [number for number in range(log.rounds) if number not in counts]
    for site, (first, clients) in log.seats.items():
        heard = int(log.heard[first : first + clients].sum())
        said = sum(line.replies.get(site, 0) for line in log.lines)
        if said > heard or (said != heard and not unknown):
            found.append(f"the log has {said} replies of {site}, the checkpoint {heard}")
    return found


def check_same(name: str, found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> list[str]:
    """Bit for bit what an undisturbed run has, in which exactly the lost participations are missing."""
    return [f"{name}: {part} differs from an undisturbed run" for part in same_state(found, wanted)]


def check_same_charges(site: str, found: Sequence[Entry], wanted: Sequence[Entry]) -> list[str]:
    """The very charges, questions and replies of an undisturbed run."""
    more = Counter(entry.content for entry in found) - Counter(entry.content for entry in wanted)
    less = Counter(entry.content for entry in wanted) - Counter(entry.content for entry in found)
    said = []
    for what, entries in (("that an undisturbed run does not have", more), ("less than an undisturbed run", less)):
        for content in entries:
            said.append(f"{site}: a charge of {content[0]} in round {content[1]} {what}")
    return said


def count_lost(log: Log, books: Mapping[str, Books]) -> dict[str, int]:
    """Participations of each site that were charged and not absorbed."""
    found: dict[str, int] = {}
    for site, (first, clients) in log.seats.items():
        heard = int(log.heard[first : first + clients].sum())
        found[site] = len(books[site].of(log.run)) - heard
    return found


def count_missed(log: Log) -> dict[str, int]:
    """Rounds that asked a site and went on without its replies."""
    return {site: sum(site in line.missing or site in line.refusals for line in log.lines) for site in log.seats}


def absorbed_in(log: Log, books: Mapping[str, Books], site: str, round_id: int) -> bool | None:
    """Whether a site's replies of a round were absorbed. Where the log lost the line, the checkpoint may tell; None if not."""
    line = log.line(round_id)
    if line is not None:
        return bool(line.replies.get(site))
    entries = books[site].of(log.run)
    here = next((entry for entry in entries if entry.round == round_id), None)
    if here is None:
        return False
    own = [entry.round for entry in entries if entry.account == here.account]
    known = sum(bool(line.replies.get(site)) for number in own if (line := log.line(number)) is not None)
    open_rounds = sum(log.line(number) is None for number in own)
    left = int(log.heard[log.seats[site][0] + place_of(here.account)]) - known
    return True if left == open_rounds else False if left == 0 else None
