"""Rows under conditions have the law of rows that were drawn without them and kept, for every generator of rows."""

import jax
import numpy as np
import pytest
from scipy.stats import chi2_contingency

from populace.attacks.memorise import Copies
from populace.errors import DataError, SpecError
from populace.methods.baselines.marginals import Marginals
from populace.methods.blocks.clique_tree import CliqueTree, TreeGenerator
from populace.methods.blocks.conditions import wanted_rows
from populace.methods.blocks.generator import KINDS, Generator
from populace.methods.blocks.latent_class import LatentClass
from populace.methods.blocks.networks import Blocks, Decoder
from populace.methods.blocks.records_generator import Records
from populace.methods.marginals.copula import GaussianCopula
from populace.methods.moments.features import TableFeatures
from populace.methods.moments.generator import Gaussians, RowGaussians
from populace.runs.sampling import draw
from populace.tables.schema import Column, Schema

SIZES = (3, 2, 3)
SCHEMA = Schema(
    columns=tuple(
        Column(name=name, kind="categorical", categories=("x", "y", "z")[:size])
        for name, size in zip("abc", SIZES, strict=True)
    ),
    target="b",
)
WHERE = {0: 2, 1: 1}  # a=z and b=y; c depends on both
TEXTS = ["a=z", "b=y"]


def joint() -> np.ndarray:
    rng = np.random.default_rng(5)
    table = rng.dirichlet(np.full(18, 0.6)).reshape(SIZES) + 0.01
    return table / table.sum()


def latent_class() -> LatentClass:
    theta = [[0.7, 0.2, 0.1, 0.9, 0.1, 0.8, 0.1, 0.1], [0.1, 0.3, 0.6, 0.2, 0.8, 0.1, 0.2, 0.7],
             [0.3, 0.4, 0.3, 0.4, 0.6, 0.1, 0.8, 0.1]]  # fmt: skip
    return LatentClass(schema=SCHEMA, weights=np.array([0.6, 0.2, 0.2]), tables=np.array(theta))


def copula() -> GaussianCopula:
    correlation = np.array([[1, 0.5, 0.8], [0.5, 1, -0.1], [0.8, -0.1, 1]])
    tables = (np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.4]), np.array([0.3, 0.4, 0.3]))
    return GaussianCopula(schema=SCHEMA, tables=tables, correlation=correlation)


def row_gaussians() -> RowGaussians:
    size = TableFeatures(SCHEMA).size
    rng = np.random.default_rng(1)
    model = Gaussians(
        shares=np.array([0.7, 0.3]), centres=0.3 * rng.normal(size=(2, size)), factors=0.5 * rng.normal(size=(2, size, 2)),
        grain=np.full((2, size), 0.2), lengths=np.ones((2, 2)), moves=np.zeros(6),
    )  # fmt: skip
    return RowGaussians(schema=SCHEMA, model=model)


def decoder(*, classes: bool, arg_max: bool = False) -> Decoder:
    rng = np.random.default_rng(2)
    width = Blocks(SCHEMA.sizes).width
    if classes:
        layers = {"classes": 1.5 * rng.normal(size=(4, width)), "chances": np.array([0.1, 0.2, 0.3, 0.4])}
    else:
        layers = {"up": rng.normal(size=(3, 8)), "up_bias": rng.normal(size=8), "out": rng.normal(size=(8, width)),
                  "out_bias": np.zeros(width)}  # fmt: skip
    return Decoder(schema=SCHEMA, layers={k: v.astype(np.float32) for k, v in layers.items()}, arg_max=arg_max)


def records() -> Records:
    codes = np.stack(np.unravel_index(np.arange(18), SIZES), axis=1)
    return Records(schema=SCHEMA, codes=codes, weights=joint().ravel())


def copies() -> Copies:
    return Copies(schema=SCHEMA, codes=np.asarray(records().sample_codes(20_000, jax.random.key(8), {})))


def clique_tree() -> TreeGenerator:
    table = joint()
    tree = CliqueTree(
        sizes=SIZES, cliques=((0, 2), (1, 2)), parents=(-1, 0), tables=(table.sum(axis=1), table.sum(axis=0))
    )
    return TreeGenerator(schema=SCHEMA, tree=tree)


MODELS = {
    "latent classes": latent_class, "copula": copula, "row gaussians": row_gaussians, "records": records, "copies": copies,
    "clique tree": clique_tree, "decoder of classes": lambda: decoder(classes=True),
    "decoder of latents": lambda: decoder(classes=False),
    "decoder of latents, likeliest": lambda: decoder(classes=False, arg_max=True),
}  # fmt: skip


def difference(some: np.ndarray, others: np.ndarray) -> float:
    """The p-value of a chi-square test that two samples of codes of c have one law."""
    counts = np.stack([np.bincount(codes, minlength=3) for codes in (some, others)])
    return float(chi2_contingency(counts[:, counts.sum(axis=0) > 0]).pvalue)


def kept_of(model: Generator, conditions: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Codes of c in rows drawn without conditions: of those that meet them, and of all."""
    free = np.asarray(model.sample_codes(100_000, jax.random.key(1), {}))
    good = np.all([free[:, column] == code for column, code in conditions.items()], axis=0)
    return free[good, 2], free[:, 2]


@pytest.mark.parametrize("name", MODELS)
def test_conditions_are_drawing_and_throwing_away(name):
    """Pasting the values into rows that were drawn without conditions is told apart from it."""
    model = MODELS[name]()
    kept, pasted = kept_of(model, WHERE)
    codes = draw(model, 10_000, jax.random.key(2), where=TEXTS).codes
    assert (codes[:, [0, 1]] == [2, 1]).all()
    assert difference(codes[:, 2], kept) > 1e-3
    assert difference(pasted[:10_000], kept) < 1e-6


@pytest.mark.parametrize(("name", "given"), [("copula", {0: 2}), ("row gaussians", {1: 1})])
def test_the_one_condition_that_is_exact(name, given):
    model = MODELS[name]()
    assert dict(model.exact_conditions(WHERE)) == given  # the rarest; the target
    kept, pasted = kept_of(model, given)
    codes = np.asarray(model.sample_codes(10_000, jax.random.key(2), given))
    assert difference(codes[:, 2], kept) > 1e-3
    assert difference(pasted[:10_000], kept) < 1e-6


@pytest.mark.parametrize("name", ["copula", "row gaussians", "decoder of latents"])
def test_codes_are_not_drawn_under_conditions_that_are_not_exact(name):
    with pytest.raises(SpecError, match="use sample"):
        MODELS[name]().sample_codes(5, jax.random.key(0), WHERE)


def test_which_conditions_are_exact_is_said_by_every_generator_of_rows():
    tested = {type(make()) for make in MODELS.values()} | {Marginals}
    assert {kind for kind in KINDS.values() if issubclass(kind, Generator)} <= tested
    assert all("exact_conditions" in vars(kind) for kind in tested)


def test_a_value_that_the_model_never_makes_is_refused_and_never_pasted_in():
    never = row_gaussians().model.arrays()
    never["centres"][:, TableFeatures(SCHEMA).size // 2 - 1] -= 60  # a=z
    model = RowGaussians(schema=SCHEMA, model=Gaussians.from_arrays(never))
    assert 2 not in np.asarray(model.sample_codes(20_000, jax.random.key(0), {}))[:, 0]
    with pytest.raises(DataError, match=r"too rare: 0 of 1,048,576 drawn rows.*cannot be drawn given every single"):
        draw(model, 10, jax.random.key(0), balance="a")
    tables = (np.array([0.5, 0.5, 0.0]), np.array([0.6, 0.4]), np.array([0.3, 0.4, 0.3]))
    for other in (
        Marginals(schema=SCHEMA, tables=tables),
        GaussianCopula(schema=SCHEMA, tables=tables, correlation=np.eye(3)),
    ):
        with pytest.raises(DataError, match="the model gives a=z no probability"):
            other.sample(5, jax.random.key(0), wanted_rows(SCHEMA, ["a=z"]))
