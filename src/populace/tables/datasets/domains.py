"""Declared schemas of the public data sets: what their publishers' documentation says, and round bin edges.

No domain here was read from rows. Edges of numeric columns are round numbers, wide enough for what the documentation
says can occur; where a publisher gives no bound, the last edge is far above anything plausible.
"""

from __future__ import annotations

from populace.tables.schema import Column, Kind, Schema

# adult.names: categories in the publisher's order; "?" is how it writes "not known".
UNKNOWN = "?"
WORKCLASS = (
    "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay",
    "Never-worked",
)  # fmt: skip
EDUCATION = (
    "Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm", "Assoc-voc", "9th", "7th-8th", "12th",
    "Masters", "1st-4th", "10th", "Doctorate", "5th-6th", "Preschool",
)  # fmt: skip
MARITAL_STATUS = (
    "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed", "Married-spouse-absent",
    "Married-AF-spouse",
)  # fmt: skip
OCCUPATION = (
    "Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty", "Handlers-cleaners",
    "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving", "Priv-house-serv", "Protective-serv",
    "Armed-Forces",
)  # fmt: skip
RELATIONSHIP = ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried")
RACE = ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black")
SEX = ("Female", "Male")
NATIVE_COUNTRY = (
    "United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany", "Outlying-US(Guam-USVI-etc)", "India",
    "Japan", "Greece", "South", "China", "Cuba", "Iran", "Honduras", "Philippines", "Italy", "Poland", "Jamaica",
    "Vietnam", "Mexico", "Portugal", "Ireland", "France", "Dominican-Republic", "Laos", "Ecuador", "Taiwan", "Haiti",
    "Columbia", "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia", "El-Salvador",
    "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands",
)  # fmt: skip
INCOME = ("<=50K", ">50K")
ADULT_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip

# USCensus1990: how many codes the publisher's coding table (i...) and discretisation (d...) define; they run from 0,
# except where CENSUS_LISTED lists them (0 here). The product of all sizes is 2^149.9; DP-Fed-WAE, table 1, says 2^150.
CENSUS_CODES = {
    "dAge": 8, "dAncstry1": 12, "dAncstry2": 0, "iAvail": 5, "iCitizen": 5, "iClass": 10, "dDepart": 6, "iDisabl1": 3,
    "iDisabl2": 3, "iEnglish": 5, "iFeb55": 2, "iFertil": 14, "dHispanic": 10, "dHour89": 6, "dHours": 6, "iImmigr": 11,
    "dIncome1": 5, "dIncome2": 2, "dIncome3": 2, "dIncome4": 2, "dIncome5": 2, "dIncome6": 2, "dIncome7": 2,
    "dIncome8": 2, "dIndustry": 13, "iKorean": 2, "iLang1": 3, "iLooking": 3, "iMarital": 5, "iMay75880": 2,
    "iMeans": 13, "iMilitary": 5, "iMobility": 3, "iMobillim": 3, "dOccup": 9, "iOthrserv": 2, "iPerscare": 3,
    "dPOB": 7, "dPoverty": 3, "dPwgt1": 4, "iRagechld": 5, "dRearning": 6, "iRelat1": 14, "iRelat2": 10,
    "iRemplpar": 0, "iRiders": 9, "iRlabor": 7, "iRownchld": 2, "dRpincome": 6, "iRPOB": 0, "iRrelchld": 2,
    "iRspouse": 7, "iRvetserv": 12, "iSchool": 4, "iSept80": 2, "iSex": 2, "iSubfam1": 4, "iSubfam2": 4,
    "iTmpabsnt": 4, "dTravtime": 7, "iVietnam": 2, "dWeek89": 3, "iWork89": 3, "iWorklwk": 3, "iWWII": 2,
    "iYearsch": 18, "iYearwrk": 8, "dYrsserv": 3,
}  # fmt: skip
CENSUS_LISTED = {
    "dAncstry2": tuple(range(1, 13)),  # 0, for the raw code 0, is left out: no row with it is known
    "iRemplpar": (0, 111, 112, 113, 114, 121, 122, 133, 134, 141, 211, 212, 213, 221, 222, 223),
    "iRPOB": (10, 21, 22, 23, 24, 31, 32, 33, 34, 35, 36, 40, 51, 52),
}

# Twitter.names: eleven features, each over seven time steps. DP-Fed-WAE puts each attribute in five bins and does not
# say which; counts and shares of attention span decades, so their bins do too, and the others are fine near one.
COUNTS = (0.0, 1.0, 10.0, 100.0, 1_000.0, 1_000_000.0)
ATTENTION = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1.0)
SHARE = (0.0, 0.5, 0.8, 0.95, 0.99, 1.0)
AVERAGE = (0.0, 1.0, 1.1, 1.5, 2.0, 10_000.0)
TWITTER_FEATURES = {
    "NCD": COUNTS, "AI": COUNTS, "AS(NA)": ATTENTION, "BL": SHARE, "NAC": COUNTS, "AS(NAC)": ATTENTION, "CS": SHARE,
    "AT": AVERAGE, "NA": COUNTS, "ADL": AVERAGE, "NAD": COUNTS,
}  # fmt: skip
TWITTER_STEPS = 7
TWITTER_TARGET = "mean_NAD"


def _text(name: str, categories: tuple[str, ...], kind: Kind = "categorical") -> Column:
    return Column(name=name, kind=kind, categories=categories)


def _codes(name: str, values: tuple[int, ...], kind: Kind = "categorical") -> Column:
    return Column(name=name, kind=kind, categories=tuple(str(value) for value in values), dtype="integer")


def _whole(name: str, *edges: float) -> Column:
    return Column(name=name, kind="integer", edges=edges)


def adult() -> Schema:
    """All fifteen columns. The census extract holds persons over 16 who work at least an hour; gains stop at 99,999."""
    return Schema(
        columns=(
            _whole("age", 17, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 75, 100),
            _text("workclass", (*WORKCLASS, UNKNOWN)),
            _whole("fnlwgt", 0, 50_000, 100_000, 150_000, 200_000, 250_000, 300_000, 400_000, 2_000_000),
            _text("education", EDUCATION),
            _codes("education-num", tuple(range(1, 17)), "ordinal"),
            _text("marital-status", MARITAL_STATUS),
            _text("occupation", (*OCCUPATION, UNKNOWN)),
            _text("relationship", RELATIONSHIP),
            _text("race", RACE),
            _text("sex", SEX),
            _whole("capital-gain", 0, 1, 2_500, 5_000, 7_500, 10_000, 20_000, 99_999),
            _whole("capital-loss", 0, 1, 1_500, 1_750, 2_000, 2_250, 2_500, 10_000),
            _whole("hours-per-week", 1, 20, 30, 35, 40, 41, 45, 50, 60, 99),
            _text("native-country", (*NATIVE_COUNTRY, UNKNOWN)),
            _text("income", INCOME),
        ),
        target="income",
    )


def adult9() -> Schema:
    """The nine categorical columns of complete rows: no "?", and so no "Never-worked", whose occupation is never known.

    Sizes 7, 16, 7, 14, 6, 5, 2, 41, 2; their product is 2^25.7, the domain of SamPrivSyn's experiments.
    """
    never = "Never-worked"
    return Schema(
        columns=(
            _text("workclass", tuple(value for value in WORKCLASS if value != never)),
            _text("education", EDUCATION),
            _text("marital-status", MARITAL_STATUS),
            _text("occupation", OCCUPATION),
            _text("relationship", RELATIONSHIP),
            _text("race", RACE),
            _text("sex", SEX),
            _text("native-country", NATIVE_COUNTRY),
            _text("income", INCOME),
        ),
        target="income",
    )


def a9a() -> Schema:
    features = tuple(_codes(f"f{i}", (0, 1)) for i in range(1, 124))
    return Schema(columns=(*features, _codes("label", (-1, 1))), target="label")


def bank() -> Schema:
    """All seventeen columns (bank-names.txt). pdays is -1 for a client never called before; duration is in seconds."""
    jobs = (
        "admin.", "unknown", "unemployed", "management", "housemaid", "entrepreneur", "student", "blue-collar",
        "self-employed", "retired", "technician", "services",
    )  # fmt: skip
    months = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
    answers = ("no", "yes")
    return Schema(
        columns=(
            _whole("age", 18, 25, 30, 35, 40, 45, 50, 55, 60, 70, 100),
            _text("job", jobs),
            _text("marital", ("married", "divorced", "single")),
            _text("education", ("unknown", "secondary", "primary", "tertiary")),
            _text("default", answers),
            _whole("balance", -10_000, 0, 1, 250, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 200_000),
            _text("housing", answers),
            _text("loan", answers),
            _text("contact", ("unknown", "telephone", "cellular")),
            _whole("day", 1, 6, 11, 16, 21, 26, 31),
            _text("month", months, "ordinal"),
            _whole("duration", 0, 60, 120, 180, 240, 300, 420, 600, 900, 1_800, 10_000),
            _whole("campaign", 1, 2, 3, 4, 5, 6, 11, 21, 100),
            _whole("pdays", -1, 0, 91, 181, 271, 366, 1_000),
            _whole("previous", 0, 1, 2, 3, 4, 5, 10, 20, 300),
            _text("poutcome", ("unknown", "other", "failure", "success")),
            _text("y", answers),
        ),
        target="y",
    )


def census1990() -> Schema:
    """The 68 attributes; the target is the length of active duty service, as in DP-Fed-WAE."""
    columns = tuple(_codes(name, CENSUS_LISTED.get(name, tuple(range(n)))) for name, n in CENSUS_CODES.items())
    return Schema(columns=columns, target="dYrsserv")


def twitter() -> Schema:
    """The 77 attributes and the target, the mean number of active discussions, in five bins each."""
    columns = [
        Column(
            name=f"{feature}_{step}", kind="integer" if edges is COUNTS else "decimal", edges=edges
        )
        for feature, edges in TWITTER_FEATURES.items()
        for step in range(TWITTER_STEPS)
    ]  # fmt: skip
    target = Column(name=TWITTER_TARGET, kind="decimal", edges=COUNTS)
    return Schema(columns=(*columns, target), target=TWITTER_TARGET)


def vehicle() -> Schema:
    features = tuple(_codes(f"f{i}", (0, 1)) for i in range(1, 101))
    return Schema(columns=(*features, _codes("label", (0, 1))), target="label")
