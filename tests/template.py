"""Reads `template.yaml` as it is, for tests that hold the code against it."""

import uuid
from functools import cache
from typing import Any

import yaml

from local.stack import ROOT


class _Loader(yaml.SafeLoader):
    """Knows CloudFormation's short forms: `!Ref x` is `{"Ref": "x"}`, `!Sub x` is `{"Fn::Sub": "x"}`."""


def _short_form(loader: yaml.SafeLoader, name: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    if name == "GetAtt" and isinstance(value, str):
        value = value.split(".")
    return {name if name in ("Ref", "Condition") else f"Fn::{name}": value}


_Loader.add_multi_constructor("!", _short_form)


@cache
def template() -> dict[str, Any]:
    """The whole template."""
    return yaml.load((ROOT / "template.yaml").read_text(), _Loader)


def resources(of_type: str) -> dict[str, dict[str, Any]]:
    """The resources of a type, by logical id."""
    return {name: found for name, found in template()["Resources"].items() if found["Type"] == of_type}


def create_table(dynamodb: Any) -> str:
    """Create an empty table with the template's keys and indexes. Returns its name."""
    declared = template()["Resources"]["Table"]["Properties"]
    name = f"threadkeep-{uuid.uuid4().hex[:8]}"
    wanted = ("AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes", "BillingMode")
    dynamodb.create_table(TableName=name, **{key: declared[key] for key in wanted})
    dynamodb.get_waiter("table_exists").wait(TableName=name)
    return name


def create_bucket(s3: Any) -> str:
    """Create an empty bucket for big bodies. Returns its name."""
    name = f"threadkeep-{uuid.uuid4().hex[:8]}"
    s3.create_bucket(Bucket=name)
    return name
