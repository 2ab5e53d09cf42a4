"""The benchmarks of private FL-GAN: which cells there are, what one measures, and how results are shown."""

from types import SimpleNamespace

import numpy as np
import pytest

from populace.evaluation.attacks.scores import Scored, attack_scores
from populace.methods.registry import make_protocol
from populace.papers import flgan
from populace.papers import scores as image_scores
from populace.papers.grid import slug
from populace.papers.image_grid import pack_images
from populace.papers.registry import find_benchmark
from populace.tables.images import Images

DATA = {"flgan-mnist": "mnist", "flgan-fashion": "fashion_mnist"}


@pytest.fixture(scope="module")
def images():
    """A bright row for each class."""
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(10, dtype=np.int32), 40)
    x = rng.integers(0, 60, (400, 10, 10))
    x[np.arange(400), y] += 180
    return Images(x=x.astype(np.uint8), y=y, classes=10)


@pytest.fixture
def tiny(images, monkeypatch):
    """Few images, and no classifiers trained on synthetic ones: other tests do that."""
    monkeypatch.setattr(flgan, "load", lambda data, part: images)
    scale = flgan.Scale(records=400, images=60, steps=2, tested=60, attacked=30)
    monkeypatch.setitem(flgan.SCALES, "small", scale)
    monkeypatch.setattr(image_scores, "accuracies", lambda sets, test, **more: {"cnn": float(sets[0].classes)})


def cell_of(method, epsilon=8.0, split="skewed", clients=6):
    return {"method": method, "epsilon": epsilon, "split": split, "clients": clients, "scale": "small", "seed": 0}


def made_up(cell, images):
    """As `measure` would have it, with invented figures."""
    found = {"cell": cell, "seconds": 1.0, **dict.fromkeys(flgan.METRICS, 0.5)}
    if cell["split"] != "attack":
        found |= pack_images(images)
    if cell["method"] == flgan.REAL:
        return found
    row = flgan.ROWS[cell["method"]]
    trust = "not-private" if row.open else "silo" if row.travels else "central"
    found |= {"guarantee": "x", "trust": trust, "unit": "record" if row.travels else "client"}
    found["holds"] = "recipe" not in row.settings
    if row.travels and cell["split"] == "skewed":
        found["trail"] = [{"held": [0, 1], "shares": [0.5, 0.25] + [0.0] * 8}] * 6
    return found


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("quick", [True, False])
def test_quick_cells_are_some_of_the_full_ones_and_all_can_be_made(name, quick):
    benchmark = find_benchmark(name)
    found, every = benchmark.cells(quick, 2), benchmark.cells(False, 2)
    assert found
    assert all(cell in every for cell in found)
    assert len({slug(cell) for cell in found}) == len(found)
    assert {cell["scale"] for cell in found} == ({"small"} if quick else {"small", "full"})
    assert {cell["method"] for cell in found} == {flgan.REAL, *flgan.ROWS}
    for cell in found:
        if cell["method"] != flgan.REAL:
            settings = flgan.settings_of(cell)
            assert settings["epsilon"] == (cell["epsilon"] or flgan.EPSILON)
            make_protocol(flgan.ROWS[cell["method"]].method, settings)


def test_full_cells_are_those_of_the_figures():
    full = [cell for cell in flgan.cells("mnist", False, 1) if cell["scale"] == "full" and cell["clients"]]
    even = {(cell["method"], cell["epsilon"], cell["clients"]) for cell in full if cell["split"] == "even"}
    attacks = {(cell["method"], cell["epsilon"]) for cell in full if cell["split"] == "attack"}
    assert {(epsilon, clients) for name, epsilon, clients in even if name == "fl-gan"} == {
        (4.0, 6), (6.0, 6), (8.0, 6), (8.0, 2), (8.0, 12),
    }  # fmt: skip
    assert {clients for name, _, clients in even if name == "fedavg-gan"} == {2, 6, 12}
    assert {epsilon for name, epsilon in attacks if name == "ufl-gan"} == {1.0, 4.0, 8.0}
    assert (flgan.OPEN, None) in attacks


@pytest.mark.parametrize("quick", [True, False])
def test_trusts_and_units_never_share_a_table_or_a_chart(quick, images):
    benchmark = find_benchmark("flgan-mnist")
    results = [made_up(cell, images) for cell in benchmark.cells(quick, 2)]
    kinds = {
        name: (row.method == "fedavg-gan", row.open, row.settings.get("recipe")) for name, row in flgan.ROWS.items()
    }
    kinds[flgan.REAL] = "real"
    views, charts = benchmark.views(results), benchmark.charts(results)
    for view in views:
        assert all(len(row) == len(view.header) for row in view.rows)
        assert len({kinds[row[0]] for row in view.rows}) == 1
        assert ("NOT PRIVATE" in view.title) == (view.rows[0][0] == flgan.OPEN)
        assert ("NO GUARANTEE" in view.title) == (view.rows[0][0] == "fl-gan as published")
    for chart in charts:
        assert chart.lines
        assert len({kinds[name] for name in chart.lines}) == 1
    assert {chart.name for chart in charts} == {
        "score-by-silos-silo", "score-by-silos-central", "score-by-silos-not-private", "coverage-by-visit-silo",
        "coverage-by-visit-silo-without-guarantee", "coverage-by-visit-not-private", "attack-by-epsilon-silo",
    }  # fmt: skip
    pictures = benchmark.pictures(results)
    assert len({picture.name for picture in pictures}) == len(pictures) > len(flgan.ROWS)


def test_what_was_forgotten_shows_in_the_trail(images):
    result = made_up(cell_of("fl-gan"), images)
    only = np.eye(10).tolist()
    result["trail"] = [{"held": [3], "shares": only[3]}, {"held": [3, 5], "shares": only[5]}]
    chart = next(one for one in find_benchmark("flgan-mnist").charts([result]) if "visit" in one.name)
    assert chart.lines == {"fl-gan": [(1.0, 1.0), (2.0, 0.0)]}


def test_two_classes_of_fashion_are_removed_and_the_others_numbered_anew(tiny, images):
    found = flgan.images_of("fashion_mnist", "train")
    assert found is flgan.images_of("fashion_mnist", "train")
    assert found.classes == 8
    np.testing.assert_array_equal(np.unique(found.y), np.arange(8))
    was = found.x.max(axis=2).argmax(axis=1)
    assert {(int(old), int(new)) for old, new in zip(was, found.y, strict=True)} == {
        (0, 0), (1, 1), (2, 2), (3, 3), (5, 4), (7, 5), (8, 6), (9, 7),
    }  # fmt: skip
    assert flgan.images_of("mnist", "train") is images


@pytest.mark.parametrize("data", DATA.values())
def test_silos_hold_as_many_labels_as_published(tiny, data):
    clients = flgan.clients_of(data, cell_of("fl-gan"))
    held = [len(np.unique(clients.data.y[rows])) for rows in np.split(clients.order, clients.starts[1:-1])]
    assert tuple(held) == flgan.LABELS[data]


def test_a_score_is_one_where_all_look_alike_and_the_number_of_classes_where_all_are_sure():
    class Sure:
        classes_ = np.arange(4)

        def predict_proba(self, x):
            return np.eye(4)[x[:, 0, 0, 0].astype(int)]

    def seen(labels):
        x = np.broadcast_to((np.asarray(labels) * 255)[:, None, None], (len(labels), 2, 2)).astype(np.uint8)
        return image_scores.class_coverage(Images(x=x, y=np.zeros(len(labels), int), classes=1), Sure(), 4)

    assert seen([1, 1, 1])["inception"] == pytest.approx(1)
    assert seen([1, 1, 0])["shares"] == [0.3333, 0.6667, 0, 0]
    assert seen([1, 0, 1, 0])["inception"] == pytest.approx(2)


@pytest.mark.slow
def test_a_skewed_cell_is_measured(tiny):
    found = flgan.measure("fashion_mnist", cell_of(flgan.OPEN, None))
    assert (found["trust"], found["unit"], found["holds"]) == ("not-private", "record", False)
    assert found["cnn"] == 8
    assert len(found["shares"]) == 8
    assert found["coverage"] == min(found["shares"])
    assert 1 <= found["inception"] <= 8
    assert [len(stop["held"]) for stop in found["trail"]][-1] == 8
    assert len(found["trail"]) == 6
    assert found["shape"][:1] == [8]


@pytest.mark.slow
def test_an_attack_is_measured(tiny):
    found = flgan.measure("mnist", cell_of(flgan.OPEN, None, "attack"))
    assert found["n"] == 60
    assert found["attack_accuracy_low"] <= found["attack_accuracy"] <= found["attack_accuracy_high"]
    assert found["trust"] == "not-private"
    assert "images" not in found


def test_a_critic_that_knows_its_members_is_caught_wherever_its_zero_is():
    """Scores differ by label and by a constant between the two critics; members get one more, of noise a half."""
    rng = np.random.default_rng(0)
    members = np.arange(400) % 2 == 0

    def scored(zero, gain):
        y = rng.integers(0, 10, 400).astype(np.int32)
        score = zero + gain * members + y + rng.normal(0, 0.5, 400)
        gan = SimpleNamespace(
            read=lambda records, mask: SimpleNamespace(x=score, y=None), arrays=lambda omega: None,
            score=lambda arrays, features, y: features,
        )  # fmt: skip
        learner = SimpleNamespace(design=SimpleNamespace(gan=gan), omega=None)
        outcome = SimpleNamespace(state=SimpleNamespace(learner=learner))
        asked = Images(x=np.zeros((400, 2, 2), np.uint8), y=y, classes=10)
        return Scored(features=flgan.critic_features(outcome, asked), members=members)

    assert attack_scores(scored(-50, 1), scored(70, 1))["accuracy_low"] > 0.7
    blind = attack_scores(scored(-50, 1), scored(70, 0), confidence=0.9999)
    assert blind["accuracy_low"] <= 0.5 <= blind["accuracy_high"]


@pytest.mark.slow
@pytest.mark.parametrize("cell", flgan.cells("mnist", True, 1), ids=slug)
def test_every_quick_cell_is_measured(tiny, cell):
    found = flgan.measure("mnist", cell)
    if cell["method"] in ("fl-gan", "fedavg-gan"):
        claim = ("silo", "record") if cell["method"] == "fl-gan" else ("central", "client")
        assert (found["trust"], found["unit"], found["holds"]) == (*claim, True)
    labelled = cell["split"] != "attack" and "without labels" not in cell["method"]
    assert ("cnn" in found) == labelled
    assert ("trail" in found) == (cell["split"] == "skewed" and cell["method"] != "fedavg-gan")
