"""Declared schemas of the public data sets: what their publishers' documentation says, and round bin edges.

No domain here was read from rows. Edges of numeric columns are round numbers, wide enough for what the documentation
says can occur; where a publisher gives no bound, the last edge is far above anything plausible.
"""

from __future__ import annotations

import dataclasses

from populace.tables.cells import same_law
from populace.tables.schema import Column, Kind, Other, Schema

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
    kind = "boolean" if values == (0, 1) else kind
    return Column(name=name, kind=kind, categories=tuple(str(value) for value in values), dtype="integer")


def _whole(name: str, *edges: float, spikes: tuple[float, ...] = (), tail: int = 0) -> Column:
    """Whole numbers in round cells; the last `tail` of them thin out."""
    laws = (*same_law("linear", len(edges) - 1 - tail), *same_law("log", tail))
    return Column(name=name, kind="integer", edges=edges, spikes=spikes, laws=laws)


def _declared(schema: Schema, source: str) -> Schema:
    """The schema with who says its domains, where a column does not say so itself."""
    columns = tuple(
        column if column.source else dataclasses.replace(column, source=source) for column in schema.columns
    )
    return dataclasses.replace(schema, columns=columns)


def adult() -> Schema:
    """All fifteen columns. The census extract holds persons over 16 who work at least an hour; gains stop at 99,999."""
    return _declared(
        Schema(
            columns=(
                _whole("age", 17, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 75, 100),
                _text("workclass", (*WORKCLASS, UNKNOWN)),
                _whole(
                    "fnlwgt",
                    0,
                    50_000,
                    100_000,
                    125_000,
                    150_000,
                    175_000,
                    200_000,
                    225_000,
                    250_000,
                    300_000,
                    400_000,
                    600_000,
                    1_000_000,
                    2_000_000,
                    tail=3,
                ),
                _text("education", EDUCATION),
                _codes("education-num", tuple(range(1, 17)), "ordinal"),
                _text("marital-status", MARITAL_STATUS),
                _text("occupation", (*OCCUPATION, UNKNOWN)),
                _text("relationship", RELATIONSHIP),
                _text("race", RACE),
                _text("sex", SEX),
                _whole(
                    "capital-gain", 1, 2_500, 5_000, 7_500, 10_000, 20_000, 50_000, 99_999, spikes=(0, 99_999), tail=2
                ),
                _whole("capital-loss", 1, 1_500, 1_750, 2_000, 2_250, 2_500, 3_000, 10_000, spikes=(0,), tail=1),
                _whole("hours-per-week", 1, 20, 30, 35, 40, 45, 50, 60, 80, 99, spikes=(20, 30, 35, 40, 45, 50, 60)),
                _text("native-country", (*NATIVE_COUNTRY, UNKNOWN)),
                _text("income", INCOME),
            ),
            target="income",
        ),
        "adult.names, UCI 1996",
    )


def adult9() -> Schema:
    """The nine categorical columns of complete rows: no "?", and so no "Never-worked", whose occupation is never known.

    Sizes 7, 16, 7, 14, 6, 5, 2, 41, 2; their product is 2^25.7, the domain of SamPrivSyn's experiments.
    """
    never = "Never-worked"
    return _declared(
        Schema(
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
        ),
        "adult.names, UCI 1996",
    )


def a9a() -> Schema:
    features = tuple(_codes(f"f{i}", (0, 1)) for i in range(1, 124))
    return _declared(
        Schema(columns=(*features, _codes("label", (-1, 1))), target="label"),
        "LIBSVM data sets, a9a",
    )


def bank() -> Schema:
    """All seventeen columns (bank-names.txt). pdays is -1 for a client never called before; duration is in seconds."""
    jobs = (
        "admin.", "unknown", "unemployed", "management", "housemaid", "entrepreneur", "student", "blue-collar",
        "self-employed", "retired", "technician", "services",
    )  # fmt: skip
    months = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
    answers = ("no", "yes")
    return _declared(
        Schema(
            columns=(
                _whole("age", 18, 25, 30, 35, 40, 45, 50, 55, 60, 70, 100),
                _text("job", jobs),
                _text("marital", ("married", "divorced", "single")),
                _text("education", ("unknown", "secondary", "primary", "tertiary")),
                _text("default", answers),
                _whole(
                    "balance",
                    -10_000,
                    -500,
                    1,
                    250,
                    500,
                    1_000,
                    2_000,
                    3_000,
                    5_000,
                    10_000,
                    20_000,
                    50_000,
                    200_000,
                    spikes=(0,),
                    tail=4,
                ),
                _text("housing", answers),
                _text("loan", answers),
                _text("contact", ("unknown", "telephone", "cellular")),
                _whole("day", *range(1, 32, 2)),
                _text("month", months, "ordinal"),
                _whole("duration", 0, 60, 90, 120, 150, 180, 240, 300, 420, 600, 900, 1_800, 3_600, 10_000, tail=3),
                _whole("campaign", 1, 2, 3, 4, 5, 6, 8, 11, 21, 40, 100, tail=3),
                _whole("pdays", 0, 91, 181, 271, 366, 500, 1_000, spikes=(-1,), tail=1),
                _whole("previous", 1, 2, 3, 4, 5, 7, 10, 20, 50, 300, spikes=(0,), tail=3),
                _text("poutcome", ("unknown", "other", "failure", "success")),
                _text("y", answers),
            ),
            target="y",
        ),
        "bank-names.txt, UCI 2012",
    )


def census1990() -> Schema:
    """The 68 attributes; the target is the length of active duty service, as in DP-Fed-WAE."""
    columns = tuple(_codes(name, CENSUS_LISTED.get(name, tuple(range(n)))) for name, n in CENSUS_CODES.items())
    return _declared(
        Schema(columns=columns, target="dYrsserv"),
        "the publisher's coding table, UCI US Census 1990",
    )


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
    return _declared(
        Schema(columns=(*columns, target), target=TWITTER_TARGET),
        "Twitter.names, UCI 2013",
    )


def vehicle() -> Schema:
    features = tuple(_codes(f"f{i}", (0, 1)) for i in range(1, 101))
    return _declared(
        Schema(columns=(*features, _codes("label", (0, 1))), target="label"),
        "LIBSVM data sets, SensIT Vehicle",
    )


# IDs_mapping.csv of the publisher: admission type, discharge disposition and admission source.
ADMISSION_TYPES = tuple(range(1, 9))
DISCHARGES = tuple(range(1, 31))
ADMISSION_SOURCES = (*range(1, 16), *range(17, 27))
# Strack et al. 2014, table 1: 23 medications, each "no", "steady", "up" or "down"; examide and citoglipton are among them.
MEDICATIONS = (
    "metformin", "repaglinide", "nateglinide", "chlorpropamide", "glimepiride", "acetohexamide", "glipizide", "glyburide",
    "tolbutamide", "pioglitazone", "rosiglitazone", "acarbose", "miglitol", "troglitazone", "tolazamide", "examide",
    "citoglipton", "insulin", "glyburide-metformin", "glipizide-metformin", "glimepiride-pioglitazone",
    "metformin-rosiglitazone", "metformin-pioglitazone",
)  # fmt: skip
DIABETES_READ = ("payer_code", "medical_specialty", "diag_1", "diag_2", "diag_3")


def diabetes130() -> Schema:
    """The columns whose values the paper lists, and the two ids. Payers, specialties and diagnoses are read from the table."""
    ages = tuple(f"[{low}-{low + 10})" for low in range(0, 100, 10))
    weights = (*(f"[{low}-{low + 25})" for low in range(0, 200, 25)), ">200")
    races = ("Caucasian", "Asian", "AfricanAmerican", "Hispanic", "Other")
    return _declared(
        Schema(
            columns=(
                _with_gaps(_text("race", races)),
                _text("gender", ("Female", "Male", "Unknown/Invalid")),
                _text("age", ages, "ordinal"),
                _with_gaps(_text("weight", weights, "ordinal")),
                _codes("admission_type_id", ADMISSION_TYPES),
                _codes("discharge_disposition_id", DISCHARGES),
                _codes("admission_source_id", ADMISSION_SOURCES),
                _whole("time_in_hospital", *range(1, 15), spikes=(14,)),
                _count("num_lab_procedures", 1, 10, 20, 30, 35, 40, 45, 50, 55, 60, 70, 80, 100, 150, spikes=(1,)),
                _codes("num_procedures", tuple(range(7)), "ordinal"),
                _count("num_medications", 1, 4, 6, 8, 10, 12, 14, 16, 18, 20, 25, 30, 40, 60, 100),
                _count("number_outpatient", 1, 2, 3, 4, 6, 10, 20, 50, spikes=(0,)),
                _count("number_emergency", 1, 2, 3, 4, 6, 10, 20, 50, spikes=(0,)),
                _count("number_inpatient", 1, 2, 3, 4, 6, 10, 25, spikes=(0,)),
                _count("number_diagnoses", *range(1, 17), spikes=(16,)),
                _text("max_glu_serum", ("None", "Norm", ">200", ">300")),
                _text("A1Cresult", ("None", "Norm", ">7", ">8")),
                *(_text(name, ("No", "Steady", "Up", "Down")) for name in MEDICATIONS),
                _text("change", ("No", "Ch"), "boolean"),
                _text("diabetesMed", ("No", "Yes"), "boolean"),
                _text("readmitted", ("NO", ">30", "<30")),
            ),
            others=tuple(
                Other(name=name, kind="id", position=place, dtype="integer")
                for place, name in enumerate(("encounter_id", "patient_nbr"))
            ),
            target="readmitted",
        ),
        "UCI, IDs_mapping.csv and table 1 of Strack et al. 2014",
    )


def _with_gaps(column: Column) -> Column:
    return dataclasses.replace(column, nullable=True, missing=(UNKNOWN,))


def _count(name: str, *edges: float, spikes: tuple[float, ...] = ()) -> Column:
    """A count without a published bound: what lies above goes to the last cell, which thins out."""
    return dataclasses.replace(_whole(name, *edges, spikes=spikes, tail=2), clip=True)
