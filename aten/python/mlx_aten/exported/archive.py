"""Reads the archive of `torch.export.save` without torch.

A `.pt2` file is a zip archive: `models/NAME.json` is the program, `data/weights` and
`data/constants` have the bytes of the arrays and one JSON file each that describes them.
Everything that the file contains is checked here, so that the other modules can rely on it:
each problem raises an ExportError that names the file. The file is data from anybody: it decides
neither how much memory it gets beyond its own size, nor a name that is looked up in Python.
"""

from __future__ import annotations

import io
import json
import math
import re
import reprlib
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import IO, Any

import mlx.core as mx

from .program import (
    AGAIN,
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
INT64 = range(-(2**63), 2**63)
SIZES = range(2**31)  # of MLX's arrays
MAX_AXES = 64
MAX_PATH = 100  # names in the path of an array
# A record can be deflated, but not without a limit: bytes of all records, given those of the file.
MAX_RATIO, ALWAYS = 32, 2**24
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

# Operators of torch, and functions of Python for sizes, such as `_operator.add`.
TARGET = re.compile(r"\w+(\.\w+)+", re.ASCII)
# Operators with an effect are called with a token that orders them, as nodes are ordered anyway.
EFFECTS = "torch.ops.higher_order.with_effects"
OWN = "mlx."  # the functions that other modules put into a program; a file cannot name them

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
        self.records: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist():
            record = info.filename.partition("/")[2]
            if record in self.records and record:
                raise self.error(f"has two records '{_printable(record)}'")
            self.records[record] = info

    def read(self) -> Archive:
        self.check_sizes()
        self.check_layout()
        models = [r for r in self.records if r.startswith("models/") and r.endswith(".json")]
        if len(models) != 1:
            raise self.error(f"has {len(models)} programs, not one")
        name = models[0].removeprefix("models/").removesuffix(".json")
        described = self.json(models[0])
        with self.damage(models[0]):
            self.check_version(described)
            program = self.program(described)
            self.check_names(program.graph)
        weights = self.arrays("weights", name) | self.arrays("constants", name)
        with self.damage(models[0]):
            self.check_signature(program, weights)
        return Archive(program, weights)

    def error(self, text: str) -> ExportError:
        return ExportError(f"{self.file}: {text}")

    def damage(self, record: str) -> _Damage:
        return _Damage(self, record)

    def bytes(self, record: str) -> bytes:
        info = self.records.get(record)
        if info is None:
            raise self.error(f"has no record '{_printable(record)}'")
        try:
            with self.archive.open(info) as file:
                data = file.read(info.file_size)  # read() alone would inflate without a limit
        except DAMAGE as error:
            raise self.error(f"the record '{record}' is damaged: {error}") from error
        if len(data) != info.file_size:
            raise self.error(f"the record '{record}' is damaged: it ends early")
        return data

    def json(self, record: str) -> Any:
        try:
            return json.loads(self.bytes(record))
        except (ValueError, RecursionError) as error:
            raise self.error(f"the record '{record}' is damaged: {error}") from error

    def check_sizes(self) -> None:
        """Check that the records together are not far larger than the file."""
        infos = self.archive.infolist()
        if any(info.compress_type not in METHODS for info in infos):
            raise self.error("is compressed by another method than deflate; " + AGAIN)
        assert self.archive.fp is not None
        size = self.archive.fp.seek(0, io.SEEK_END)
        total = sum(info.file_size for info in infos)
        if total > ALWAYS + MAX_RATIO * size:
            raise self.error(
                f"has {size} bytes, of which {total} bytes would be unpacked, more than "
                f"{MAX_RATIO} times as many; {AGAIN}, which does not compress"
            )

    def check_layout(self) -> None:
        if OLD_PROGRAM in self.archive.namelist():
            self.records[OLD_PROGRAM] = self.archive.getinfo(OLD_PROGRAM)
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

    def check_names(self, graph: Graph) -> None:
        """Check that each value has one name, and each node reads only what was computed before.

        A node that reads itself would have no end.
        """
        known: set[str] = set()
        self.add_names(known, filter(None, graph.inputs))
        for node in graph.nodes:
            for name in node.reads():
                if name not in known:
                    raise self.error(
                        f"node '{node.name}' reads '{name}' before it is computed; {AGAIN}"
                    )
            self.add_names(known, node.outputs())
            for argument in node.inputs:
                if isinstance(argument.value, Graph):
                    self.check_names(argument.value)
        for name in refs_of(graph.outputs):
            if name not in known:
                raise self.error(f"the program returns '{name}', which is not computed")

    def add_names(self, known: set[str], names: Iterable[str]) -> None:
        for name in names:
            if name in known:
                raise self.error(f"has two values of the name '{name}'; {AGAIN}")
            known.add(name)

    def check_signature(self, program: Program, weights: Mapping[str, Weight]) -> None:
        """Check that arrays, arguments and results are those that the graph has."""
        signature, tensors = program.signature, program.graph.tensors
        for paths in (signature.parameters, signature.buffers, signature.constants):
            for name, path in paths.items():
                if path not in weights or name not in tensors:
                    raise self.error(f"has no array for '{path}'")
                array, expected = weights[path].array, tensors[name]
                if (array.dtype, array.shape) != (expected.dtype, expected.shape):
                    raise self.error(
                        f"'{path}' is {array.dtype} of the shape {array.shape}, but its program "
                        f"needs {expected.dtype} of the shape {expected.shape}"
                    )
        stored = {*signature.parameters.values(), *signature.buffers.values()}
        for path in signature.changed.values():
            if path not in stored:
                raise self.error(f"changes '{path}', which it does not have; {AGAIN}")
        for leaf in signature.leaves:
            if not leaf.constant and leaf.tensor != (leaf.name in tensors):
                raise self.error(f"has an argument '{leaf.name}' without a type")
        _, keyword = program.inputs.children
        if keyword.keys is None or not all(isinstance(key, str) for key in keyword.keys):
            raise self.error("has no names of its keyword arguments")
        given, returned = program.inputs.leaves, program.outputs.leaves
        if (given, returned) != (len(signature.leaves), len(signature.results)):
            raise self.error(f"has other arguments or results than its graph; {AGAIN}")

    # The arrays.

    def arrays(self, kind: str, name: str) -> dict[str, Weight]:
        folder = f"data/{kind}/"
        record = f"{folder}{name}_{kind}_config.json"
        if record not in self.records:
            found = [r for r in self.records if r.startswith(folder)]
            if found:
                raise self.error(f"has an older layout, without '{record}'; {AGAIN}")
            return {}
        records: dict[str, _Record] = {}
        known: dict[str, mx.array] = {}
        arrays = {}
        described = self.json(record)
        with self.damage(record):
            for path, payload in described["config"].items():
                if payload["use_pickle"]:
                    raise self.error(
                        f"'{path}' is not a plain tensor, but a pickled object; if it is "
                        "quantized, call torchao.utils.unwrap_tensor_subclass(model) before the "
                        "export"
                    )
                _path(path)
                source = folder + _text(payload["path_name"])
                meta = payload["tensor_meta"]
                if meta["layout"] != STRIDED:
                    raise self.error(f"'{path}' is sparse, which MLX lacks")
                dtype = self.dtype(meta["dtype"], f"'{path}'")
                if source not in records:
                    records[source] = _Record(self.bytes(source))
                place = f"{source} {json.dumps(meta, sort_keys=True)}"
                if place not in known:
                    known[place] = self.strided(records[source], dtype, meta, path)
                arrays[path] = Weight(known[place], place, bool(meta["requires_grad"]))
        return arrays

    def strided(
        self, record: _Record, dtype: mx.Dtype, meta: Mapping[str, Any], path: str
    ) -> mx.array:
        """Return an array of a record: the record, or a copy of some elements, so that it is freed.

        An array of more elements than the record has, by strides of 0 or less than the sizes, is a
        view of it, and so are further arrays after those that were copied.
        """
        shape = [_integer(size["as_int"]) for size in meta["sizes"]]
        strides = [_integer(stride["as_int"]) for stride in meta["strides"]]
        offset = _integer(meta["storage_offset"]["as_int"])
        if len(shape) > MAX_AXES or any(n not in SIZES for n in shape):
            raise self.error(f"'{path}' has the shape {reprlib.repr(shape)}, which MLX lacks")
        if min([offset, *strides]) < 0 or len(strides) != len(shape):
            raise self.error(
                f"'{path}' has the strides {reprlib.repr(strides)} from {offset}, not one of at "
                f"least 0 for each of {len(shape)} axes; {AGAIN}"
            )
        if 0 in shape:
            return mx.zeros(shape, dtype)
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        size, bytes = record.raw.size // dtype.size, math.prod(shape) * dtype.size
        if last >= size:
            raise self.error(f"'{path}' needs {last + 1} numbers, but its record has {size}")
        if bytes not in INT64:
            raise self.error(f"'{path}' has the shape {reprlib.repr(shape)}, which is too large")
        stream = mx.cpu if dtype == mx.float64 else None
        whole = record.raw.size == size * dtype.size
        flat = (record.raw if whole else record.raw[: size * dtype.size]).view(dtype, stream=stream)
        if bytes == record.raw.size and Tensor(dtype, tuple(shape), tuple(strides)).contiguous:
            array = flat.reshape(shape)
        else:
            array = mx.as_strided(flat, shape, strides, offset, stream=stream)
            if bytes <= record.left:
                record.left -= bytes
                array = mx.contiguous(array, stream=stream)
        mx.eval(array)
        return array

    def dtype(self, number: int, of: str) -> mx.Dtype:
        if _integer(number) not in DTYPES:
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
            symbol: (_bound(bounds["min_val"]), _bound(bounds["max_val"]))
            for symbol, bounds in described["range_constraints"].items()
        }
        return Program(
            self.file,
            graph,
            self.signature(module["signature"], graph),
            read_tree(call["in_spec"], fields),
            read_tree(call["out_spec"], fields),
            [_text(name) for name in call.get("forward_arg_names") or []],
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
        name = _identifier(node.get("name") or f"node_{position}")
        target, given, returned = _text(node["target"]), node["inputs"], node["outputs"]
        has_token = target == EFFECTS
        if has_token:  # (token, operator, ..) -> (token, ..); without results, none remain
            target, given = _text(given[1]["arg"]["as_operator"]), given[2:]
            returned = [argument for argument in returned[1:] if "as_none" not in argument]
        target = target.removeprefix("torch.ops.")
        if not TARGET.fullmatch(target) or target.startswith(OWN):
            raise self.error(f"node '{name}' has '{_printable(target)}', which torch lacks")
        inputs = tuple(
            Input(_identifier(i["name"] or f"_{at}"), self.value(i["arg"]), i.get("kind") == 2)
            for at, i in enumerate(given)
        )
        outputs = tuple(_output(argument) for argument in returned)
        # A higher-order operator returns a tuple also of one result.
        is_tuple = node.get("is_hop_single_tensor_return") is False and not has_token
        single = len(outputs) == 1 and not is_tuple
        return Node(
            name,
            target,
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
            return {_text(key): self.value(item) for key, item in value.items()}
        if read is None:
            raise self.error(
                f"has an argument of the kind '{_printable(kind)}', which is not supported"
            )
        return read(value)

    def signature(self, described: Mapping[str, Any], graph: Graph) -> Signature:
        signature = Signature({}, {}, set(), {}, [], [], {})
        tokens: set[str] = set()
        for name, spec in zip(graph.inputs, described["input_specs"], strict=True):
            ((kind, value),) = spec.items()
            match kind:
                case "parameter":
                    signature.parameters[name] = _path(value["parameter_name"])
                case "buffer":
                    signature.buffers[name] = _path(value["buffer_name"])
                    if not value["persistent"]:
                        signature.temporary.add(value["buffer_name"])
                case "tensor_constant":
                    signature.constants[name] = _path(value["tensor_constant_name"])
                case "user_input":
                    ((of, _),) = value["arg"].items()
                    signature.leaves.append(Leaf(name, tensor=of == "as_tensor"))
                case "constant_input":
                    constant = self.value(value["value"])
                    signature.leaves.append(Leaf(_text(value["name"]), False, True, constant))
                case "token":
                    tokens.add(name)
                case _:
                    raise self.error(
                        f"has an input of the kind '{_printable(kind)}', which is not supported"
                    )
        graph.inputs = [name for name in graph.inputs if name not in tokens]
        outputs = [*zip(graph.outputs, described["output_specs"], strict=True)]
        for position, (_, spec) in enumerate(outputs):
            ((kind, value),) = spec.items()
            match kind:
                case "user_output":
                    signature.results.append(position)
                case "loss_output":
                    signature.results.append(position)
                case "buffer_mutation":
                    signature.changed[position] = _path(value["buffer_name"])
                case "parameter_mutation":
                    signature.changed[position] = _path(value["parameter_name"])
                case "user_input_mutation":
                    pass  # MLX's arrays do not change: the caller keeps its array
                case "token":
                    graph.outputs[position] = None
                case _:
                    raise self.error(
                        f"has an output of the kind '{_printable(kind)}', which is not supported"
                    )
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
        if isinstance(error, Exception):
            problem = _printable(f"{type(error).__name__}: {error}")
            raise self.reader.error(
                f"the record '{self.record}' is not as torch writes it: {problem}; {AGAIN}"
            ) from error


class _Record:
    """The bytes of a record, and how many may be copied from it."""

    def __init__(self, data: bytes) -> None:
        numbers: Any = memoryview(data)  # MLX takes buffers, but its stubs do not say so
        self.raw = mx.array(numbers, mx.uint8)
        self.left = len(data)


# Checks of single values, whose errors `_Damage` reports.


def _expected(what: str, value: Any) -> ValueError:
    return ValueError(f"expected {what}, found {reprlib.repr(value)}")


def _integer(value: Any) -> int:
    if type(value) is not int or value not in INT64:
        raise _expected("an integer of 64 bits", value)
    return value


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise _expected("true or false", value)
    return value


def _number(value: Any) -> float:
    """Return a float; torch writes those that JSON lacks as strings."""
    if type(value) in (int, float) or value in ("Infinity", "-Infinity", "NaN"):
        return float(value)
    raise _expected("a number", value)


def _bound(value: Any) -> int | None:
    return None if value is None else _integer(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _expected("a string", value)
    return value


def _identifier(value: Any) -> str:
    """Return a name of the graph; torch writes Python code with these names."""
    if not _text(value).isidentifier():
        raise _expected("a name", value)
    return str(value)


def _path(value: Any) -> str:
    if not _text(value).isprintable() or value.count(".") >= MAX_PATH:
        raise _expected("the path of an array", value)
    return str(value)


def _printable(text: str, longest: int = 200) -> str:
    """Return text of the file for a message."""
    cut = text if len(text) <= longest else text[:longest] + "..."
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else " " for c in cut)


def _symbolic(constant: str, read: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """Return a reader of a number that can be a symbol."""
    return lambda value: _ref(value, "as_name") if "as_name" in value else read(value[constant])


def _optional(value: Mapping[str, Any]) -> Ref | None:
    return _ref(value["as_tensor"]) if "as_tensor" in value else None


def _listed(read: Callable[[Any], Value]) -> Callable[[list[Any]], list[Value]]:
    return lambda values: [read(value) for value in values]


def _ref(value: Mapping[str, Any], key: str = "name") -> Ref:
    return Ref(_identifier(value[key]))


def _none(value: Any) -> None:
    return None


_int, _bool = _symbolic("as_int", _integer), _symbolic("as_bool", _truth)
_float = _symbolic("as_float", _number)

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
    "as_int": _integer,
    "as_ints": _listed(_integer),
    "as_int_lists": _listed(_listed(_integer)),
    "as_float": _number,
    "as_floats": _listed(_number),
    "as_float_lists": _listed(_listed(_number)),
    "as_complex": lambda value: complex(_number(value["real"]), _number(value["imag"])),
    "as_bool": _truth,
    "as_bools": _listed(_truth),
    "as_string": _text,
    "as_strings": _listed(_text),
    "as_operator": _text,
    "as_device": _none,
    "as_layout": _none,
    "as_memory_format": _none,
}


def _name(argument: Mapping[str, Any]) -> str:
    """Return the name of an input of the graph; constants have none."""
    ((_, value),) = argument.items()
    return _named(value) or ""


def _output(argument: Mapping[str, Any]) -> Output:
    ((_, value),) = argument.items()
    return tuple(map(_named, value)) if isinstance(value, list) else _named(value)


def _named(value: Any) -> str | None:
    """Return the name of a value, or None for a constant."""
    if not isinstance(value, Mapping):
        return None
    value = value.get("as_tensor", value)  # of an optional value
    name = value.get("name") or value.get("as_name")
    return None if name is None else _identifier(name)


def _tensor(meta: Mapping[str, Any]) -> Tensor:
    sizes, strides = (tuple(map(_size, meta[key])) for key in ("sizes", "strides"))
    if len(sizes) != len(strides):
        raise _expected(f"{len(sizes)} strides", strides)
    return Tensor(DTYPES.get(_integer(meta["dtype"])), sizes, strides)


def _size(size: Mapping[str, Any]) -> int | str:
    if "as_int" in size:
        return _integer(size["as_int"])
    text = _text(size["as_expr"]["expr_str"])
    symbol = SYMBOL.fullmatch(text)
    return symbol[1] if symbol else text


def _place(metadata: Mapping[str, str]) -> Place:
    """Return the innermost module and frame that torch wrote."""
    # Modules are separated by semicolons: an identifier, the path and the class.
    module = metadata.get("nn_module_stack", "").rpartition(";")[2].split(",")
    lines = metadata.get("stack_trace", "").strip().splitlines()
    frames = [line for line in lines if line.strip(" ^~")]  # without marks below the code
    path = f"{module[1]} ({module[2]})" if len(module) == 3 and "_empty" not in module[0] else ""
    frame = ": ".join(line.strip() for line in frames[-2:])
    return Place(_printable(path.strip()), _printable(frame, 500))
