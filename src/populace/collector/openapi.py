"""The interface in the form of OpenAPI 3.1; `tests` hold it against the routes and against what they answer."""

from __future__ import annotations

from populace.types import JsonObject
from populace.version import __version__

TEXT: JsonObject = {"type": "string"}
WHOLE: JsonObject = {"type": "integer", "minimum": 0}
NUMBER: JsonObject = {"type": "number"}
TRUTH: JsonObject = {"type": "boolean"}
ERROR: JsonObject = {"$ref": "#/components/schemas/Error"}
REASONS = {
    "400": "The request is malformed.",
    "401": "No invitation or token was sent, or it is not written like one.",
    "403": "The invitation is unknown, or the token is not the organiser's.",
    "408": "The body did not arrive in time.",
    "409": "The invitation has been used, or another answer was given with it.",
    "410": "The study or the round is over, or the place was given to another device.",
    "413": "The body is too long.",
    "415": "The body is of another type.",
    "422": "The report is none that a device could have sent in answer to its question.",
    "429": "Too many requests; `retry-after` says when to come back.",
    "500": "The server failed; nothing is counted twice.",
    "503": "The store is away; `retry-after` says when to come back. Send the same again.",
}


def _list(of: JsonObject) -> JsonObject:
    return {"type": "array", "items": of}


def _object(properties: JsonObject, *, optional: tuple[str, ...] = ()) -> JsonObject:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _answers(description: str, schema: str, statuses: tuple[str, ...], *, wire: bool = False) -> JsonObject:
    content: JsonObject = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    if wire:
        content["application/x-populace"] = {"schema": {"type": "string", "format": "binary"}}
    failures = {
        status: {"description": REASONS[status], "content": {"application/json": {"schema": ERROR}}}
        for status in statuses
    }
    return {"200": {"description": description, "content": content}, **failures}


def _paths() -> JsonObject:
    always = ("429", "500", "503")
    invitation: list[JsonObject] = [{"invitation": []}]
    return {
        "/v1/study": {
            "get": {"summary": "What is asked, on which terms, and what is guaranteed.",
                    "responses": _answers("The study.", "Study", always)},
        },
        "/v1/invitation": {
            "post": {"summary": "An invitation to an open study.",
                     "responses": _answers("A new invitation.", "Invitation", ("403", "408", "410", "413", *always))},
        },
        "/v1/question": {
            "get": {"summary": "A place in the present round and its question, or how long to wait. The same invitation gets "
                               "the same place again while it holds it.",
                    "security": invitation,
                    "responses": _answers("A question, or a moment to wait.", "Question",
                                          ("401", "403", "409", "410", *always), wire=True)},
        },
        "/v1/answer": {
            "post": {"summary": "A randomised report, for a receipt. The same answer sent again gets the same receipt.",
                     "security": invitation,
                     "requestBody": {"required": True, "content": {
                         "application/json": {"schema": {"$ref": "#/components/schemas/Answer"}},
                         "application/x-populace": {"schema": {"type": "string", "format": "binary"}}}},
                     "responses": _answers("The receipt.", "Receipt",
                                           ("400", "401", "403", "408", "409", "410", "413", "415", "422", *always))},
        },
        "/v1/progress": {
            "get": {"summary": "For the organiser: answers so far, and estimates of single columns. Never a row.",
                    "security": [{"organiser": []}],
                    "parameters": [{"name": "error", "in": "query", "required": False,
                                    "description": "The half-width of a 95 % interval that would be enough.",
                                    "schema": {"type": "number", "minimum": 0.0001, "exclusiveMaximum": 1,
                                               "default": 0.05}}],
                    "responses": _answers("Progress.", "Progress", ("400", "401", "403", *always))},
        },
        "/v1/health": {
            "get": {"summary": "Whether the store answers.", "responses": _answers("It does.", "Health", always)},
        },
        "/v1/openapi.json": {
            "get": {"summary": "This document.", "responses": {"200": {"description": "OpenAPI 3.1.",
                    "content": {"application/json": {"schema": {"type": "object"}}}}}},
        },
    }  # fmt: skip


def _schemas() -> JsonObject:
    number = _object({
        "unit": TEXT, "step": NUMBER, "clip": TRUTH,
        "ticks": {"oneOf": [{"type": "null"}, _object({"times": WHOLE, "over": WHOLE, "round": TEXT})]},
        "edges": {"type": ["array", "null"], "items": NUMBER}, "inner": {"type": ["array", "null"], "items": NUMBER},
        "pieces": _list({"type": "array", "items": NUMBER, "minItems": 3, "maxItems": 3}),
    })  # fmt: skip
    column = _object({
        "name": TEXT, "kind": TEXT, "size": WHOLE, "labels": _list(TEXT), "nullable": TRUTH,
        "null_code": {"type": ["integer", "null"]}, "target": TRUTH, "categories": _list(TEXT),
        "other_code": {"type": ["integer", "null"]}, "number": number,
    }, optional=("categories", "other_code", "number"))  # fmt: skip
    asked = _object({"column": WHOLE, "name": TEXT, "groups": _list(WHOLE), "labels": _list(TEXT), "stride": WHOLE})
    report = _object({
        "size": WHOLE, "chosen": WHOLE, "numerator": TEXT, "denominator": TEXT, "high": WHOLE, "low": WHOLE,
        "probability": NUMBER, "probability_of_another": NUMBER, "encoding": {"enum": ["bits", "indices"]},
        "index_bits": WHOLE, "bytes": WHOLE,
    })  # fmt: skip
    estimate = _object({
        "name": TEXT, "labels": _list(TEXT), "shares": _list(NUMBER), "half_widths": _list(NUMBER), "answers": WHOLE,
        "answers_needed": {"type": ["integer", "null"]},
    })  # fmt: skip
    at = _object({
        "round": WHOLE, "state": {"enum": ["open", "sealed", "absorbed"]}, "places": WHOLE, "taken": WHOLE, "answered": WHOLE,
        "last": TRUTH, "closes": {"type": ["number", "null"]},
    })  # fmt: skip
    return {
        "Error": _object({"error": TEXT}),
        "Study": _object({
            "interface": {"const": 1}, "populace": TEXT, "title": TEXT, "digest": TEXT, "facts": {"type": "object"},
            "method": _object({"name": TEXT, "title": TEXT, "for_pages": TRUTH, "questions": WHOLE}), "epsilon": NUMBER,
            "open": TRUTH, "planned_answers": WHOLE, "columns": _list(column),
            "guarantee": _list(_object({"label": TEXT, "words": TEXT})), "in_words": _list(TEXT),
        }),
        "Invitation": _object({"invitation": TEXT}),
        "Question": {"oneOf": [
            _object({"state": {"const": "wait"}, "retry_after": WHOLE, "why": TEXT}),
            _object({
                "state": {"const": "ask"}, "round": WHOLE, "place": WHOLE, "client": WHOLE,
                "seconds_left": WHOLE, "held_until": TEXT, "round_closes": TEXT,
                "question": WHOLE, "columns": _list(asked), "cells": WHOLE,
                "values": {"type": ["array", "null"], "items": WHOLE}, "report": report,
            }),
        ]},
        "Answer": _object({"round": WHOLE, "place": WHOLE, "report": TEXT, "nonce": TEXT}),
        "Receipt": _object({"receipt": TEXT, "fresh": TRUTH}),
        "Progress": _object({
            "title": TEXT, "method": TEXT, "state": {"enum": ["open", "closed"]}, "open_to_all": TRUTH, "answers": WHOLE,
            "planned_answers": WHOLE, "invitations": WHOLE, "rounds": _list(at), "epsilon": NUMBER, "in_words": _list(TEXT),
            "confidence": NUMBER, "wanted_error": NUMBER, "columns": _list(estimate), "made": NUMBER,
            "answers_needed": {"type": ["integer", "null"]}, "enough": {"type": ["boolean", "null"]},
        }),
        "Health": _object({"state": {"const": "ready"}}),
    }  # fmt: skip


def document() -> JsonObject:
    """`GET /v1/openapi.json`."""
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "populace collector",
            "version": __version__,
            "summary": 'One randomised answer per person. Every refusal is one sentence: {"error": "..."}.',
        },
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "invitation": {**bearer, "description": "The capability in an invitation's link, after the #."},
                "organiser": {**bearer, "description": "The content of organiser.token."},
            },
        },
    }
