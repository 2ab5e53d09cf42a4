"""privacy.html: the privacy statement of a run, on a page that may be published.

It is made from privacy.json alone, which holds nothing that was computed from real rows but what it marks as public or as read
from the data. Plain sentences come first, mathematics after. No script, nothing loaded from elsewhere; made for paper too.
"""

from __future__ import annotations

import math
from pathlib import Path

from jinja2 import TemplateError

from populace.border.models import interpreting
from populace.border.regular import read_text
from populace.errors import RunError
from populace.privacy import events
from populace.privacy.consequences import OWN_NOISE, Consequences, consequences, share_in_words, silos_of
from populace.privacy.guarantee import FORMAT, Guarantee, guarantee_from_json
from populace.privacy.noised_steps import BATCHES
from populace.report.plain_language import TRUST, in_plain_language, trust_of
from populace.report.templating import environment
from populace.runs.folder import RunFolder, claim_json, digest_of
from populace.runs.ledger.wording import FIXED, ONE_PERSON, PLANNED
from populace.runs.verify.documents import DAMAGED, Check, Papers
from populace.tables.files import write_text
from populace.types import JsonObject
from populace.version import __version__

PAGE = "privacy.html"
DELTA = "Delta: "
SINGLE = ("one row", "one image", "one record")  # how units begin that hold one record each
NO_LEDGER = {
    "sites": "Each site keeps a ledger of its own over all runs that it answers, and refuses what would pass its owner's "
    "limit; what they say stays there.",
    "files": "Whoever collected the answers kept a ledger for each client, which answers once. Whatever else was released "
    "about the same records adds to this.",
    "devices": "The page notes on each device that it answered, and answers a study once there; it knows no limit over several "
    "studies. `populace device` keeps a ledger that refuses what would pass its owner's limit. What other studies were told "
    "about the same person adds to this.",
}
NAMED = 24  # columns that a page names
SEES = {
    "local": (
        ("Each person's own device", "the record itself"),
        ("The server that collects", "one randomised answer of each device, and which device it came from"),
        ("Whoever reads the release", "the synthetic data and the model, both made from those answers"),
    ),
    "silo": (
        ("Whoever already held the records (the silo)", "its own records, before and after noise"),
        (
            "The server, and other silos",
            "the messages that left a silo, with the noise in them: the bound covers their contents",
        ),
        ("Whoever reads the release", "the synthetic data and the model, both made from what left the silos"),
    ),
    "secure-sum": (
        ("Whoever already held the records (the silo)", "its own records"),
        ("The server", "sums over many silos, with noise; no single silo's message, while no more collude than stated"),
        ("Whoever reads the release", "the synthetic data and the model, both made from the noisy sums"),
    ),
    "central": (
        ("Whoever already held the records", "its own records"),
        ("The server", "every message, clipped and WITHOUT noise: there is no protection from the server"),
        ("Whoever reads the release", "the synthetic data and the model, both made after the server added noise"),
    ),
    "not-private": (("Everybody", "what is released, without protection"),),
}
ONE_HOLDER = (
    ("Whoever holds the records, and ran the method on them", "the records themselves"),
    ("Whoever reads the release", "the synthetic data and the model, both made after the noise was added"),
)
SIMULATED = ("Whoever ran this simulation", "all records: they stood on one machine")
REHEARSED = ("Whoever has the machine of this rehearsal", "all records: all sites stood on it")
DEPLOYED = "In a deployment, which this run was not:"
SIDE_CHANNELS = (
    "how long a site takes, whether it fails or stays silent, and who talks to whom: a server sees it, it may depend on "
    "records, and no bound here covers it."
)
MAY = "synthetic.*, privacy.html and privacy.json; generator.* too, which is the model behind the rows"
ALL_HELD = (
    "; whoever ran this had all records on one machine, which is for the records' owners to allow, and makes no difference to "
    "those who get these files alone"
)
MAY_READ = (
    "privacy.html and privacy.json; synthetic.* and generator.* only once somebody who answers for the data has checked that "
    "no value in the lists that were read from the records gives anybody away (or the domains are declared and the run is "
    "made again)"
)
MAY_UNPROTECTED = "privacy.html and privacy.json"
UNPROTECTED = "synthetic.* and generator.*, which nothing protects; "
MAY_NOT = (
    "metrics.json, report.html, comparison.* and attacks.json (computed on real rows without noise); checkpoint.npz and "
    "resume.json of an unfinished run (they hold its keys and its state); run.json and the ledger, which say "
    "which runs share records"
)


def write_statement(folder: str | Path) -> Path:
    """privacy.html beside the privacy.json it is made from."""
    source, page = RunFolder(folder) / "privacy.json", RunFolder(folder) / PAGE
    privacy = RunFolder(folder).privacy()
    try:
        with interpreting(str(source)):
            text = statement(privacy, digest=digest_of(source))
    except TemplateError as error:
        raise RunError(f"{source} is damaged: {error}; restore it from a copy") from error
    write_text(page, text)
    return page


def statement(privacy: JsonObject, *, digest: str = "") -> str:
    """The page of a privacy.json; `digest` is the SHA-256 of the file."""
    guarantee = guarantee_from_json(dict(privacy))
    event = events.from_json(privacy["event"]) if privacy.get("event") else None
    run = privacy.get("run") or {}
    silos = silos_of(run)
    meaning = None if guarantee.trust == "not-private" else consequences(guarantee, event, silos=silos)
    plain, said = in_plain_language(privacy), meaning.sentences() if meaning else ()
    return environment().get_template(PAGE).render(
        alarm=plain.alarm and plain.short, short=plain.short, guarantee=guarantee, neighbours=guarantee.neighbours_in_words,
        run=run, made=made_in_words(privacy, run), strength=dict(plain.answers).get("How well?", "Nothing is guaranteed."),
        slack=_slack(guarantee, meaning), sentences=[line for line in said if not line.startswith(DELTA)],
        persons=_persons(guarantee, run, meaning), trust=trust_of(guarantee) if meaning else TRUST["not-private"],
        sees=_sees(guarantee, bool(meaning)), limits=_limits(guarantee), domains=_domains(guarantee),
        before=total_in_words(privacy), history=_history(privacy), renamed=_renamed(privacy, guarantee),
        event="" if event is None else str(event),
        files=privacy.get("files") or {}, digest=digest, version=__version__,
        may=_may(guarantee, plain.private), may_not=MAY_NOT if plain.private else UNPROTECTED + MAY_NOT,
    )  # fmt: skip


def _may(guarantee: Guarantee, private: bool) -> str:
    """Which files may be published."""
    if not private:
        return MAY_UNPROTECTED
    return (MAY_READ if guarantee.read_from_data else MAY) + (ALL_HELD if guarantee.one_machine else "")


def todays_words(privacy: JsonObject) -> JsonObject:
    """A privacy.json of any version in the words of this one; `renamed` says which words were others in the file."""
    guarantee = guarantee_from_json(dict(privacy))
    return {**privacy, **claim_json(guarantee, privacy.get("history")), "renamed": _renamed(privacy, guarantee)}


def check_page(papers: Papers) -> Check:
    """Whether privacy.html is the page of this privacy.json: made again, it is the same."""
    page, source = papers.folder / PAGE, papers.folder / "privacy.json"
    if not page.is_file():
        return Check(PAGE, "not checked", "0.1.0 made none" if papers.old else "there is none in the folder")
    text, digest = read_text(page), digest_of(source)
    if f'content="{digest}"' not in text:
        return Check(PAGE, "fails", "is the page of another privacy.json")
    if f'content="populace {__version__}"' not in text:
        return Check(PAGE, "not checked", f"was made by another version than {__version__}, from this privacy.json")
    try:
        again = statement(papers.privacy, digest=digest)
    except (*DAMAGED, TemplateError) as error:
        return Check(PAGE, "fails", f"cannot be made again from this privacy.json: {error!r}")
    if text != again:
        return Check(
            PAGE, "fails", "says something else than this populace makes of privacy.json: changed, or another build's"
        )
    return Check(PAGE, "holds", "is the page of this privacy.json, word for word")


def made_in_words(privacy: JsonObject, run: JsonObject) -> str:
    """Where and how, in one sentence."""
    if not run:
        return "Made by populace 0.1.0, whose files say less than today's." if _old(privacy) else ""
    alone = "the records of one silo, which ran the method itself"
    dealt = f"{run.get('clients', 0):,} simulated clients on one machine ({run.get('split', '')})"
    where = {
        "simulation": alone if privacy.get("sole_holder") else dealt,
        "sites": _sites(privacy, run),
        "files": f"{run.get('clients', 0):,} answers collected in files",
        "devices": _devices(run),
    }[run.get("where", "simulation")]
    what = "images" if "synthetic.npz" in (privacy.get("files") or {}) else "rows"
    when = f" Written on {privacy['written']}." if privacy.get("written") else ""
    return f"{run['rows']:,} synthetic {what} by the method {run['method']}, from {where}.{when}"


def _devices(run: JsonObject) -> str:
    """How many answers, and whether one person may have sent several."""
    number = f"{run.get('clients', 0):,} answers"
    if (run.get("population") or {}).get("open"):
        return f"{number}; one person may have sent several, and k answers have k times epsilon"
    return f"{number}, one for each invitation"


def _sites(privacy: JsonObject, run: JsonObject) -> str:
    """What kind of sites, and how many of their clients answered."""
    kind = "rehearsed on one machine" if privacy.get("rehearsal") else "that answered for themselves"
    people = run.get("population") or {}
    if "answered" not in people:
        return f"sites {kind}"
    return f"sites {kind} ({people['answered']:,} of {people['clients']:,} clients answered)"


def _slack(guarantee: Guarantee, meaning: Consequences | None) -> str:
    """What delta is, for somebody who never heard of it, and n times it."""
    if meaning is None or not guarantee.delta:
        return ""
    said = (
        f"The bound has a slack, delta {guarantee.delta:.3g}: roughly, with that probability it may fail for one unit."
    )
    total = [line.removeprefix(DELTA) for line in meaning.sentences() if line.startswith(DELTA)]
    return " ".join([said, *(line[:1].upper() + line[1:] for line in total)])


def _old(privacy: JsonObject) -> bool:
    return int(privacy.get("format", 1)) < FORMAT


def _persons(guarantee: Guarantee, run: JsonObject, meaning: Consequences | None) -> str:
    """Does one person appear several times? What is covered then."""
    if meaning is None:
        return "That makes no difference: nobody is protected."
    column = (run.get("asked") or {}).get("client_column")
    one = meaning.pair(guarantee.epsilon, guarantee.delta)
    groups = ", ".join(f"with {k} {meaning.pair(epsilon, delta)}" for k, epsilon, delta in meaning.groups)
    less = f"{groups}, where one has {one}"
    if guarantee.unit == "person":
        own = _told(meaning) + (f" {OWN_NOISE}" if guarantee.trust == "silo" else "")
        silos = f" Somebody with rows at several silos pays at each ({less}).{own}" if groups else ""
        return (
            f"They may, however often: the bound is for {guarantee.unit_in_words}. Somebody who stands under two names counts "
            f"as two.{silos}"
        )
    if guarantee.unit == "client" and column:
        return (
            f"They may. All that stands under one value of the column “{column}” is one unit and covered together, however "
            f"many rows that is. A person who stands under several values of it is covered less ({less})."
        )
    if guarantee.unit == "record" or guarantee.protects.startswith(SINGLE):
        return (
            f"The run assumes that they do not: the bound is for {guarantee.unit_in_words}. All data of somebody who is there "
            f"several times have a weaker bound together ({less}); many times have none worth the name."
        )
    return (
        f"They may, within one unit ({guarantee.unit_in_words}): it is covered as a whole. A person in several units is "
        f"covered less ({less})."
    )


def _told(meaning: Consequences) -> str:
    """The bounds of persons at several silos in per cent."""
    shares = [f"{share_in_words(right)} with {k}" for k, right in meaning.groups_presence]
    if meaning.presence is None or not shares:
        return ""
    return (
        " Whether they were used at all, where both were held for equally likely before, is then told correctly at most so "
        f"often: {', '.join(shares)}, where it is {share_in_words(meaning.presence)} with one."
    )


def _sees(guarantee: Guarantee, claimed: bool) -> tuple[tuple[str, str], ...]:
    if guarantee.sole_holder and claimed:
        return ONE_HOLDER
    found = SEES[guarantee.trust if claimed else "not-private"]
    if not guarantee.one_machine:
        return found
    return (
        SIMULATED if guarantee.simulated else REHEARSED,
        found[-1],
        *((f"{DEPLOYED} {who[:1].lower()}{who[1:]}", what) for who, what in found[:-1]),
    )


def _limits(guarantee: Guarantee) -> tuple[str, ...]:
    """What the bound does not cover, one sentence each."""
    found = []
    if guarantee.read_from_data:
        found.append(
            f"The possible values of {_columns(guarantee.read_from_data)} were read from the records. They stand in the model "
            "and in the synthetic rows, and a rare one can give somebody away."
        )
    found += [
        f"{name[:1].upper()}{name[1:]}: read from the records, and public here." for name in guarantee.counts_read
    ]
    if guarantee.neighbours == "replace":
        found.append(
            "Whether somebody is in the data, and how many are, is not protected: the bound treats it as known to "
            "everybody. The run itself publishes only numbers, in all and of each site."
        )
    elif guarantee.unit == "person":
        found.append(
            "How many rows there are, in all and at each silo, is not protected: the bound treats it as known to everybody. "
            "How many persons they belong to is covered by the bound: it is told with noise alone."
        )
    elif guarantee.units:
        found.append("How many units there are is not protected: the bound treats it as known to everybody.")
    if guarantee.seeded:
        found.append(
            "Everything: the noise was drawn from a seed, and whoever knows or guesses the seed can take it off."
        )
    if guarantee.one_machine:
        how = "simulated" if guarantee.simulated else "a rehearsal"
        found.append(f"The run was {how}: nothing protects from the machine that held all records, or from who ran it.")
        found.append(f"{DEPLOYED} {SIDE_CHANNELS}")
    elif not guarantee.sole_holder:  # nothing leaves one who holds everything but what is released
        found.append(f"{SIDE_CHANNELS[:1].upper()}{SIDE_CHANNELS[1:]}")
    if BATCHES in guarantee.assumptions:
        found.append(
            "The bound assumes that a record's gradient does not depend on its place in a batch: so seen on processors, not "
            "proved, and not examined on accelerators."
        )
    found += [
        "Other releases about the same records add to this one.",
        "Choosing the best of several runs by looking at real rows is a release of its own that no bound here covers.",
        "How good the synthetic data are was, if at all, measured on real rows without noise. No such figure is on this page.",
        "What is true of a whole group or of everybody is what the data are for. It may say something about a person who was "
        "never in the data.",
    ]
    return tuple(found)


def _columns(names: tuple[str, ...]) -> str:
    if len(names) <= NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more columns"


def _domains(guarantee: Guarantee) -> tuple[tuple[str, str, bool], ...]:
    """(who says so, of which columns, whether the bound covers it)."""
    found = [(said, _columns(columns), True) for said, columns in guarantee.domain_sources]
    if guarantee.read_from_data:
        found.append(("read from the records", _columns(guarantee.read_from_data), False))
    return tuple(found)


def total_in_words(privacy: JsonObject) -> str:
    """The total with earlier runs, where the bound stands, so that nobody reads the bound alone."""
    history = privacy.get("history") or {}
    if not history.get("runs_before") or "epsilon_added" not in history:
        return ""
    added = float(history["epsilon_added"])
    if math.isinf(added):
        return (
            "Together with earlier runs in the same ledger, if they were about the same records, nothing is guaranteed."
        )
    count, planned = history["runs_before"], float(history["epsilon_if_all_share_records"])
    one = {"record": "for one record", "person": f"for {ONE_PERSON}"}.get(str(history.get("unit")), "for one unit")
    less = ""
    if planned < added:
        pair = Consequences.pair(planned, float(history["delta_if_all_share_records"]))
        less = f"; {pair} {PLANNED}"
    return (
        f"Together with {count} earlier {'run' if count == 1 else 'runs'} in the same ledger, if all were about the same "
        f"records: {Consequences.pair(added, float(history['delta_added']))}, {one}, {FIXED}{less}."
    )


def _history(privacy: JsonObject) -> str:
    """Other runs on the same data, as far as a ledger knows them."""
    history = privacy.get("history")
    if not history:
        alone = "No ledger of other runs was kept with this run. Whatever else was released about the same records adds to it."
        return NO_LEDGER.get(str((privacy.get("run") or {}).get("where")), alone)
    said = str(history["said"]).rstrip(".")
    return f"{said[:1].upper()}{said[1:]}."


def _renamed(privacy: JsonObject, guarantee: Guarantee) -> tuple[str, ...]:
    """Words of an old file that are read as others today."""
    found = []
    if privacy["trust"] != guarantee.trust:
        found.append(
            f"The file says trust “{privacy['trust']}”; today's word for what it means is “{guarantee.trust}”."
        )
    if guarantee.neighbours == "add-remove":
        found.append(
            "The file says neighbours “add-remove”. The number of units was public, so that today's word is “zero-out”: one "
            "unit's content replaced by nothing. The numbers are the same."
        )
    return tuple(found)
