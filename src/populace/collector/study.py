"""A study: what is asked of whom on which terms, fixed in a folder before the first invitation goes out.

study.json        the agreed facts: method, all parameters, schema, the planned number of answers, the public coin
schema.toml       the schema as it was given
organiser.token   what the organiser's page asks for; readable by its owner alone
store.url         the address of the store, where it is not the file beside; readable by its owner alone
collector.db      the store: invitations, places, answers, rounds
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import pydantic

from populace.border.documents import MOST_TOML
from populace.border.models import DAMAGED, Form, read_document
from populace.border.regular import read_text
from populace.engines.agreement import Agreement, agreement_from_json
from populace.engines.runtime import Keys, make_key
from populace.errors import InputError, RunError, SchemaError, SpecError
from populace.methods.base import Population, Protocol
from populace.methods.blocks.composed import ComposedMethod
from populace.methods.blocks.one_report import Survey, SurveyLearner
from populace.methods.registry import parameters
from populace.runs.named import check_seed
from populace.runs.spec import make_method, make_spec
from populace.tables.files import write_json, write_text
from populace.tables.schema import Schema, load_schema
from populace.types import JsonObject

FORMAT = 1
METHODS = ("poll", "independent", "samprivsyn", "dp-fed-wae")
USUAL_CLIENTS = 10_000
MOST_CLIENTS = 10**8
TOKEN_BYTES = 16
DAY, HOUR = 86_400.0, 3_600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """How long a device has for its place, a round for its answers, and late answers after the round, in seconds.

    A place that is not answered within `hold` may go to another device once no others are free. A round that another one
    follows closes after `round`, full or not; answers that are under way are taken for `grace` more.
    """

    hold: float = HOUR
    round: float = DAY
    grace: float = 600.0

    def __post_init__(self) -> None:
        for name in ("hold", "round"):
            if not 0 < getattr(self, name) <= 400 * DAY:
                raise SpecError(f"expected the time of a {name} in seconds, above 0, got {getattr(self, name)!r}")
        if not 0 <= self.grace <= 400 * DAY:
            raise SpecError(f"expected the time of grace in seconds, at least 0, got {self.grace!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """The facts of a study. `root` is the public coin; `open` means that anybody may answer, and often."""

    id: str
    title: str
    agreement: Agreement
    clients: int
    open: bool
    root: tuple[int, ...]
    timing: Timing = dataclasses.field(default_factory=Timing)

    @property
    def protocol(self) -> Protocol:
        return self.agreement.protocol

    @property
    def schema(self) -> Schema:
        return self.population.table_schema

    @property
    def method(self) -> str:
        return self.agreement.method

    @property
    def epsilon(self) -> float:
        return self.protocol.guarantee(self.population).epsilon

    @functools.cached_property
    def population(self) -> Population:
        return self.agreement.population(clients=self.clients, records=1)

    @property
    def keys(self) -> Keys:
        """All public coins of the study: questions follow from them, and the fit's random numbers."""
        return Keys(jax.random.wrap_key_data(jnp.array(self.root, jnp.uint32)))

    @functools.cached_property
    def survey(self) -> Survey | None:
        """The questions, of methods in which each person answers one about a few columns; None for the others."""
        return survey_of(self.protocol, self.population)

    @functools.cached_property
    def digest(self) -> str:
        """A hash of everything a device agrees to when it answers."""
        return study_digest(self.facts())

    def facts(self) -> JsonObject:
        """What a device agrees to, as it travels; `digest` is made of it, and a device makes it again."""
        return {
            "study": self.id,
            "terms": self.agreement.terms,
            "schema": self.schema.to_dict(),
            "clients": self.clients,
            "open": self.open,
            "title": self.title,
            "root": list(self.root),
            "timing": dataclasses.asdict(self.timing),
            "questions": questions_digest(self.survey),
        }

    def to_json(self) -> JsonObject:
        return {
            "format": FORMAT, "id": self.id, "title": self.title, "clients": self.clients, "open": self.open,
            "root": list(self.root), "timing": dataclasses.asdict(self.timing), "agreement": self.agreement.to_json(),
            "digest": self.digest,
        }  # fmt: skip


def survey_of(protocol: Protocol, population: Population) -> Survey | None:
    """The questions of a method in which each client answers one, or None."""
    if not isinstance(protocol, ComposedMethod):
        return None
    learner = protocol.parts(population).learner
    return learner.survey if isinstance(learner, SurveyLearner) else None


def study_digest(facts: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def questions_digest(survey: Survey | None) -> str:
    """A hash of all questions and of the mechanism's domains: two versions of populace that ask otherwise differ in it."""
    if survey is None:
        return ""
    members = [(member.size, member.chosen, str(member.exact_p)) for member in survey.panel.members]
    parts = (survey.groups, survey.all_views, survey.shapes, survey.is_folded, members)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def plan_study(
    *,
    schema: str,
    epsilon: float,
    method: str = "poll",
    clients: int | None = None,
    target: str | None = None,
    settings: Mapping[str, object] | None = None,
    title: str = "",
    open_to_all: bool = False,
    timing: Timing | None = None,
    seed: int | None = None,
) -> Study:
    """A new study from options; refuses a schema whose domains were read from records, and methods that are not for people."""
    if method not in METHODS:
        raise SpecError(f"expected a method for single people, one of {', '.join(METHODS)}, got {method!r}")
    wanted = USUAL_CLIENTS if clients is None else clients
    if not 1 <= wanted <= MOST_CLIENTS:
        raise SpecError(f"expected clients, the planned number of answers, in [1, {MOST_CLIENTS}], got {wanted}")
    declared = load_schema(schema).with_target(target)
    if declared.read_from_data:
        raise SchemaError(
            f"the domain of {', '.join(declared.read_from_data)} was read from data; a study needs a declared schema: check it "
            "and say domain = 'declared' with a source"
        )
    given = dict(settings or {})
    if open_to_all and "robust" in parameters(method):
        given.setdefault("robust", True)
    spec = make_spec(data="a study", epsilon=epsilon, method=method, settings=given, target=target)
    agreement = Agreement(protocol=make_method(spec), schema=declared)
    check_seed(seed)
    words = jax.random.key_data(make_key(seed)).tolist()
    study = Study(
        id=secrets.token_hex(16), title=title, agreement=agreement, clients=wanted, open=open_to_all,
        root=tuple(int(word) for word in words), timing=timing or Timing(),
    )  # fmt: skip
    check_collectable(study.protocol, study.population)
    return study


def check_collectable(protocol: Protocol, population: Population) -> None:
    """Raise SpecError for settings under which a device would be asked more than once, or in a form no device here sends."""
    name = protocol.facts.name
    if "table" not in protocol.facts.kinds or protocol.facts.trust != ("local",):
        raise SpecError(f"method {name!r} is not one in which each person's own device randomises a record")
    protocol.guarantee(population)
    if isinstance(protocol, ComposedMethod) and protocol.parts(population).schedule.participations > 1:
        raise SpecError("a study asks each device once; set participations to 1")
    if getattr(protocol, "oracle", "joint") != "joint":
        raise SpecError("a study takes one report with the whole epsilon; leave the setting oracle at joint")


LONGEST_LINE = 2**16  # bytes of a token, or of a store's address


class _Facts(Form):
    """study.json."""

    format: int
    id: str
    title: str
    clients: int = pydantic.Field(ge=1)
    agreement: JsonObject
    open: bool
    root: list[int]
    timing: dict[str, float | None]
    digest: str


class StudyFolder:
    """The folder of a study: its facts, its secrets, and where its store is."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def facts_path(self) -> Path:
        return self.path / "study.json"

    @property
    def token_path(self) -> Path:
        return self.path / "organiser.token"

    def create(self, study: Study, schema: str | Path) -> None:
        """Write a new study; study.json, which makes the folder one, comes last."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise RunError(
                f"{self.path} exists and is not empty; choose another folder for the study, it may hold answers"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise RunError(f"cannot make the folder {self.path}: {error.strerror or error}") from error
        write_text(self.path / "schema.toml", read_text(Path(schema), most=MOST_TOML, error=InputError))
        write_text(self.token_path, secrets.token_urlsafe(TOKEN_BYTES) + "\n", mode=0o600)
        write_json(self.facts_path, study.to_json())

    def read(self) -> Study:
        """The study; refuses one whose files say something else than when it was made."""
        if not self.facts_path.is_file():
            raise InputError(f"{self.path} is not a study's folder; `populace collector init` makes one")
        document = read_document(self.facts_path, _Facts)
        try:
            if document["format"] != FORMAT:
                raise RunError(f"{self.facts_path} is of format {document['format']!r}, expected {FORMAT}")
            study = Study(
                id=str(document["id"]), title=str(document["title"]), clients=int(document["clients"]),
                agreement=agreement_from_json(document["agreement"], where=str(self.facts_path)),
                open=bool(document["open"]), root=tuple(int(word) for word in document["root"]),
                timing=Timing(**document["timing"]),
            )  # fmt: skip
            said = document["digest"]
        except DAMAGED as error:
            raise RunError(f"{self.facts_path} is damaged: {error!r}; restore it") from error
        if study.digest != said:
            raise RunError(
                f"{self.facts_path} was changed, or another version of populace made it: its questions are not the ones that "
                "were agreed to; restore it, or use that version"
            )
        return study

    def token(self) -> str:
        """The organiser's token."""
        return _read_line(self.token_path)

    def store_url(self, given: str | None = None) -> str:
        """Where the store is: what was given, which is remembered; else what was remembered; else the file beside."""
        path = self.path / "store.url"
        kept = _read_line(path) if path.is_file() else None
        if given is None:
            return kept or str(self.path / "collector.db")
        if kept is not None and kept != given:
            raise InputError(
                f"the answers of this study are in the store that {path} names, and --store names another; they would be "
                "divided between the two: leave --store out, or change that file"
            )
        if kept is None:
            if (self.path / "collector.db").exists():
                raise InputError(
                    f"the answers of this study are in {self.path / 'collector.db'}, and --store names another store; they "
                    "would be divided between the two: leave --store out"
                )
            write_text(path, given + "\n", mode=0o600)
        return given


def _read_line(path: Path) -> str:
    try:
        return read_text(path, most=LONGEST_LINE).strip()
    except RunError as error:
        raise RunError(f"{error}; put it back") from error


def invitation_hash(token: bytes) -> bytes:
    """All the server keeps of an invitation: who has the store cannot answer in anybody's name."""
    return hashlib.sha256(b"populace invitation\0" + token).digest()


def receipt_of(study: str, nonce: bytes, round_id: int, place: int, report: bytes) -> bytes:
    """The receipt of an answer: a hash of it and of a nonce that the server does not keep, so it says nothing of either."""
    head = f"populace receipt\0{study}\0{round_id}\0{place}\0".encode()
    return hashlib.sha256(head + nonce + report).digest()


def same_token(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
