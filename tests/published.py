"""Documents of ``--json`` against the published schemas, and against the same ones without room for a further field."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from jsonschema import Draft202012Validator

from wmmagen import schemas


def strict(schema: Any) -> Any:
    """``schema`` with every object closed that lists its fields; what a reader may meet, a test may not."""
    if isinstance(schema, list):
        return [strict(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(inner) for key, inner in schema.items()}
    if isinstance(schema.get("properties"), dict) and not {"additionalProperties", "$ref"} & schema.keys():
        closed["additionalProperties"] = False
    return closed


def read(text: str) -> Any:
    """The one document that ``text`` is, in JSON as the standard has it: without NaN and Infinity."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def judge(name: str, document: Any) -> None:
    """Return where ``document`` is one of ``name``.

    Raises:
        jsonschema.ValidationError: it lacks a field, has one of another type, or one that is not described.
    """
    schema = schemas.read(name)
    for each in (schema, strict(schema)):
        Draft202012Validator(each).validate(document)
