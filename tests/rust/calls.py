"""Rust programs that call a package's operators with the same arguments as Python.

The counterpart of tests/c/calls.py, with the same files. A program is written from ``ops.json``,
independently of the generator.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from c.calls import DTYPES, Call, as_bytes

HERE = Path(__file__).parent
_LISTS = ("ints", "floats", "bools", "shape", "axes")


def camel(name: str) -> str:
    """Return a name of a type."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def number(value: float) -> str:
    """Return a number."""
    if isinstance(value, float) and not math.isfinite(value):
        return "f64::NAN" if math.isnan(value) else f"{'-' * (value < 0)}f64::INFINITY"
    return str(value).lower()


def _parts(
    arg: Mapping[str, Any], values: Mapping[str, Any]
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return an argument with the values; for an array or string, two arguments with theirs."""
    if arg["kind"] != "array" or not arg["choices"]:
        return [(arg, values)]
    name, mode = arg["name"], f"{arg['name']}_mode"
    string = {**arg, "name": mode, "kind": "enum", "optional": True}
    array = {**arg, "choices": [], "optional": True}
    given = {}
    if name in values:
        value = values[name]
        given = {mode: value, name: None} if isinstance(value, str) else {mode: None, name: value}
    return [(string, given), (array, given)]


@dataclass
class Program:
    """The calls of a Rust program."""

    crate: str
    calls: list[Call] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    arrays: list[bytes] = field(default_factory=list)

    def add(self, call: Call) -> None:
        """Add a call."""
        op, lines, arguments, fields = call.op, list[str](), list[str](), list[str]()
        home = "::".join(filter(None, [self.crate, *op["module"].split(".")]))
        numbers = [a for a in op["args"] if a["kind"] == "array" and not a["optional"]]
        numbers = [arg for arg in numbers if not arg["choices"]]
        every = [part for arg in op["args"] for part in _parts(arg, call.values)]
        options = [arg for arg, _ in every if arg["has_default"] and arg not in numbers]
        for arg, values in every:
            if arg["name"] in values:
                value = values[arg["name"]]
                text = self._argument(arg, value, lines, f"{home}::{camel(op['name'])}")
            if arg not in options:
                arguments.append(text)
            elif arg["name"] in values:
                fields.append(f"{arg['name']}: {text}")
        if options:
            rest = ["..Default::default()"] * (len(fields) < len(options))
            arguments.append(
                f"{home}::{camel(op['name'])}Options {{ {', '.join([*fields, *rest])} }}"
            )
        name = f"{op['name']}_" if op["name"] == "where" else op["name"]  # a keyword of Rust
        lines.append(f"let out = {home}::{name}({', '.join([*arguments, 'cpu'])});")
        if op["outputs"][0]["resolved"]["kind"] == "arrays":
            lines.append("files.put_list(out);")
        elif len(op["outputs"]) == 1:
            lines.append("files.put(out);")
        else:
            lines += ["match out {", "    Ok(out) => {"]
            lines += [f"        files.put(Ok(out.{output['name']}));" for output in op["outputs"]]
            lines += ["    }", "    Err(error) => files.put_error(error.message()),", "}"]
        body = "\n    ".join(lines)
        label = " ".join(call.label.split())
        head = f"fn call_{len(self.calls)}(files: &mut Files, cpu: &Stream) {{"
        self.text.append(f"// {label}\n{head}\n    {body}\n}}\n")
        self.calls.append(call)

    def _argument(self, arg: Mapping[str, Any], value: Any, lines: list[str], prefix: str) -> str:
        """Return an argument; lists of arrays and arrays are variables."""
        kind, name = arg["kind"], f"{arg['name']}_value"
        if value is None:
            return "None"
        text = self._plain(arg, value, prefix)
        if kind == "array":
            lines.append(f"let {name} = files.take();")
            self.arrays.append(as_bytes(value))
            text = f"&{name}"
        elif kind in ("arrays", "optionals"):
            self.arrays += [as_bytes(item) for item in value if item is not None]
            of = [f"{name}_{i}" for i in range(len(value))]
            given = [n for n, item in zip(of, value, strict=True) if item is not None]
            lines += [f"let {n} = files.take();" for n in given]
            some = "Some(&{})" if "optional" in kind else "&{}"
            items = (some.format(n) if n in given else "None" for n in of)
            text = f"&[{', '.join(items)}]"
        return f"Some({text})" if arg["optional"] else text

    def _plain(self, arg: Mapping[str, Any], value: Any, prefix: str) -> str:
        kind, length = arg["kind"], arg["resolved"].get("length") or 1
        if kind in _LISTS:
            values = list(value) if isinstance(value, list | tuple) else [value]
            values = values * length if len(values) == 1 else values
            fixed = length > 1 and not arg["resolved"].get("empty")
            return f"{'' if fixed else '&'}[{', '.join(map(number, values))}]"
        if kind == "nested":
            lists = (", ".join(map(number, one)) for one in value)
            return f"&[{', '.join(f'&[{items}]' for items in lists)}]"
        if kind == "enum":
            words = "".join(c if c.isalnum() else "_" for c in value)
            return f"{prefix}{camel(arg['name'])}::{camel(words)}"
        if kind == "str":
            return json.dumps(value, ensure_ascii=False)
        if kind == "dtype":
            name = str(value).rpartition(".")[2].rstrip("_")
            assert value in DTYPES
            return f"{self.crate}::Dtype::{name.capitalize()}"
        if kind == "number":
            suffix = "i64" if type(value) is int else ""
            return f"({number(value)}{suffix}).into()"
        if kind == "float":
            return number(float(value))
        return number(value) if kind in ("int", "bool") else ""

    def source(self) -> str:
        """Return the text of the program, a test of the crate."""
        shared = (HERE / "calls.rs").read_text("utf-8").replace("PACKAGE", self.crate)
        calls = "\n".join(f"    call_{i}(&mut files, &cpu);" for i in range(len(self.calls)))
        return (
            "#![allow(deprecated, non_snake_case, clippy::needless_update)]\n\n"
            f"use {self.crate}::Stream;\n\n{shared}\n" + "\n".join(self.text) + "\n"
            "#[test]\nfn calls() {\n    let mut files = Files::open();\n"
            f"    let cpu = Stream::cpu().unwrap();\n{calls}\n    files.close();\n}}\n"
        )
