"""Every method by name. A new one is one file and one line here."""

from __future__ import annotations

import dataclasses
import importlib
import types
import typing
from collections.abc import Mapping
from typing import Any

from populace.errors import SpecError
from populace.methods.base import Facts, Kind, Protocol

METHODS: dict[str, str] = {
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
    "chain": "populace.methods.chain:Chain",
    "fl-gan": "populace.methods.gan.fl_gan:FlGan",
    "ufl-gan": "populace.methods.gan.fl_gan:UflGan",
    "fedavg-gan": "populace.methods.gan.fedavg_gan:FedAvgGan",
    "genfl": "populace.methods.genfl.protocol:GenFl",
    "dp-fl": "populace.methods.genfl.protocol:DpFl",
    "moments": "populace.methods.moments.protocol:Moments",
}
DEFAULTS: dict[Kind, str] = {"table": "poll", "images": "moments"}


def protocol_class(name: str) -> type[Protocol]:
    if name not in METHODS:
        raise SpecError(f"unknown method {name!r}; methods are {', '.join(METHODS)}")
    module, _, attribute = METHODS[name].partition(":")
    found: type[Protocol] = getattr(importlib.import_module(module), attribute)
    return found


def all_facts() -> tuple[Facts, ...]:
    return tuple(protocol_class(name).facts for name in METHODS)


def parameters(name: str) -> dict[str, dataclasses.Field[Any]]:
    """The public fields of a method."""
    return {field.name: field for field in dataclasses.fields(protocol_class(name))}  # type: ignore[arg-type]


def settings_from_file(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a file of this or an earlier version names them, under their present names."""
    renamed = protocol_class(name).renamed if name in METHODS else {}
    return {renamed.get(key, key): value for key, value in settings.items()}


def make_protocol(name: str, settings: Mapping[str, Any]) -> Protocol:
    """A method from its name and settings; text is read as the field's type, and an unknown or wrong one is named."""
    cls = protocol_class(name)
    fields = parameters(name)
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in fields:
            raise SpecError(f"method {name!r} has no parameter {key!r}; its parameters are {', '.join(fields)}")
        values[key] = _read(value, hints[key], f"{name}.{key}") if isinstance(value, str) else value
    missing = [
        key
        for key, field in fields.items()
        if key not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise SpecError(f"method {name!r} needs {missing[0]!r}; give it with --set {missing[0]}=VALUE")
    return cls(**values)


def _read(text: str, kind: Any, where: str) -> Any:
    """Text from the command line as the field's type."""
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        if text not in typing.get_args(kind):
            raise SpecError(f"expected {where} in {', '.join(map(str, typing.get_args(kind)))}, got {text!r}")
        return text
    if origin in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        if text.lower() == "none" and type(None) in typing.get_args(kind):
            return None
        return _read(text, options[0], where)
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
    elif kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    elif kind is str:
        return text
    raise SpecError(f"expected {where} as {getattr(kind, '__name__', kind)}, got {text!r}")
