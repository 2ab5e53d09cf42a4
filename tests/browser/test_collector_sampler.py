"""The page's arithmetic in a real browser, against Python's: the law of its reports, how they are written, and codes of values.

Statistics have power: a table that is off by 3 % and a subset drawn by remainders are rejected by what accepts the page.
"""

import base64
import datetime
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from populace.collector.app import PAGES
from populace.collector.questions import code_of, question_document, report_document, schema_document
from populace.collector.study import plan_study
from populace.privacy.randomizers.subset import SubsetSelection
from populace.tables.dates import moment_number
from populace.tables.embedded import FOLDER
from populace.tables.schema import Column, Schema

from unit.tables.strategies import FAST, SCALES, columns  # isort: skip

pytestmark = pytest.mark.slow
SURE = 1e-7  # a test that rejects what is right once in so many runs
DRAWS = 100_000
LAWS = [(2, 1, 1.0), (4, 1, 1.0), (5, 2, 0.5), (6, 2, 1.0), (8, 2, 1.0), (7, 3, 0.3), (10, 1, 2.0)]
RESOLUTION = 2**63


@pytest.fixture
def page(browser, stub):
    """An empty page of the server, from which its modules can be loaded."""
    with browser.person():
        browser.open(stub.address + "icon.svg", width=375)
        browser.stub = stub
        yield browser


def law_of(size, chosen, epsilon, *, times=1.0):
    law = report_document(SubsetSelection(size=size, epsilon=epsilon, chosen=chosen))
    numerator = int(int(law["numerator"]) * times)
    return {**law, "numerator": str(numerator), "high": numerator >> 32, "low": numerator & 0xFFFFFFFF}


def counts_of_sets(page, law, own, *, module="sampler.js"):
    """How often each set was drawn, in the order of `itertools.combinations`."""
    script = f"""import('/{module}').then(({{ drawSet }}) => {{
      const law = {json.dumps(law)}, found = {{}};
      for (let i = 0; i < {DRAWS}; i += 1) {{ const set = drawSet(law, {own}).join(); found[set] = (found[set] || 0) + 1; }}
      return found; }})"""
    found = page.evaluate(script)
    names = [",".join(map(str, each)) for each in itertools.combinations(range(law["size"]), law["chosen"])]
    assert set(found) <= set(names)
    return np.array([found.get(name, 0) for name in names])


def exact_law(size, chosen, epsilon, own):
    """The probability of each set, in the same order."""
    p = float(SubsetSelection(size=size, epsilon=epsilon, chosen=chosen).exact_p)
    inside, outside = p / math.comb(size - 1, chosen - 1), (1 - p) / math.comb(size - 1, chosen)
    return np.array([inside if own in each else outside for each in itertools.combinations(range(size), chosen)])


@pytest.mark.parametrize(("size", "chosen", "epsilon"), LAWS)
def test_reports_follow_the_exact_law_and_a_wrong_table_is_rejected(page, size, chosen, epsilon):
    own = size // 2
    expected = DRAWS * exact_law(size, chosen, epsilon, own)
    assert expected.min() > 50
    has_own = np.array([own in each for each in itertools.combinations(range(size), chosen)])
    p = expected[has_own].sum() / DRAWS

    def told(counts):
        """How likely so many sets with the own value are: all the power there is against another probability of it."""
        return stats.binomtest(int(np.asarray(counts)[has_own].sum()), DRAWS, p).pvalue

    drawn = counts_of_sets(page, law_of(size, chosen, epsilon), own)
    assert min(stats.chisquare(drawn, expected).pvalue, told(drawn)) > SURE
    assert told(counts_of_sets(page, law_of(size, chosen, epsilon, times=1.03), own)) < SURE


def test_a_subset_drawn_by_remainders_is_rejected(page):
    """The planted module takes a remainder where the page draws again."""
    text = (PAGES / "sampler.js").read_text(encoding="utf-8")
    planted = text.replace("if (drawn < bound) return drawn;", "return drawn % bound;")
    assert planted != text
    page.stub.files["/planted.js"] = planted.encode()
    for size, chosen, epsilon in ((6, 2, 1.0), (7, 3, 0.3), (10, 1, 2.0)):
        expected = DRAWS * exact_law(size, chosen, epsilon, 1)
        drawn = counts_of_sets(page, law_of(size, chosen, epsilon), 1, module="planted.js")
        assert stats.chisquare(drawn, expected).pvalue < SURE


def test_whole_numbers_below_a_bound_are_even(page):
    for bound in (1, 2, 3, 5, 7, 100, 256, 257):
        drawn = page.evaluate(
            f"""import('/sampler.js').then(({{ below }}) => {{ const found = new Array({bound}).fill(0);
            for (let i = 0; i < {DRAWS}; i += 1) found[below({bound})] += 1; return found; }})"""
        )
        assert sum(drawn) == DRAWS
        assert bound == 1 or stats.chisquare(drawn).pvalue > SURE


def test_large_sets_name_all_others_equally_often(page):
    """256 values, a set of 69: the spread of how often each other value is told is that of draws without replacement."""
    size, chosen, own, draws = 256, 69, 200, 4_000
    law = law_of(size, chosen, 1.0)
    script = f"""import('/sampler.js').then(({{ drawSet }}) => {{ const found = new Array({size}).fill(0);
      for (let i = 0; i < {draws}; i += 1) for (const value of drawSet({json.dumps(law)}, {own})) found[value] += 1;
      return found; }})"""
    counts = np.array(page.evaluate(script))
    p, others = float(SubsetSelection(size=size, epsilon=1.0, chosen=chosen).exact_p), np.delete(counts, own)
    assert counts.sum() == draws * chosen
    assert stats.binomtest(int(counts[own]), draws, p).pvalue > SURE
    shares = np.array([chosen - 1, chosen]) / len(others)
    variance = draws * float(np.array([p, 1 - p]) @ (shares * (1 - shares)))
    spread = ((others - others.mean()) ** 2).sum() / variance * (len(others) - 1) / len(others)
    assert SURE < stats.chi2.sf(spread, len(others) - 1) < 1 - SURE


def test_the_threshold_is_exact_to_the_last_bit(page):
    """With words of the test's own: one below the numerator is told, the numerator itself is not."""
    law = law_of(4, 1, 1.0)
    numerator = int(law["numerator"])
    for drawn, told in (
        (0, True),
        (numerator - 1, True),
        (numerator, False),
        (numerator + 1, False),
        (2**63 - 1, False),
    ):
        words = [(drawn >> 32) << 1, drawn & 0xFFFFFFFF, *[0] * 20]
        script = f"""import('/sampler.js').then(({{ drawSet }}) => {{ const words = {words}; let at = 0;
          return drawSet({json.dumps(law)}, 2, () => words[at++]); }})"""
        assert (2 in page.evaluate(script)) == told
    sure = {**law, "numerator": str(RESOLUTION), "high": 2**31, "low": 0}
    script = f"import('/sampler.js').then(({{ drawSet }}) => drawSet({json.dumps(sure)}, 2, () => 0xffffffff))"
    assert page.evaluate(script) == [2]


def test_reports_are_written_as_python_writes_them(page):
    rng = np.random.default_rng(5)
    cases, expected, kinds = [], [], set()
    for _ in range(1_500):
        size = int(rng.integers(1, 400)) if rng.random() < 0.7 else int(rng.integers(1, 12))
        chosen = int(rng.integers(1, max(1, size - 1) + 1)) if rng.random() < 0.5 else min(max(1, size - 1), 3)
        member = SubsetSelection(size=size, epsilon=1.0, chosen=chosen)
        told = np.sort(rng.choice(size, chosen, replace=False))
        report = np.zeros(size, bool)
        report[told] = True
        cases.append([report_document(member), told.tolist()])
        kinds.add(cases[-1][0]["encoding"])
        expected.append(base64.b64encode(member.encode(report)).decode())
    assert kinds == {"bits", "indices"}
    script = (
        "import('/sampler.js').then(({ encodeSet, base64 }) => %s.map(([law, set]) => base64(encodeSet(law, set))))"
    )
    assert page.evaluate(script % json.dumps(cases)) == expected


@pytest.mark.parametrize(
    ("method", "epsilon"), [("poll", 1.0), ("independent", 0.5), ("samprivsyn", 1.0), ("poll", 0.1)]
)
def test_records_fall_into_the_cells_that_python_finds(page, method, epsilon):
    """Every question of a study passes the page's check, and a record's value is the one of the survey itself."""
    check_cells(page, plan_study(schema=str(FOLDER / "harbour.toml"), epsilon=epsilon, method=method, clients=2_000))


def test_folded_questions_have_the_values_that_python_finds(page, tmp_path):
    """A list so long that its cells share boxes."""
    codes = Column(name="code", kind="categorical", categories=tuple(f"c{i}" for i in range(700)), source="a catalogue")
    boat = Column(name="boat", kind="boolean", categories=("no", "yes"), nullable=True, source="a catalogue")
    Schema(columns=(codes, boat)).save(tmp_path / "long.toml")
    study = plan_study(schema=str(tmp_path / "long.toml"), epsilon=1.0, clients=2_000)
    assert any(study.survey.is_folded)
    check_cells(page, study)


def check_cells(page, study):
    survey, rng = study.survey, np.random.default_rng(6)
    asked = rng.choice(len(survey.groups), min(60, len(survey.groups)), replace=False)
    records = [[int(rng.integers(size)) for size in study.schema.sizes] for _ in asked]
    expected = [int(survey.cell(np.array(record), int(number))) for record, number in zip(records, asked, strict=True)]
    where = {"state": "ask", "round": 0, "place": 1, "seconds_left": 60}
    questions = [{**where, **question_document(survey, int(number))} for number in asked]
    facts = {"columns": schema_document(study.schema), "epsilon": study.epsilon}
    script = """Promise.all([import('/check.js'), import('/picture.js')]).then(([check, picture]) => {
      const study = %s, questions = %s, records = %s;
      return questions.map((question, i) => { check.checkQuestion(question, study);
        return picture.valueOf(question, question.columns.map((asked) => records[i][asked.column])); }); })"""
    assert page.evaluate(script % (json.dumps(facts), json.dumps(questions), json.dumps(records))) == expected


def numbers_near(document, draw):
    """Numbers at, beside and between the ends of a column's pieces, and anywhere."""
    scale = document["number"]
    ratio = 1.0 if scale["ticks"] is None else scale["ticks"]["over"] / scale["ticks"]["times"]
    ends = [end * ratio for piece in scale["pieces"] for end in piece[:2]] + list(scale["edges"] or [])
    near = [end + part * ratio for end in ends for part in (0, -0.5, 0.5, -1, 1, 0.25, -0.4999)]
    return near + draw(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=8))


def python_code(document, number):
    try:
        return code_of(document, number)
    except OverflowError:
        return None


def test_numbers_have_the_codes_that_python_finds(page):
    seen, compared = set(), 0

    @FAST
    @given(st.data())
    def check(data):
        nonlocal compared
        kind = data.draw(st.sampled_from(sorted(SCALES)))
        column = data.draw(columns("x").filter(lambda one: one.kind == kind))
        (document,) = schema_document(Schema(columns=(column,)))
        numbers = [number for number in numbers_near(document, data.draw) if math.isfinite(number)]
        expected = [python_code(document, number) for number in numbers]
        script = "import('/values.js').then(({ codeOf }) => %s.map((x) => codeOf(%s, x)))"
        assert page.evaluate(script % (json.dumps(numbers), json.dumps(document["number"]))) == expected
        seen.add((kind, column.clip))
        compared += len(numbers)

    check()
    assert {kind for kind, _ in seen} == set(SCALES)
    assert compared > 1_000


def test_every_schema_passes_the_page_s_check(page):
    @FAST
    @given(columns("x"))
    def check(column):
        (document,) = schema_document(Schema(columns=(column,)))
        study = {
            "interface": 1, "digest": "0" * 64, "facts": {"study": "x"}, "title": "", "open": False, "epsilon": 1,
            "method": {"for_pages": True}, "in_words": [], "guarantee": [], "columns": [document],
        }  # fmt: skip
        script = "import('/check.js').then(({ checkStudy }) => checkStudy(%s).columns.length)"
        assert page.evaluate(script % json.dumps(study)) == 1

    check()


def test_what_is_typed_is_the_number_that_python_reads(page):
    rng = np.random.default_rng(7)
    texts, expected = [], []
    for _ in range(300):
        moment = datetime.datetime(1, 1, 1) + datetime.timedelta(milliseconds=int(rng.integers(0, 315_537_897_600_000)))
        if rng.random() < 0.5:
            moment = moment.replace(second=0, microsecond=0)
        short = moment.isoformat(timespec="minutes" if moment.second == 0 else "milliseconds")
        for kind, text in (("date", short[:10]), ("datetime", short), ("time", short[11:])):
            texts.append([text, kind])
            expected.append(moment_number(text, kind))
    script = "import('/values.js').then((v) => %s.map(([text, kind]) => v.parseMoment(text, kind)))"
    assert page.evaluate(script % json.dumps(texts)) == expected
    typed = {
        "12": 12, " 7 ": 7, "-3.5": -3.5, "3,5": 3.5, "\u22124": -4, "+2": 2, "0.1": 0.1, ".5": 0.5, "5.": 5, "1000": 1000,
        "1,000": None, "1.2.3": None, "12a": None, "": None, "1e3": None, "NaN": None, "Infinity": None, "--1": None,
        "0x10": None, "1,5000": 1.5,
    }  # fmt: skip
    script = "import('/values.js').then((v) => %s.map(v.parseNumber))"
    assert page.evaluate(script % json.dumps(list(typed))) == list(typed.values())
    wrong = [["2023-02-29", "date"], ["2023-13-01", "date"], ["24:00", "time"], ["12:60", "time"], ["2023-01-01", "datetime"],
             ["2023-01-01T10:00", "date"], ["", "date"], ["x", "time"], ["0000-01-01", "date"]]  # fmt: skip
    script = "import('/values.js').then((v) => %s.map(([text, kind]) => v.parseMoment(text, kind)))"
    assert page.evaluate(script % json.dumps(wrong)) == [None] * len(wrong)
