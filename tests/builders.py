"""What many tests build: tables, images, sites and a coordinator; and methods of the tests' own, for what no method does."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.engines import debug, messages, wire
from populace.engines.agreement import Agreement
from populace.engines.checkpoint import Checkpoint
from populace.engines.coordinator import Coordinator
from populace.engines.link import InProcess
from populace.engines.roster import enrol
from populace.engines.runtime import Keys, population_of
from populace.engines.site import Hosted, Site
from populace.errors import SpecError
from populace.methods.base import Ask, Facts, Plan, Protocol, choose_record
from populace.methods.baselines.independent import Independent
from populace.methods.baselines.marginals import Marginals
from populace.methods.registry import METHODS, make_protocol, protocol_class
from populace.privacy import events
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Budget, Charge
from populace.privacy.randomizers.subset import SubsetPanel
from populace.privacy.source import Keyed
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.images import Images
from populace.tables.partition import split
from populace.tables.schema import Column, Schema

SEED = 5
INDEPENDENT = Independent(epsilon=2.0, clients_per_batch=100)


def table_methods() -> list[str]:
    """The methods that take tables."""
    return [name for name in METHODS if "table" in protocol_class(name).facts.kinds]


def small_settings(name: str) -> Mapping[str, Any]:
    """The small settings that a method carries for tests: several rounds, in seconds."""
    return protocol_class(name).small


def small_protocol(name: str, epsilon: float = 2.0, **settings: Any) -> Protocol:
    """A method with its small settings, but for those given."""
    return make_protocol(name, {"epsilon": epsilon, **small_settings(name), **settings})


#: Options of `jax.jit` for the few functions of tests that compute much: code that runs fast, in spite of conftest's flags.
FAST_CODE = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_use_fusion_emitters": True,
}

# Parameters


def mark_slow(names: Iterable[str], those: Collection[str]) -> list[Any]:
    """Parameters of which those take long and have quicker neighbours that would fail too: `make test-slow` runs them."""
    names = list(names)
    assert set(those) <= set(names), f"not among {names}: {sorted(set(those) - set(names))}"
    return [pytest.param(name, marks=pytest.mark.slow) if name in those else name for name in names]


# Data


def small_schema() -> Schema:
    """One column of each kind, one that may be empty, and a target."""
    return Schema(
        columns=(
            Column(name="colour", kind="categorical", categories=("red", "green", "blue")),
            Column(name="size", kind="ordinal", categories=("1", "2", "3", "4", "5"), dtype="integer", nullable=True),
            Column(name="weight", kind="decimal", edges=(0.0, 1.0, 2.5, 10.0)),
            Column(name="sold", kind="categorical", categories=("false", "true"), dtype="boolean"),
        ),
        target="sold",
    )


def dependent_codes(schema: Schema, rows: int, seed: int = 0) -> np.ndarray:
    """Codes in which every column leans towards the first."""
    rng = np.random.default_rng(seed)
    first = rng.choice(schema.sizes[0], rows, p=np.arange(1, schema.sizes[0] + 1) / sum(range(1, schema.sizes[0] + 1)))
    columns = [first]
    for size in schema.sizes[1:]:
        columns.append(np.where(rng.random(rows) < 0.6, first % size, rng.integers(0, size, rows)))
    return np.stack(columns, axis=1).astype(np.int32)


def noise_images(count: int, shape: tuple[int, ...], classes: int, seed: int = 0) -> Images:
    """Images of noise, whose labels follow each other."""
    x = np.random.default_rng(seed).integers(0, 256, (count, *shape)).astype(np.uint8)
    return Images(x=x, y=np.arange(count, dtype=np.int32) % classes, classes=classes)


# States


def leaves(tree):
    """The arrays of a state, those of its keys too."""
    return [
        np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in jax.tree.leaves(tree)
    ]


def assert_same(first, second):
    """Whole numbers and truth values exactly, others up to rounding."""
    for a, b in zip(leaves(first), leaves(second), strict=True):
        if a.dtype.kind in "iub":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, atol=1e-4)


def debug_state(protocol, clients, root):
    """State and number of charges after all rounds of the debug engine; no generator is made."""
    population, keys, memories, charges, rounds = population_of(clients), Keys(root), {}, 0, 0
    state = protocol.begin(population, keys.begin())
    while (ask := protocol.ask(state, population, Keyed(keys.ask(rounds)))) is not None:
        replies = debug.answer_one_by_one(protocol, ask, clients, population, keys, rounds, memories, exact=False)
        state = protocol.absorb(state, ask, replies, Keyed(keys.absorb(rounds)))
        charges += int((np.asarray(ask.cohort) >= 0).sum())
        rounds += 1
    return state, charges


# Sites


def make_site(
    folder, data, protocol, *, name="site", epsilon=2.0, delta=0.0, unit="client", seed=SEED, records=1, log=None
) -> Site:
    """A site over some rows, one client per row (or per `records` rows), with its ledger in a folder."""
    clients = split(data, records_per_client=records)
    agreement = Agreement(protocol=protocol, schema=population_of(clients).schema)
    budget = Budget(epsilon=epsilon, delta=delta, unit=unit)
    SqliteLedger(folder / f"{name}.sqlite", budget).close()  # as joining does
    accounts = tuple(f"row {i + 1}" for i in range(len(clients)))
    return Site(
        hosted=Hosted(clients=clients, accounts=accounts, records=clients.widest),
        agreements={agreement.digest: agreement},
        ledger_path=folder / f"{name}.sqlite",
        budget=budget,
        root=None if seed is None else jax.random.key(seed),
        log=log or (lambda _: None),
    )


def make_sites(folder, data, protocol, **options) -> dict[str, Site]:
    """Three sites that share a table, in unequal parts."""
    edges = (0, len(data) // 2, 3 * len(data) // 4, len(data))
    return {
        f"site-{i + 1}": make_site(folder, data.take(np.arange(low, high)), protocol, name=f"site-{i + 1}", **options)
        for i, (low, high) in enumerate(itertools.pairwise(edges))
    }


def make_coordinator(
    folder, schema, protocol, link, *, seed=SEED, patience=0.0, run="run-1", roster=None, seeded=True
) -> Coordinator:
    """The loop over sites in this process, or over a link to them."""
    agreement = Agreement(protocol=protocol, schema=schema)
    link = link if hasattr(link, "exchange") else InProcess({name: site.reply for name, site in link.items()})
    roster = roster or enrol(agreement, link, run=run, least=1, timeout=1.0)
    return Coordinator(
        agreement=agreement, roster=roster, link=link, run=run, root=jax.random.key(seed),
        checkpoint=Checkpoint(folder / f"{run}.npz"), timeout=1.0, patience=patience, seeded=seeded,
    )  # fmt: skip


def request_of(protocol, schema, *, total=6, who=None, run="run-1", round_id=0, **changes):
    """A request as an honest coordinator makes it, with the changes of a dishonest one."""
    agreement = changes.pop("agreement", Agreement(protocol=protocol, schema=schema))
    population = agreement.population(clients=total, records=changes.pop("records", 1))
    asked = protocol.ask(protocol.begin(population, jax.random.key(0)), population, Keyed(jax.random.key(1)))
    cohort = np.asarray(asked.cohort)
    slots = np.flatnonzero(cohort >= 0) if who is None else np.array([list(cohort).index(client) for client in who])
    parts = {
        "run": run, "round_id": round_id, "first": 0, "clients": cohort[slots], "heard": np.zeros(len(slots)),
        "common": asked.common, "own": jax.tree.map(lambda rows: np.asarray(rows)[slots], asked.own),
    }  # fmt: skip
    return messages.make_ask(agreement, population, **(parts | changes))


def code_of(reply) -> str:
    """The code of a refusal, otherwise the kind of the message."""
    message = wire.unpack(reply)
    return message.fields["code"] if message.kind == "refusal" else message.kind


def entries(site) -> int:
    """How often a site's ledger charged anybody."""
    with SqliteLedger(site.ledger_path, site.budget) as ledger:
        return sum(ledger.entries(account) for account in ledger.accounts())


# Methods


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    round: Any
    total: Any
    heard: Any
    order: Any = ()


class Tallied(Protocol):
    """A method of a test, whose generator and plan nobody looks at."""

    def finish(self, state, population, key):
        schema = population.table_schema
        return Marginals(schema=schema, tables=tuple(np.full(size, 1 / size) for size in schema.sizes))

    def plan(self, population):
        claim, rounds = self.guarantee(population), self.round_count(population)
        return Plan(guarantee=claim, rounds=rounds, bytes_up=8, bytes_down=8, errors={})

    def reply_bytes(self, ask, population):
        return 8.0, 8.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diary(Tallied):
    """Each round asks a public random cohort; a client remembers how often it was asked and tells that and its first code.

    Cohorts have empty slots, the state is absorbed round by round, and clients keep memory: all an engine must handle.
    """

    cohort: int = 4
    total_rounds: int = 6
    facts: ClassVar[Facts] = Facts(
        name="diary", title="", paper="", trust=("not-private",), unit="client", kinds=("table",), traffic=""
    )
    compiles: ClassVar[bool] = True

    def round_count(self, population):
        return self.total_rounds

    def begin(self, population, key, warm=None):
        order = jax.vmap(lambda k: jax.random.permutation(k, population.clients)[: self.cohort])(
            jax.random.split(key, self.total_rounds)
        )
        order = order.at[:, -1].set(jnp.where(jnp.arange(self.total_rounds) % 2 == 0, -1, order[:, -1]))
        return State(round=jnp.int32(0), total=jnp.zeros(2), heard=jnp.int32(0), order=order)

    def cohorts(self, population, state, first, count):
        return np.asarray(state.order)[first : first + count]

    def ask(self, state, population, source):
        if not isinstance(state.round, jax.core.Tracer) and int(state.round) >= self.total_rounds:
            return None
        cohort = state.order[state.round]
        return Ask(round=state.round, cohort=cohort, common=state.total, own=jnp.arange(self.cohort))

    def charge(self, ask, population):
        return Charge(event=events.NonPrivate("a test"), unit="client")

    def remember(self, population, key):
        return {"asked": jnp.int32(0), "salt": jax.random.uniform(key)}

    def answer(self, common, own, shard, memory, source):
        jitter = jax.random.uniform(source.key) + memory["salt"]
        first = jnp.sum(jnp.where(shard.mask, shard.records[:, 0], 0))
        value = jnp.stack([first + memory["asked"] + 0.0, jitter + common[0] * 0.01])
        return value, {"asked": memory["asked"] + 1, "salt": memory["salt"]}

    def absorb(self, state, ask, replies, source):
        noise = jax.random.normal(source.key) * 0.0
        total = state.total + jnp.sum(jnp.where(replies.present[:, None], replies.values, 0), axis=0) + noise
        heard = state.heard + replies.present.sum()
        return dataclasses.replace(state, round=state.round + 1, total=total, heard=heard)

    def guarantee(self, population):
        return Guarantee(
            epsilon=math.inf, reason="a test", unit="client", neighbours="replace", trust="not-private", mechanism="none"
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relay(Tallied):
    """One client after the other: each gets the tally so far and hands it on with its own randomised report added.

    A client remembers how often it was asked, and says so in its reply.
    """

    epsilon: float
    passes: int = 1

    facts: ClassVar[Facts] = Facts(
        name="relay", title="", paper="", trust=("local",), unit="client", kinds=("table",), traffic=""
    )

    def __post_init__(self):
        if self.passes < 1:
            raise SpecError(f"expected passes of at least 1, got {self.passes}")

    def panel(self, schema):
        return SubsetPanel(sizes=(schema.sizes[0],), epsilon=self.epsilon / self.passes)

    def round_count(self, population):
        return self.passes * population.clients

    def begin(self, population, key, warm=None):
        size = population.table_schema.sizes[0]
        return State(round=jnp.int32(0), total=jnp.zeros(size, jnp.int32), heard=jnp.int32(0))

    def ask(self, state, population, source):
        if int(state.round) >= self.round_count(population):
            return None
        cohort = jnp.asarray([int(state.round) % population.clients], jnp.int32)
        return Ask(round=state.round, cohort=cohort, common={"tally": state.total}, own=jnp.zeros(1, jnp.int32))

    def charge(self, ask, population):
        return Charge(event=self.panel(population.table_schema).event, unit="client")

    def remember(self, population, key):
        return {"asked": jnp.int32(0)}

    def answer(self, common, own, shard, memory, source):
        which, noise = source.split(2)
        record, _ = choose_record(shard, which)
        report = self.panel(shard.table_schema).apply(jnp.asarray(record)[0], own, noise)
        after = {"asked": memory["asked"] + 1}
        return {"tally": common["tally"] + jnp.asarray(report).astype(jnp.int32), "asked": after["asked"]}, after

    def absorb(self, state, ask, replies, source):
        total = jnp.where(replies.present[0], replies.values["tally"][0], state.total)
        heard = state.heard + jnp.where(replies.present[0], replies.values["asked"][0], 0)
        return dataclasses.replace(state, round=state.round + 1, total=total, heard=heard)

    def guarantee(self, population):
        return Guarantee(
            epsilon=self.epsilon, unit="client", neighbours="replace", trust="local", mechanism="one report a pass"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CentralMean(Tallied):
    """Everybody sends a clipped number; the server adds Gaussian noise to the sum, and divides by a public constant.

    Every round asks the same, so the question says which round it is: a site answers a question in one round only.
    """

    epsilon: float
    delta: float = 1e-5
    noise_multiplier: float = 8.0
    total_rounds: int = 1
    quorum_share: float = 0.5

    facts: ClassVar[Facts] = Facts(
        name="central-mean", title="", paper="", trust=("central",), unit="client", kinds=("table",), traffic=""
    )

    def round_count(self, population):
        return self.total_rounds

    def begin(self, population, key, warm=None):
        return State(round=jnp.int32(0), total=jnp.float32(0), heard=jnp.int32(0))

    def ask(self, state, population, source):
        if int(state.round) >= self.total_rounds:
            return None
        clients = jnp.arange(population.clients, dtype=jnp.int32)
        return Ask(round=state.round, cohort=clients, common={"round": state.round}, own=jnp.zeros_like(clients))

    def quorum(self, ask, population):
        return math.ceil(self.quorum_share * population.clients)

    def charge(self, ask, population):
        return Charge(event=events.Gaussian(self.noise_multiplier), unit="client")

    def answer(self, common, own, shard, memory, source):
        first = jnp.sum(jnp.where(jnp.asarray(shard.mask), shard.records[:, 0], 0))
        return jnp.clip(first, 0, 1).astype(jnp.float32), memory

    def absorb(self, state, ask, replies, source):
        total = jnp.sum(jnp.where(replies.present, replies.values, 0))
        if isinstance(source, Keyed):
            noise = jax.random.normal(source.key)
        else:  # the sum of many fair coins of the operating system, scaled: a test's stand-in for an exact sampler
            coins = np.array([int(source.below(2)) for _ in range(400)])
            noise = (coins.sum() - 200) / 10
        total = ((total + self.noise_multiplier * noise) / len(ask.cohort)).astype(jnp.float32)
        return dataclasses.replace(state, round=state.round + 1, total=total, heard=state.heard + replies.present.sum())

    def guarantee(self, population):
        return Guarantee(
            epsilon=self.epsilon, delta=self.delta, unit="client", neighbours="add-remove", trust="central",
            mechanism="a noisy sum",
        )  # fmt: skip
