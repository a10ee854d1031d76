"""Checks requests against AWS's own model of EC2, which botocore carries: one form per line on standard input.

Prints what is wrong, and how many requests and parameters were looked at. Each parameter must be one that the action knows, of its
type, and one of its values where they are few; each that an action requires must be there.
"""

import gzip
import json
import pathlib
import re
import sys
import urllib.parse

import botocore

DIRECTORY = pathlib.Path(botocore.__file__).parent / "data/ec2/2016-11-15"
MODEL = json.loads(gzip.decompress((DIRECTORY / "service-2.json.gz").read_bytes()))
SHAPES = MODEL["shapes"]


def wire_name(name, member):
    """Of a member, in a request of the ec2 protocol."""
    location = member.get("queryName") or member.get("locationName")
    return location[0].upper() + location[1:] if location else name


def check(shape, path, value):
    """What is wrong with the value of a parameter; `path` is what is left of its name."""
    kind = shape["type"]
    if kind == "structure":
        members = {wire_name(name, member): member for name, member in shape["members"].items()}
        if not path or path[0] not in members:
            return f"{path[0] if path else 'a structure'} is not known"
        return check(SHAPES[members[path[0]]["shape"]], path[1:], value)
    if kind == "list":
        if not path or not re.fullmatch("[1-9][0-9]*", path[0]):
            return "no number in a list"
        return check(SHAPES[shape["member"]["shape"]], path[1:], value)
    if path:
        return f"{'.'.join(path)} of a {kind}"
    good = {
        "string": lambda: value in shape.get("enum", [value]),
        "boolean": lambda: value in ("true", "false"),
        "integer": lambda: re.fullmatch("-?[0-9]+", value),
        "long": lambda: re.fullmatch("-?[0-9]+", value),
    }
    return None if good[kind]() else f"{value!r} is no {kind}, or none of its values"


def main():
    requests = parameters = wrong = 0
    for line in filter(None, map(str.strip, sys.stdin)):
        requests += 1
        form = dict(urllib.parse.parse_qsl(line, keep_blank_values=True, strict_parsing=True))
        action, version = form.pop("Action"), form.pop("Version")
        faults = [] if version == MODEL["metadata"]["apiVersion"] else [f"version {version}"]
        if action not in MODEL["operations"]:
            faults.append("there is no such action")
        else:
            shape = SHAPES[MODEL["operations"][action]["input"]["shape"]]
            for name, value in form.items():
                parameters += 1
                fault = check(shape, name.split("."), value)
                faults += [f"{name}: {fault}"] if fault else []
            for name in shape.get("required", []):
                start = wire_name(name, shape["members"][name])
                if not any(given == start or given.startswith(start + ".") for given in form):
                    faults.append(f"{start} is required")
        for fault in faults:
            wrong += 1
            print(f"{action}: {fault}")
    print(f"FIGURE: EC2 requests against AWS's model: {requests} requests, {parameters} parameters, {wrong} wrong")
    return 1 if wrong or not requests else 0


sys.exit(main())
