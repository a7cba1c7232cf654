"""Reads the archive of `torch.export.save` without torch.

A `.pt2` file is a zip archive: `models/NAME.json` is the program, `data/weights` and
`data/constants` have the bytes of the arrays and one JSON file each that describes them.
Everything that the file contains is checked here, so that the other modules can rely on it:
each problem raises an ExportError that names the file.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import IO, Any

import mlx.core as mx

from .program import (
    ExportError,
    Graph,
    Input,
    Leaf,
    Node,
    Output,
    Place,
    Program,
    Ref,
    Signature,
    Tensor,
    Value,
    refs_of,
)
from .tree import read_tree

SCHEMA = 8  # the major version of torch's schema; a new minor version is compatible
FORMATS = ("0",)
OLD_PROGRAM = "serialized_exported_program.json"
AGAIN = "load it with torch.export.load and save it with torch 2.13 or newer"

# torch's numbers for dtypes.
DTYPES = {
    1: mx.uint8,
    2: mx.int8,
    3: mx.int16,
    4: mx.int32,
    5: mx.int64,
    6: mx.float16,
    7: mx.float32,
    8: mx.float64,
    10: mx.complex64,
    12: mx.bool_,
    13: mx.bfloat16,
    28: mx.uint16,
    34: mx.uint32,
    35: mx.uint64,
}
UNSUPPORTED = {
    9: "complex32",
    11: "complex128",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
}
# What zipfile raises if an archive is damaged.
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError),
    *(NotImplementedError, RuntimeError, OverflowError, ValueError),
)
STRIDED = 7  # torch's number of the layout with strides

# A symbol among sizes, as torch writes it with SymPy's srepr.
SYMBOL = re.compile(r"Symbol\('(\w+)'[^()]*\)")


@dataclass(frozen=True)
class Weight:
    """An array of the archive; parameters that are one array in the model share a record."""

    array: mx.array
    record: str
    trained: bool


@dataclass
class Archive:
    """A program and its arrays by path."""

    program: Program
    weights: dict[str, Weight]


def read(source: str | PathLike[str] | IO[bytes] | Any) -> Archive:
    """Return the content of a `.pt2` file, or of an ExportedProgram of torch."""
    file = str(source) if isinstance(source, str | PathLike) else "the program"
    if hasattr(source, "graph_signature"):
        source = _saved(source)
    elif not isinstance(source, str | PathLike) and not hasattr(source, "read"):
        raise TypeError(
            f"from_exported takes a path, a file or an ExportedProgram, not {type(source).__name__}"
        )
    try:
        with zipfile.ZipFile(source) as archive:
            return _Reader(file, archive).read()
    except (ExportError, FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except DAMAGE as error:
        raise ExportError(
            f"{file}: not an archive of torch.export.save, or damaged: {error}"
        ) from error


def _saved(exported: Any) -> IO[bytes]:
    """Return torch's own archive of a program in memory, so that there is one way to read."""
    import torch  # type: ignore[import-not-found]

    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    buffer.seek(0)
    return buffer


class _Reader:
    """Reads one archive; its methods follow the structure of the file."""

    def __init__(self, file: str, archive: zipfile.ZipFile) -> None:
        self.file = file
        self.archive = archive
        self.records = {name.partition("/")[2]: name for name in archive.namelist()}

    def read(self) -> Archive:
        self.check_layout()
        models = [r for r in self.records if r.startswith("models/") and r.endswith(".json")]
        if len(models) != 1:
            raise self.error(f"has {len(models)} programs, not one")
        name = models[0].removeprefix("models/").removesuffix(".json")
        described = self.json(models[0])
        with self.damage(models[0]):
            self.check_version(described)
            program = self.program(described)
            self.check_names(program.graph, set(program.graph.inputs))
        weights = self.arrays("weights", name) | self.arrays("constants", name)
        with self.damage(models[0]):
            signature = program.signature
            for paths in (signature.parameters, signature.buffers, signature.constants):
                for name, path in paths.items():
                    if path not in weights or name not in program.graph.tensors:
                        raise self.error(f"has no array for '{path}'")
        return Archive(program, weights)

    def error(self, text: str) -> ExportError:
        return ExportError(f"{self.file}: {text}")

    def damage(self, record: str) -> _Damage:
        return _Damage(self, record)

    def bytes(self, record: str) -> bytes:
        try:
            return self.archive.read(self.records[record])
        except KeyError:
            raise self.error(f"has no record '{record}'") from None
        except DAMAGE as error:
            raise self.error(f"the record '{record}' is damaged: {error}") from error

    def json(self, record: str) -> Any:
        try:
            return json.loads(self.bytes(record))
        except ValueError as error:
            raise self.error(f"the record '{record}' is damaged: {error}") from error

    def check_layout(self) -> None:
        if OLD_PROGRAM in self.archive.namelist():
            self.records[OLD_PROGRAM] = OLD_PROGRAM
            with self.damage(OLD_PROGRAM):
                version = self.json(OLD_PROGRAM).get("torch_version", "2.4 or older")
                raise self.error(f"has the older layout of torch {version}; {AGAIN}")
        if "archive_format" not in self.records:
            raise self.error("not an archive of torch.export.save: no record 'archive_format'")
        format = self.bytes("archive_format").decode(errors="replace")
        version = self.bytes("archive_version").decode(errors="replace").strip()
        if format != "pt2" or version not in FORMATS:
            raise self.error(
                f"has the format '{format}' with version '{version}'; expected 'pt2' and '0'"
            )
        if "byteorder" in self.records and self.bytes("byteorder") != b"little":
            raise self.error("was written on a machine with another byte order")

    def check_version(self, described: Mapping[str, Any]) -> None:
        schema = described["schema_version"]
        if schema["major"] != SCHEMA:
            raise self.error(
                f"has schema version {schema['major']}.{schema['minor']}, from torch "
                f"{described.get('torch_version')}; expected {SCHEMA}.x"
            )

    def check_names(self, graph: Graph, known: set[str]) -> None:
        """Check that each node reads only what was computed before it."""
        for node in graph.nodes:
            for name in node.reads():
                if name not in known:
                    raise self.error(f"node '{node.name}' reads '{name}' before it is computed")
            known.update(node.outputs())
        for name in refs_of(graph.outputs):
            if name not in known:
                raise self.error(f"the program returns '{name}', which is not computed")

    # The arrays.

    def arrays(self, kind: str, name: str) -> dict[str, Weight]:
        folder = f"data/{kind}/"
        record = f"{folder}{name}_{kind}_config.json"
        if record not in self.records:
            found = [r for r in self.records if r.startswith(folder)]
            if found:
                raise self.error(f"has an older layout, without '{record}'; {AGAIN}")
            return {}
        flat: dict[tuple[str, mx.Dtype], mx.array] = {}
        arrays = {}
        described = self.json(record)
        with self.damage(record):
            for path, payload in described["config"].items():
                if payload["use_pickle"]:
                    raise self.error(f"'{path}' is not a plain tensor, but a pickled object")
                source = folder + payload["path_name"]
                meta = payload["tensor_meta"]
                if meta["layout"] != STRIDED:
                    raise self.error(f"'{path}' is sparse, which MLX lacks")
                dtype = self.dtype(meta["dtype"], f"'{path}'")
                key = (source, dtype)
                if key not in flat:
                    flat[key] = _from_bytes(self.bytes(source), dtype)
                array = self.strided(flat[key], meta, path)
                place = f"{source} {json.dumps(meta, sort_keys=True)}"
                arrays[path] = Weight(array, place, bool(meta["requires_grad"]))
        return arrays

    def strided(self, flat: mx.array, meta: Mapping[str, Any], path: str) -> mx.array:
        shape = [size["as_int"] for size in meta["sizes"]]
        strides = [stride["as_int"] for stride in meta["strides"]]
        offset = meta["storage_offset"]["as_int"]
        if 0 in shape:
            return mx.zeros(shape, flat.dtype)
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if last >= flat.size:
            raise self.error(f"'{path}' needs {last + 1} numbers, but its record has {flat.size}")
        stream = mx.cpu if flat.dtype == mx.float64 else None
        strided = mx.as_strided(flat, shape, strides, offset, stream=stream)
        array = mx.contiguous(strided, stream=stream)
        mx.eval(array)  # so that the array does not keep the record
        return array

    def dtype(self, number: int, of: str) -> mx.Dtype:
        if number not in DTYPES:
            name = UNSUPPORTED.get(number, f"number {number}")
            raise self.error(f"{of} has the dtype {name}, which MLX lacks")
        return DTYPES[number]

    # The program.

    def program(self, described: Mapping[str, Any]) -> Program:
        module = described["graph_module"]
        graph = self.graph(module["graph"])
        call = module["module_call_graph"][0]["signature"]
        fields = module.get("treespec_namedtuple_fields", {})
        ranges = {
            symbol: (bounds["min_val"], bounds["max_val"])
            for symbol, bounds in described["range_constraints"].items()
        }
        return Program(
            self.file,
            graph,
            self.signature(module["signature"], graph),
            read_tree(call["in_spec"], fields),
            read_tree(call["out_spec"], fields),
            call.get("forward_arg_names") or [],
            ranges,
        )

    def graph(self, graph: Mapping[str, Any]) -> Graph:
        return Graph(
            [_name(argument) for argument in graph["inputs"]],
            [self.value(argument) for argument in graph["outputs"]],
            [self.node(node, i) for i, node in enumerate(graph["nodes"])],
            {name: _tensor(meta) for name, meta in graph["tensor_values"].items()},
        )

    def node(self, node: Mapping[str, Any], position: int) -> Node:
        inputs = tuple(
            Input(i["name"] or str(at), self.value(i["arg"]), i.get("kind") == 2)
            for at, i in enumerate(node["inputs"])
        )
        outputs = tuple(_output(argument) for argument in node["outputs"])
        # A higher-order operator returns a tuple also of one result.
        single = len(outputs) == 1 and node.get("is_hop_single_tensor_return") is not False
        return Node(
            node.get("name") or f"node {position}",
            node["target"].removeprefix("torch.ops."),
            inputs,
            (outputs[0] if single else outputs) if outputs else None,
            _place(node["metadata"]),
        )

    def value(self, argument: Mapping[str, Any]) -> Value:
        ((kind, value),) = argument.items()
        read = VALUES.get(kind)
        if kind == "as_graph":
            return self.graph(value["graph"])
        if kind == "as_scalar_type":
            return self.dtype(value, "an argument of an operator")
        if kind == "as_string_to_argument":
            return {key: self.value(item) for key, item in value.items()}
        if read is None:
            raise self.error(f"has an argument of the kind '{kind}', which is not supported")
        return read(value)

    def signature(self, described: Mapping[str, Any], graph: Graph) -> Signature:
        signature = Signature({}, {}, set(), {}, [], [], {})
        for name, spec in zip(graph.inputs, described["input_specs"], strict=True):
            ((kind, value),) = spec.items()
            match kind:
                case "parameter":
                    signature.parameters[name] = value["parameter_name"]
                case "buffer":
                    signature.buffers[name] = value["buffer_name"]
                    if not value["persistent"]:
                        signature.temporary.add(value["buffer_name"])
                case "tensor_constant":
                    signature.constants[name] = value["tensor_constant_name"]
                case "user_input":
                    ((of, _),) = value["arg"].items()
                    signature.leaves.append(Leaf(name, tensor=of == "as_tensor"))
                case "constant_input":
                    constant = self.value(value["value"])
                    signature.leaves.append(Leaf(value["name"], False, True, constant))
                case _:
                    raise self.error(f"has an input of the kind '{kind}', which is not supported")
        for position, spec in enumerate(described["output_specs"]):
            ((kind, value),) = spec.items()
            match kind:
                case "user_output":
                    signature.results.append(position)
                case "loss_output":
                    signature.results.append(position)
                case "buffer_mutation":
                    signature.changed[position] = value["buffer_name"]
                case "parameter_mutation":
                    signature.changed[position] = value["parameter_name"]
                case "user_input_mutation":
                    pass  # MLX's arrays do not change: the caller keeps its array
                case _:
                    raise self.error(f"has an output of the kind '{kind}', which is not supported")
        return signature


class _Damage:
    """Reports structures that are not torch's as damage of a record."""

    def __init__(self, reader: _Reader, record: str) -> None:
        self.reader = reader
        self.record = record

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, ExportError):
            return
        if isinstance(error, KeyError | TypeError | ValueError | IndexError | AttributeError):
            problem = f"{type(error).__name__}: {error}"
            raise self.reader.error(
                f"the record '{self.record}' is not as torch writes it: {problem}"
            ) from error


def _from_bytes(data: bytes, dtype: mx.Dtype) -> mx.array:
    stream = mx.cpu if dtype == mx.float64 else None
    numbers: Any = memoryview(data)  # MLX takes buffers, but its stubs do not say so
    return mx.array(numbers, mx.uint8).view(dtype, stream=stream)


def _symbolic(constant: str, read: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """Return a reader of a number that can be a symbol."""
    return lambda value: Ref(value["as_name"]) if "as_name" in value else read(value[constant])


def _optional(value: Mapping[str, Any]) -> Ref | None:
    return Ref(value["as_tensor"]["name"]) if "as_tensor" in value else None


def _as_is(value: Any) -> Any:
    return value


def _listed(read: Callable[[Any], Value]) -> Callable[[list[Any]], list[Value]]:
    return lambda values: [read(value) for value in values]


def _ref(value: Mapping[str, str]) -> Ref:
    return Ref(value["name"])


def _none(value: Any) -> None:
    return None


_int, _bool = _symbolic("as_int", _as_is), _symbolic("as_bool", _as_is)
_float = _symbolic("as_float", float)

# Readers of the kinds of arguments. Devices, layouts and memory formats have no meaning in MLX.
VALUES: dict[str, Callable[[Any], Value]] = {
    "as_none": _none,
    "as_tensor": _ref,
    "as_tensors": _listed(_ref),
    "as_nested_tensors": _listed(_listed(_ref)),
    "as_optional_tensor": _optional,
    "as_optional_tensors": _listed(_optional),
    "as_sym_int": _int,
    "as_sym_ints": _listed(_int),
    "as_sym_float": _float,
    "as_sym_floats": _listed(_float),
    "as_sym_bool": _bool,
    "as_sym_bools": _listed(_bool),
    "as_float": float,  # torch writes "Infinity" as a string
    "as_floats": _listed(float),
    "as_float_lists": _listed(_listed(float)),
    "as_complex": lambda value: complex(float(value["real"]), float(value["imag"])),
    "as_device": _none,
    "as_layout": _none,
    "as_memory_format": _none,
    **{
        f"as_{kind}": _as_is
        for kind in (
            *("int", "ints", "int_lists", "bool", "bools"),
            *("string", "strings", "operator"),
        )
    },
}


def _name(argument: Mapping[str, Any]) -> str:
    """Return the name of an input of the graph; constants have none."""
    ((_, value),) = argument.items()
    if not isinstance(value, Mapping):
        return ""
    return str(value.get("name") or value.get("as_name") or "")


def _output(argument: Mapping[str, Any]) -> Output:
    ((kind, value),) = argument.items()
    if kind == "as_none":
        return None
    if isinstance(value, list):
        return tuple(item.get("name") or item.get("as_name") for item in value)
    return _name(argument)


def _tensor(meta: Mapping[str, Any]) -> Tensor:
    return Tensor(
        DTYPES.get(meta["dtype"]),
        tuple(map(_size, meta["sizes"])),
        tuple(map(_size, meta["strides"])),
    )


def _size(size: Mapping[str, Any]) -> int | str:
    if "as_int" in size:
        return int(size["as_int"])
    text = str(size["as_expr"]["expr_str"])
    symbol = SYMBOL.fullmatch(text)
    return symbol[1] if symbol else text


def _place(metadata: Mapping[str, str]) -> Place:
    """Return the innermost module and frame that torch wrote."""
    # Modules are separated by semicolons: an identifier, the path and the class.
    module = metadata.get("nn_module_stack", "").rpartition(";")[2].split(",")
    frames = metadata.get("stack_trace", "").strip().splitlines()
    path = f"{module[1]} ({module[2]})" if len(module) == 3 and "_empty" not in module[0] else ""
    return Place(path.strip(), ": ".join(line.strip() for line in frames[-2:]))
