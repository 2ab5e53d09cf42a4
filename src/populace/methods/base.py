"""What a method is: a frozen, public configuration and a few functions.

    begin    the server's first state
    ask      whom to ask what next
    charge   what one reply costs, booked before `answer` runs
    answer   the ONLY function that sees records; runs at the client
    absorb   replies into state; central noise is drawn here
    finish   the generator
    guarantee   the composition of the charges for the worst client

All are pure: state in, state out, randomness as an argument. An engine calls them; no method knows which.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from populace.errors import SpecError, out_of_range
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.settings import check_settings, fields_of
from populace.methods.facts import Facts as Facts
from populace.methods.facts import Kind as Kind
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee, Unit
from populace.privacy.ledger import Charge
from populace.privacy.noise_shares import NoiseShares
from populace.privacy.source import Keyed, Source
from populace.tables.schema import Schema
from populace.types import Array, JsonObject

State = Any
Memory = Any

NUMBER = 4.0  # bytes of one number on the wire
NO_ERROR = "no error is predicted: training has no closed form"


def on_processor() -> contextlib.AbstractContextManager[object]:
    """Compute on the processor, also where there is an accelerator: for work that takes less time than compiling for one."""
    if jax.default_backend() == "cpu":
        return contextlib.nullcontext()
    try:
        processor: contextlib.AbstractContextManager[object] = jax.default_device(jax.local_devices(backend="cpu")[0])
        return processor
    except RuntimeError:  # the user has left JAX the accelerator alone
        return contextlib.nullcontext()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageShape:
    """The public shape of an image data set."""

    shape: tuple[int, ...]
    classes: int
    read_from_data: tuple[str, ...] = ()
    domain_sources: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Population:
    """What is public about the clients: the shape of their data, how many there are, and how much one may hold."""

    schema: Schema | ImageShape
    clients: int
    records: int = 1

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise out_of_range("clients", "at least 1", self.clients)
        if self.records < 1:
            raise out_of_range("records", "at least 1", self.records)

    @property
    def kind(self) -> Kind:
        return "table" if isinstance(self.schema, Schema) else "images"

    @property
    def read_from_data(self) -> tuple[str, ...]:
        """What of the public shape was read from the records."""
        return self.schema.read_from_data

    @property
    def domain_sources(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Who says the other domains, each with its columns."""
        return self.schema.domain_sources

    @property
    def table_schema(self) -> Schema:
        """The schema of a population of tables; a method that takes only tables asks for it."""
        if not isinstance(self.schema, Schema):
            raise SpecError(
                "this method takes tables, and the data are images; `populace methods` lists what takes images"
            )
        return self.schema


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One client's records, padded to a public width, with the client's own copy of the public facts it agreed to.

    `persons` says whose each record is, a number each, where a method protects persons; None elsewhere.
    """

    records: Any
    mask: Array
    population: Population = dataclasses.field(metadata={"static": True})
    persons: Array | None = None

    @property
    def table_schema(self) -> Schema:
        return self.population.table_schema


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask:
    """One exchange: what everybody in the cohort gets, and what each gets. Cohort -1 is an empty slot."""

    round: Array | int
    cohort: Array
    common: Any
    own: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Replies:
    """Replies in the order of `clients`; an absent one (`present` false) is padding and must not count.

    Where `opened`, `values` are the sum over those present alone, 64 bits wide, with the noise in it: all that anybody saw.
    """

    clients: Array
    present: Array
    values: Any
    opened: bool = dataclasses.field(default=False, metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """What a run takes, estimated from public sizes: bytes and seconds of one site and of the coordinator, and the seconds of
    a simulation of all."""

    site_bytes: float
    coordinator_bytes: float
    site_seconds: float
    coordinator_seconds: float
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What can be said before any data is touched; without `costs`, how long a run takes is in a stored model.

    `bytes_up` and `bytes_down` go from and to one client, `errors` are the predicted ones by name, `notes` are sentences.
    """

    guarantee: Guarantee
    rounds: int
    bytes_up: float
    bytes_down: float
    errors: dict[str, float]
    notes: tuple[str, ...] = ()
    costs: Costs | None = None


class Protocol(abc.ABC):
    """A method. Subclasses are final frozen dataclasses whose fields are all public."""

    facts: ClassVar[Facts]
    #: Settings that files of earlier versions call by another name: the old name, and the present one.
    renamed: ClassVar[Mapping[str, str]] = {}
    #: What each setting means, a sentence each: `populace methods NAME` shows them.
    meanings: ClassVar[Mapping[str, str]] = {}
    #: Settings with which a run on a few dozen records takes seconds and still several rounds: for conformance tests.
    small: ClassVar[Mapping[str, Any]] = {}
    #: Whether a run can begin from another method's generator (`warm`), as the second of a chain does.
    begins_warm: ClassVar[bool] = False
    #: Whether ask and absorb can be traced by JAX and the cohorts are known ahead, so that rounds compile into one scan.
    compiles: ClassVar[bool] = False

    #: Whether an accelerator helps; where it does not, compiling for it takes longer than the work on processors.
    accelerates: ClassVar[bool] = True

    #: Whether answers of many clients are faster together on processors too; networks with weights of their own are not.
    vectorises: ClassVar[bool] = True

    def __new__(cls, *unnamed: object, **settings: object) -> Self:
        """A method whose settings were checked first: a wrong name or type is one sentence, here as on the command line."""
        if unnamed:
            raise SpecError(f"expected settings by name, as in {cls.__name__}(epsilon=4), got {unnamed[0]!r}")
        check_settings(cls, settings)
        return super().__new__(cls)

    @classmethod
    def settings_from_file(cls, settings: Mapping[str, object]) -> dict[str, object]:
        """Settings as a file of this or an earlier version has them, under their present names and values."""
        return {cls.renamed.get(name, name): value for name, value in settings.items()}

    def settings_to_file(self) -> JsonObject:
        """The settings as a file holds them; a method among them stands there with its name and its own settings."""
        return {name: _for_file(getattr(self, name)) for name in fields_of(type(self))}

    @abc.abstractmethod
    def round_count(self, population: Population) -> int:
        """The most rounds a run takes; for progress and plans."""

    def answer_count(self, population: Population) -> int:
        """The most answers all clients give together; for plans."""
        return population.clients * self.round_count(population)

    @abc.abstractmethod
    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        """The server's first state: a pytree of arrays whose structure follows from public facts alone."""

    @abc.abstractmethod
    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        """Whom to ask what next; None when the run is over."""

    @abc.abstractmethod
    def charge(self, ask: Ask, population: Population) -> Charge:
        """Event and unit of ONE reply, from the object that makes the noise."""

    @abc.abstractmethod
    def answer(self, common: Any, own: Any, shard: Shard, memory: Memory, source: Source) -> tuple[Any, Memory]:
        """At the client: records to reply. Traceable with a keyed source."""

    @abc.abstractmethod
    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        """Replies into state. Partial replies are normal; their order within one exchange does not matter."""

    @abc.abstractmethod
    def finish(self, state: State, population: Population, key: Array) -> Synthesizer:
        """The generator."""

    @abc.abstractmethod
    def guarantee(self, population: Population) -> Guarantee:
        """What is guaranteed after a whole run, for the worst client."""

    @abc.abstractmethod
    def plan(self, population: Population) -> Plan:
        """Predicted error and traffic, from public facts alone."""

    @abc.abstractmethod
    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        """Mean bytes sent to and by one client of this exchange."""

    @property
    def protected_unit(self) -> Unit:
        """Whom these settings protect; most methods have one unit."""
        return self.facts.unit

    def spends(self, population: Population) -> Event:
        """All that the client asked most often pays over a whole run, as one event; methods whose noise composes tell it."""
        raise SpecError(f"method {self.facts.name!r} tells its epsilon alone, and does not run as a part of a chain")

    def spends_to(self, population: Population, shares: int) -> Event:
        """The same to whoever knows so many sites' shares of the noise in opened sums; most methods open none."""
        del shares
        return self.spends(population)

    def calibrated_noise(self, population: Population) -> float:
        """Of the Gaussian noise of one release, for methods whose noise can be set."""
        raise SpecError(f"method {self.facts.name!r} has no noise that can be set, and cannot be the second of a chain")

    @property
    def makes_data(self) -> bool:
        """Whether the result can be drawn from; a baseline may learn a classifier alone."""
        return True

    def secret_cohorts(self, population: Population) -> bool:
        """Whether the claim needs that nobody learns whom a round asked."""
        return False

    def question(self, population: Population, round_id: int) -> tuple[Any, Any]:
        """An example of what one client is sent in a round, `common` and its row of `own`: a site refuses any other shape.

        The first question stands for all; a method whose questions change their shape overrides this.
        """
        del round_id
        return _first_question(self, population)

    def quorum(self, ask: Ask, population: Population) -> int:
        """The fewest replies an exchange is absorbed with; with fewer, the same is asked again."""
        del ask, population
        return 1

    def sum_shares(self, ask: Ask, population: Population) -> NoiseShares | None:
        """The noise of an exchange in shares of the clients, where the server needs nothing but the sum of all replies (trust
        `secure-sum`): an engine adds a share to each reply, whole numbers, and absorbs the opened sum. None elsewhere."""
        del ask, population
        return None

    def together(self, ask: Ask, population: Population) -> bool:
        """`vectorises` of this exchange."""
        del ask, population
        return self.vectorises

    def on_host(self, population: Population) -> bool:
        """Whether `answer` is best given one client's records alone, unpadded NumPy arrays as compact as they are kept, and
        not compiled: where counting many records is all there is to do. Such a method's clients keep nothing at home."""
        del population
        return False

    def working(self, ask: Ask) -> Array | None:
        """Which of the cohort have anything to compute; None for all. The others' replies are zeros; simulations skip them."""
        del ask
        return None

    def remember(self, population: Population, key: Array) -> Memory:
        """What a client keeps at home before its first round; most methods keep nothing."""
        del population, key
        return ()

    def cohorts(self, population: Population, state: State, first: int, count: int) -> Array:
        """The cohorts of `count` rounds from `first` on, for methods whose cohorts are known ahead."""
        raise NotImplementedError


def _for_file(value: Any) -> Any:
    if isinstance(value, Protocol):
        return {"method": value.facts.name, "settings": value.settings_to_file()}
    return value


@functools.lru_cache(maxsize=32)
def _first_question(protocol: Protocol, population: Population) -> tuple[Any, Any]:
    key = jax.random.key(0)
    ask = protocol.ask(protocol.begin(population, key), population, Keyed(key))
    if ask is None:
        raise SpecError(f"method {protocol.facts.name!r} asks nothing of {population.clients} clients")
    return ask.common, jax.tree.map(lambda rows: rows[0], ask.own)


def choose_record(shard: Shard, source: Source) -> tuple[Array, Array]:
    """One of a client's records by a private coin, and whether it has any. The guarantee covers all it holds."""
    index = source.one_of(shard.mask)
    return jax.tree.map(lambda records: records[index], shard.records), jnp.any(jnp.asarray(shard.mask))


def check_counts(**values: int) -> None:
    """Refuse a number below 1."""
    for name, value in values.items():
        if value < 1:
            raise out_of_range(name, "at least 1", value)


def check_sizes(**values: float) -> None:
    """Refuse a number that is not above 0 and finite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise out_of_range(name, "above 0", value)


def check_not_negative(**values: float) -> None:
    """Refuse a number that is negative or not finite."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise out_of_range(name, "at least 0", value)


def check_shares(**values: float) -> None:
    """Refuse a number that is not in [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise out_of_range(name, "in [0, 1)", value)


def check_rates(**values: float) -> None:
    """Refuse a sampling rate that is not in (0, 1]."""
    for name, value in values.items():
        if not 0 < value <= 1:
            raise out_of_range(name, "in (0, 1]", value)


def not_private(population: Population, reason: str) -> Guarantee:
    """The guarantee of a baseline: none."""
    return Guarantee(
        epsilon=math.inf, unit="client", neighbours="replace", trust="not-private", mechanism="none", reason=reason,
        read_from_data=population.read_from_data,
        domain_sources=population.domain_sources,
    )  # fmt: skip
