"""Every method by name: the built-in ones, and those that other packages offer.

A new method is a folder, or a file in its family's folder, one line here, and its page in docs/methods. Another package offers
one through the entry-point group `populace.methods`, in its own pyproject.toml:

    [project.entry-points."populace.methods"]
    my-method = "my_package.protocol:MyMethod"

It is listed by name and imported when it is first used, so that a broken one is no trouble to the others. Nothing here imports
JAX before a method is asked for: names and facts are known at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pydantic

from populace.border.models import Form, interpreting, read_document
from populace.errors import RunError, SpecError
from populace.methods.facts import Facts, read_facts
from populace.types import JsonObject

if TYPE_CHECKING:
    from populace.methods.base import Protocol
    from populace.methods.blocks.generator import Generator, Synthesizer

GROUP = "populace.methods"
BUILT_IN: dict[str, str] = {
    "census": "populace.methods.census.protocol:Census",
    "flaim": "populace.methods.flaim.protocol:Flaim",
    "poll": "populace.methods.poll.protocol:Poll",
    "independent": "populace.methods.baselines.independent:Independent",
    "samprivsyn": "populace.methods.marginals.samprivsyn:SamPrivSyn",
    "calm": "populace.methods.marginals.calm:Calm",
    "krr": "populace.methods.baselines.krr:Krr",
    "lopub": "populace.methods.marginals.lopub:LoPub",
    "locop": "populace.methods.marginals.locop:LoCop",
    "dp-fed-wae": "populace.methods.wae.dp_fed_wae:DpFedWae",
    "fedsel-wae": "populace.methods.wae.fedsel_wae:FedSelWae",
    "l-dpd-vae": "populace.methods.vae.l_dpd_vae:LDpdVae",
    "c-dpd-vae": "populace.methods.vae.c_dpd_vae:CDpdVae",
    "fed-vae": "populace.methods.vae.fed_vae:FedVae",
    "central-vae": "populace.methods.vae.central_vae:CentralVae",
    "chain": "populace.methods.chain.protocol:Chain",
    "fl-gan": "populace.methods.gan.fl_gan:FlGan",
    "ufl-gan": "populace.methods.gan.fl_gan:UflGan",
    "fedavg-gan": "populace.methods.gan.fedavg_gan:FedAvgGan",
    "genfl": "populace.methods.genfl.protocol:GenFl",
    "dp-fl": "populace.methods.genfl.protocol:DpFl",
    "moments": "populace.methods.moments.protocol:Moments",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offered:
    """A method that another package offers: where its class is, and which package says so; `problem` if it cannot be used."""

    name: str
    target: str
    package: str
    problem: str = ""


@functools.cache
def offered() -> tuple[Offered, ...]:
    """The methods of other packages, none of them imported."""
    points = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: (point.name, _package(point)))
    names = [point.name for point in points]
    methods = []
    for point in points:
        problem = ""
        if point.name in BUILT_IN:
            problem = f"package {_package(point)} offers a method {point.name!r}, which is the name of a built-in one"
        elif names.count(point.name) > 1:
            packages = sorted({_package(other) for other in points if other.name == point.name})
            problem = f"more than one entry point offers a method {point.name!r} (packages {', '.join(packages)})"
        elif not (point.module and point.attr):
            problem = (
                f"package {_package(point)} offers a method {point.name!r} as {point.value!r}, not as module:Class"
            )
        methods.append(Offered(name=point.name, target=point.value, package=_package(point), problem=problem))
    return tuple(methods)


def _package(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "of unknown name"


class Methods(Mapping[str, str]):
    """Where the class of every method is, by the method's name: the built-in ones first, then those of other packages."""

    @property
    def _known(self) -> dict[str, str]:
        return BUILT_IN | {one.name: one.target for one in offered() if not one.problem}

    def __getitem__(self, name: str) -> str:
        return BUILT_IN[name] if name in BUILT_IN else self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


METHODS = Methods()


def protocol_class(name: str) -> type[Protocol]:
    """The class of a method, imported now."""
    if not isinstance(name, str):
        raise SpecError(f"expected a method's name, got {name!r}; methods are {', '.join(METHODS)}")
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        built_in: type[Protocol] = getattr(importlib.import_module(module), attribute)
        return built_in
    if name not in METHODS:
        wrong = [one.problem for one in offered() if one.name == name]
        raise SpecError(wrong[0] if wrong else f"unknown method {name!r}; methods are {', '.join(METHODS)}")
    return _load(next(one for one in offered() if one.name == name and not one.problem))


def _load(one: Offered) -> type[Protocol]:
    """The class behind an entry point; what is wrong with it is one sentence, whatever its package raises."""
    from populace.methods.base import Protocol

    whose = f"method {one.name!r} of package {one.package} ({one.target})"
    module, _, attribute = one.target.partition(":")
    try:
        cls = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except Exception as error:
        raise SpecError(f"{whose} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Protocol) and dataclasses.is_dataclass(cls)):
        raise SpecError(f"{whose} is no method: expected a dataclass that inherits populace.methods.base.Protocol")
    if not isinstance(getattr(cls, "facts", None), Facts) or cls.facts.name != one.name:
        raise SpecError(f"{whose} has to say its name: expected `facts` with the name {one.name!r}")
    return cls


def generator_class(kind: str) -> type[Synthesizer] | None:
    """The class of the generators of this kind; methods are imported, one after the other, until one of them brings it."""
    from populace.methods.blocks.generator import KINDS

    for name in METHODS:
        if kind in KINDS:
            break
        with contextlib.suppress(SpecError):  # a method of another package that cannot be imported
            protocol_class(name)
    return KINDS.get(kind)


Length = Annotated[int, pydantic.Field(ge=1, le=2**16)]


class _Header(Form):
    """generator.json: of rows with their schema, of images with their shape."""

    kind: str
    table: JsonObject | None = pydantic.Field(default=None, alias="schema")
    shape: list[Length] | None = pydantic.Field(default=None, min_length=2, max_length=3)
    classes: Length | None = None


def load_generator(folder: Path) -> Synthesizer:
    """The generator that was saved in a folder, by this or an earlier version."""
    from populace.border.arrays import read_arrays

    document = read_document(folder / "generator.json", _Header)
    cls = generator_class(str(document.get("kind")))
    if cls is None:
        raise RunError(
            f"{folder} holds a generator of the unknown kind {document.get('kind')!r}; update populace, or install the package "
            "whose method made it"
        )
    arrays = read_arrays(folder / "generator.npz")
    with interpreting(f"the generator in {folder}"):
        return cls.from_saved(document, arrays)


def load_table_generator(folder: Path) -> Generator:
    """The generator of rows that was saved in a folder; one of images is refused."""
    from populace.methods.blocks.generator import Generator

    generator = load_generator(folder)
    if not isinstance(generator, Generator):
        raise RunError(f"the run in {folder} made images; this takes runs of tables")
    return generator


def built_in_facts() -> tuple[Facts, ...]:
    """What every built-in method says about itself, read from its source: none is imported."""
    return tuple(read_facts(target) for target in BUILT_IN.values())


def parameters(name: str) -> dict[str, dataclasses.Field[object]]:
    """The settings of a method, by name."""
    from populace.methods.blocks.settings import fields_of

    return fields_of(protocol_class(name))


def is_registered(method: Protocol) -> bool:
    """Whether this very class is the one registered under its name."""
    return method.facts.name in METHODS and type(method) is protocol_class(method.facts.name)


def registered_name(method: Protocol) -> str:
    """The name under which this very class is registered; a class that only calls itself so is refused."""
    name = method.facts.name
    if not is_registered(method):
        raise SpecError(
            f"{type(method).__name__} is not the registered method {name!r}; give it a name of its own and register it "
            "(entry-point group populace.methods), or run it in memory with simulate"
        )
    return name


def settings_from_file(name: str, settings: Mapping[str, object]) -> dict[str, object]:
    """Settings as a file of this or an earlier version names them, under their present names."""
    return protocol_class(name).settings_from_file(settings) if name in METHODS else dict(settings)


def make_protocol(name: str, settings: Mapping[str, object]) -> Protocol:
    """A method from its name and settings; text is read as the setting's type, and an unknown or wrong one is named."""
    from populace.methods.blocks.settings import read_settings

    cls = protocol_class(name)
    return cls(**read_settings(cls, settings))
