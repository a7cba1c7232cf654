"""Files of torch.export are data: damaged and forged ones raise errors and run no code."""

from __future__ import annotations

import json
import math
import random
import struct
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

mx = pytest.importorskip("mlx.core")
mlx_aten = pytest.importorskip("mlx_aten", reason="mlx_aten is not built")

from archives import FOLDER, MODEL, WEIGHTS, edited, places, set_at  # noqa: E402
from mlx_aten.exported import arrays  # noqa: E402
from test_exported import Recorded  # noqa: E402

from_exported, ExportError = mlx_aten.from_exported, mlx_aten.ExportError


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"archive_format": None}, "not an archive of torch.export.save: no record 'archive_fo"),
        ({"archive_format": b"pt3"}, "has the format 'pt3' with version '0'; expected 'pt2' and"),
        ({"archive_version": b"1"}, "has the format 'pt2' with version '1'"),
        ({"byteorder": b"big"}, "written on a machine with another byte order"),
        ({MODEL: None}, "has 0 programs, not one"),
        ({MODEL: b"{"}, "the record 'models/model.json' is damaged"),
        ({MODEL: b"[]"}, "'models/model.json' is not as torch writes it"),
        (
            {MODEL: set_at("schema_version", {"major": 9, "minor": 1})},
            "has schema version 9.1, from torch 2.13.0.*; expected 8.x",
        ),
        (
            {MODEL: set_at("graph_module", "graph", "nodes", 3, "inputs", 0, "arg", {"as_x": 1})},
            "has an argument of the kind 'as_x'",
        ),
        (
            {MODEL: set_at("graph_module", "graph", "nodes", 3, "inputs", 0, "arg", "as_tensor",
                           "name", "nobody")},
            "reads 'nobody' before it is computed",
        ),
        ({WEIGHTS: None}, "has an older layout, without 'data/weights/model_weights_config.json'"),
        ({WEIGHTS: set_at("config", "scale", "use_pickle", True)}, "'scale' is not a plain tensor"),
        (
            {WEIGHTS: set_at("config", "scale", "tensor_meta", "dtype", 11)},
            "'scale' has the dtype complex128, which MLX lacks",
        ),
        (
            {WEIGHTS: set_at("config", "scale", "tensor_meta", "sizes", 0, {"as_int": 40})},
            "'scale' needs 40 numbers, but its record has 4",
        ),
        ({WEIGHTS: set_at("config", {})}, "has no array for 'scale'"),
        ({"data/weights/weight_0": None}, "has no record 'data/weights/weight_0'"),
    ],
)  # fmt: skip
def test_unusable_archives(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = edited(tmp_path / "other.pt2", changes)
    with pytest.raises(ExportError, match=message) as caught:
        from_exported(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "text.pt2").write_text("not a program")
    with pytest.raises(ExportError, match=r"not an archive of torch.export.save, or damaged"):
        from_exported(tmp_path / "text.pt2")
    with zipfile.ZipFile(tmp_path / "old.pt2", "w") as old:
        old.writestr("serialized_exported_program.json", json.dumps({"torch_version": "2.6.0"}))
    with pytest.raises(ExportError, match=r"has the older layout of torch 2\.6\.0; load it with"):
        from_exported(tmp_path / "old.pt2")
    with pytest.raises(FileNotFoundError):
        from_exported(tmp_path / "none.pt2")
    with pytest.raises(TypeError, match="takes a path, a file or an ExportedProgram, not int"):
        from_exported(3)


def test_damaged_bytes_raise_export_errors(tmp_path: Path) -> None:
    whole = (FOLDER / "changes.pt2").read_bytes()
    draw = random.Random(0)
    path = tmp_path / "damaged.pt2"
    for _ in range(300):
        content = bytearray(whole)
        if draw.random() < 0.2:
            del content[draw.randrange(len(content)) :]
        else:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        try:
            from_exported(path)
        except ExportError as error:
            assert str(error).startswith(f"{path}: ")


# Forged programs of one array `x` of two numbers.

X = {"as_tensor": {"name": "x"}}
META = {"dtype": 7, "sizes": [{"as_int": 2}], "strides": [{"as_int": 1}], "layout": 7}
META |= {"requires_grad": False, "storage_offset": {"as_int": 0}}
LEAF = {"type": None, "context": None, "children_spec": []}


def tree(kind: str, children: list[Any], context: Any = "null") -> dict[str, Any]:
    return {"type": f"builtins.{kind}", "context": context, "children_spec": children}


def read(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def node(target: str, *args: Any, out: str = "y", **named: Any) -> dict[str, Any]:
    inputs = [{"name": f"a{i}", "arg": arg, "kind": 1} for i, arg in enumerate(args)]
    inputs += [{"name": name, "arg": arg, "kind": 2} for name, arg in named.items()]
    return {"name": out, "target": target, "inputs": inputs, "outputs": [read(out)], "metadata": {}}


def forged(path: Path, *nodes: Any, record: bytes = b"\0" * 8, **weights: Any) -> Path:
    """Write a program that returns the result of its last node; `weights` are META of arrays."""
    results = [*nodes[-1]["outputs"]] if nodes else [X]
    given = [(f"p_{i}", path) for i, path in enumerate(weights)]
    specs: list[Any] = [
        {"parameter": {"arg": {"name": name}, "parameter_name": path}} for name, path in given
    ]
    types = {result["as_tensor"]["name"]: META for each in nodes for result in each["outputs"]}
    graph = {
        "inputs": [*(read(name) for name, _ in given), X],
        "outputs": results,
        "nodes": list(nodes),
        "tensor_values": {"x": META} | {name: weights[path] for name, path in given} | types,
    }
    arguments = tree("tuple", [tree("tuple", [LEAF]), tree("dict", [], "[]")])
    call = {
        "in_spec": json.dumps([1, arguments]),
        "out_spec": json.dumps([1, tree("tuple", [LEAF] * len(results))]),
        "forward_arg_names": ["x"],
    }
    module = {
        "graph": graph,
        "signature": {
            "input_specs": [*specs, {"user_input": {"arg": X}}],
            "output_specs": [{"user_output": {"arg": result}} for result in results],
        },
        "module_call_graph": [{"fqn": "", "signature": call}],
    }
    model = {
        "graph_module": module,
        "schema_version": {"major": 8, "minor": 0},
        "range_constraints": {},
    }
    config = {
        name: {"path_name": "weight_0", "use_pickle": False, "tensor_meta": META | meta}
        for name, meta in weights.items()
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/archive_format", "pt2")
        archive.writestr("archive/archive_version", "0")
        archive.writestr(f"archive/{MODEL}", json.dumps(model))
        archive.writestr(f"archive/{WEIGHTS}", json.dumps({"config": config}))
        archive.writestr("archive/data/weights/weight_0", record)
    return path


def text(value: str) -> dict[str, Any]:
    return {"as_string": value}


def number(value: Any) -> dict[str, Any]:
    return {"as_int": value}


def test_a_forged_program_runs(tmp_path: Path) -> None:
    """The forged programs below fail by what they contain, not by their form."""
    model = from_exported(
        forged(tmp_path / "a.pt2", node("torch.ops.aten.add.Tensor", X, X, alpha=number(2)))
    )
    assert model(mx.array([1.0, 2.0]))[0].tolist() == [3, 6]
    assert model(x=mx.array([1.0, 2.0]))[0].tolist() == [3, 6]


NO_OPERATORS = """aten.__getattribute__.default aten.__class__.default aten.__dict__.default
    aten.from_exported.default aten.ExportedModel.default aten.exported.default aten.Any.default
    aten.install_methods.default aten.dispatch_table.default aten.add_inplace.Tensor
    builtins.eval builtins.getattr os.system torch.load _operator.attrgetter _operator.methodcaller
    _operator.setitem _operator.call math.factorial mlxops.swiglu mlx_aten.add.Tensor""".split()  # noqa: SIM905


@pytest.mark.parametrize("target", NO_OPERATORS)
def test_only_operators_have_functions(tmp_path: Path, target: str) -> None:
    path = forged(tmp_path / "a.pt2", node(target, X))
    with pytest.raises(ExportError, match=rf"needs 1 operator that mlx_aten lacks:\n  {target}, "):
        from_exported(path)


def test_all_operators_of_the_package_are_in_the_table() -> None:
    from mlx_aten.exported.operators import find

    rows = json.loads((Path(mlx_aten.__file__).parent / "ops.json").read_text())["operators"]
    names = {row["python_name"] for row in rows if "internal" not in row["tags"]}
    inside = {row["python_name"] for row in rows} - names
    assert len(names) > 500 and all(find(name, "") for name in names)
    assert len(inside) > 50 and not any(find(name, "") for name in inside)


def test_a_program_cannot_evaluate_code(tmp_path: Path) -> None:
    """Each function of a chain from an operator to `eval` is rejected by itself, too."""
    proof = tmp_path / "proof"
    code = text(f"open({str(proof)!r}, 'w')")
    chain = [
        node("torch.ops.aten.__getattribute__.default", text("__builtins__"), out="a"),
        node("_operator.getitem", read("a"), text("eval"), out="b"),
        node("torch.sym_max", {"as_strings": [code["as_string"]]}, key=read("b")),
    ]
    for given in (chain, [node("_operator.getitem", X, text("eval"))]):
        with pytest.raises(ExportError):
            from_exported(forged(tmp_path / "a.pt2", *given))(mx.zeros(2))
    assert not proof.exists()


NOTHING: dict[str, Any] = {"inputs": [], "outputs": [], "nodes": [], "tensor_values": {}}
GRAPH = {"name": "g", "graph": NOTHING}
UNUSABLE = {
    "out": (node("aten.add.Tensor", X, X, stream=number(0)), "argument 'stream', which"),
    "name": (node("aten.full.default", X, __class__=X), "argument '__class__', which"),
    "unknown": (node("aten.add.Tensor", X, X, other2=X), "in node 'y'"),
    "graph": (node("aten.add.Tensor", X, {"as_graph": GRAPH}), "which is not a value"),
    "table": (
        node("aten.add.Tensor", X, {"as_string_to_argument": {"a": X}}),
        "argument 'a1', which is not a value",
    ),
    "own": (node("mlx.as_strided", X, number(1)), "has 'mlx.as_strided', which torch lacks"),
    "own too": (node("torch.ops.mlx.write_view", X), "has 'mlx.write_view', which torch lacks"),
    "target": (node("aten;import os", X), "has 'aten;import os', which torch lacks"),
    "control": (node("aten.\x1b[31m.default", X), r"has 'aten. \[31m.default', which torch lacks"),
    "item": (node("_operator.getitem", X, number(0)), "expected a list and an index"),
    "text": (node("_operator.mul", text("ab"), number(2**40)), "expected numbers, found str, int"),
    "list": (node("_operator.mul", {"as_ints": [1]}, number(2**40)), "found list"),
    "format": (node("_operator.mod", text("%99999999999d"), number(1)), "expected numbers"),
    "power": (node("_operator.pow", number(10), number(10**18)), "not a number of 64 bits"),
    "large": (node("_operator.mul", number(2**62), number(4)), "not a number of 64 bits"),
    "complex": (node("_operator.pow", number(-2), {"as_float": 0.5}), "not a number of 64 bits"),
    "itself": (node("aten.alias.default", read("y")), "'y' before it is computed"),
    "twice": (node("aten.alias.default", X, out="x"), "two values of the name 'x'"),
    "results": (
        node("aten.add.Tensor", X, X) | {"outputs": [read("y"), read("z")]},
        "does not return 2 results",
    ),
    "integer": (node("aten.mul.Scalar", X, number(2**64)), "an integer of 64 bits, found"),
    "bool": (node("aten.mul.Scalar", X, number(True)), "of 64 bits, found True"),
    "float": (node("aten.mul.Scalar", X, {"as_float": "9" * 9}), "expected a number, f"),
    "string": (node("aten.mul.Scalar", X, {"as_string": 5}), "expected a string, found 5"),
    "dtype": (node("aten.to.dtype", X, {"as_scalar_type": 99}), "dtype number 99"),
    "word": (node("aten.alias.default", read("x y")), "expected a name, found 'x y'"),
    "list beyond 32 bits": (
        node("aten.hsplit.array", X, {"as_ints": [0, 2**40]}),
        "the argument 'a1', a list with an integer beyond 32 bits",
    ),
    "diagonal": (
        node("aten.diagonal_scatter.default", X, X, number(0), number(0), number(0)),
        "from aten.diagonal_scatter.default in node 'y'",
    ),
    "window": (
        node("aten.unfold.default", X, number(0), number(2**20), number(1)),
        "size 1048576 and step 1 leave an axis of size 2",
    ),
    "backwards": (node("aten.unfold.default", X, number(0), number(1), number(-2)), "step -2"),
    "parts": (
        node("aten.tensor_split.sections", X, number(2**31 - 1)),
        "the number of parts must be from 1 to 65536, not 2147483647",
    ),
    "strides": (
        node("aten.as_strided.default", X, {"as_ints": [2]}, {"as_ints": [10**9]}, number(0)),
        r"leave an array of 2 elements, from mlx.as_strided in node 'y'",
    ),
    "back": (
        node("aten.as_strided.default", X, {"as_ints": [2]}, {"as_ints": [-1]}, number(1)),
        "are not valid, from mlx.as_strided",
    ),
}  # fmt: skip


def subprogram(*nodes: dict[str, Any], inputs: tuple[str, ...] = ("i",)) -> dict[str, Any]:
    """Return a call of a subprogram that returns the result of its last node."""
    given = program(*nodes, inputs=inputs)
    return node("torch.ops.higher_order.wrap_with_set_grad_enabled", {"as_bool": True}, given, X)


def program(*nodes: dict[str, Any], inputs: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a program as an argument, which returns the result of its last node."""
    graph = {
        "inputs": [read(name) for name in inputs],
        "outputs": nodes[-1]["outputs"],
        "nodes": list(nodes),
        "tensor_values": {},
    }
    return {"as_graph": {"name": "g", "graph": graph}}


NEGATED = node("aten.neg.default", read("i"), out="j")
SYSTEM = program(node("os.system", text("ls"), out="j"))
UNUSABLE |= {
    "sub: itself": (subprogram(node("aten.neg.default", read("j"), out="j")), "reads 'j' before"),
    "sub: outside": (subprogram(node("aten.neg.default", read("x"), out="j")), "reads 'x' before"),
    "sub: twice": (subprogram(NEGATED, NEGATED), "two values of the name 'j'"),
    "sub: inputs": (subprogram(NEGATED, inputs=("i", "k")), "in node 'y' has other arguments"),
    "sub: name": (subprogram(node("os.system", read("i"), out="j")), r"lacks:\n  os.system"),
    "sub: text": (
        node("higher_order.wrap_with_set_grad_enabled", {"as_bool": True}, text("eval"), X),
        "in node 'y' has other arguments",
    ),
    "sub: cond": (
        node("higher_order.cond", {"as_bool": True}, {"as_graph": GRAPH}, {"as_graph": GRAPH}),
        "does not return 1 results, from higher_order.cond in node 'y'",
    ),
    "sub: cond of an operator": (
        node("higher_order.cond", {"as_bool": True}, SYSTEM, SYSTEM),
        r"lacks:\n  os.system, 2 times",
    ),
    "sub: condition": (
        node("higher_order.while_loop", X, {"as_graph": GRAPH}, {"as_tensors": []}),
        "from higher_order.while_loop in node 'y'",
    ),
}


def test_elements_by_strides(tmp_path: Path) -> None:
    """The decomposition of fill_diagonal_ writes by strides."""
    total = node("aten.sum.dim_IntList", X, {"as_ints": [0]}, {"as_bool": True}, out="s")
    one = {"as_ints": [1]}
    write = node("aten.as_strided_scatter.default", X, read("s"), one, one, number(1))
    model = from_exported(forged(tmp_path / "a.pt2", total, write))
    (result,) = model(mx.array([3.0, 4.0]))
    assert result.tolist() == [3, 7]


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_nodes(tmp_path: Path, name: str) -> None:
    """Errors name the file, and the node if there is one; some are known only in a call."""
    forgery, message = UNUSABLE[name]
    path = forged(tmp_path / "a.pt2", forgery)
    with pytest.raises(ExportError, match=message) as caught:
        from_exported(path)(mx.zeros(2))
    assert str(caught.value).startswith(f"{path}: ")


def test_a_subprogram_runs(tmp_path: Path) -> None:
    model = from_exported(forged(tmp_path / "a.pt2", subprogram(NEGATED)))
    assert model(mx.array([1.0, 2.0]))[0].tolist() == [-1, -2]


def test_arithmetic_with_sizes_has_bounded_numbers(tmp_path: Path) -> None:
    """A product of itself, 60 times, would have 2**60 digits."""
    names = [f"n{i}" for i in range(61)]
    nodes = [node("_operator.add", number(7), number(3), out="n0")]
    for a, b in pairwise(names):
        size = {"as_sym_int": {"as_name": a}}
        nodes.append(node("_operator.mul", size, size, out=b))
    path = forged(tmp_path / "a.pt2", *nodes)
    with pytest.raises(ExportError, match=r"not a number of 64 bits, from _operator\.mul"):
        from_exported(path)(mx.zeros(2))


def test_computed_lists_have_32_bits(tmp_path: Path) -> None:
    nodes = [
        node("_operator.mul", number(2**31), number(2**31), out="n"),
        node("aten.roll.default", X, {"as_sym_ints": [{"as_name": "n"}]}, {"as_ints": [0]}),
    ]
    model = from_exported(forged(tmp_path / "a.pt2", *nodes))
    with pytest.raises(ExportError, match=r"beyond 32 bits, from aten\.roll\.default in node 'y'"):
        model(mx.zeros(2))


@pytest.mark.parametrize("length", [1, 3])
def test_a_diagonal_of_another_length(length: int) -> None:
    with pytest.raises(ValueError, match=r"src must have the shape of the diagonal, \(2,\)"):
        arrays.diagonal_scatter(mx.zeros((2, 2)), mx.zeros(length))


def test_an_output_size_beyond_the_array() -> None:
    repeated = arrays.repeat_interleave(mx.array([5, 6]), mx.array([1, 2]), output_size=2**12)
    assert mx.all(repeated[1:] == 6)


def test_long_chains_of_views_end(tmp_path: Path) -> None:
    """Errors, not crashes, for what would exceed Python's stack."""
    names = ["x", *(f"v{i}" for i in range(3000))]
    views = [node("torch.ops.aten.alias.default", read(a), out=b) for a, b in pairwise(names)]
    path = forged(tmp_path / "a.pt2", *views, node("torch.ops.aten.relu_.default", read("v2999")))
    with pytest.raises(ExportError, match=r"relu_.default in node 'y' .*RecursionError"):
        from_exported(path)


def test_an_argument_out_is_not_changed_in_place(tmp_path: Path) -> None:
    path = forged(tmp_path / "a.pt2", node("torch.ops.aten.add.out", X, X, out="y"))
    with zipfile.ZipFile(path) as archive:
        model = archive.read(f"archive/{MODEL}").decode()
    del archive
    model = model.replace('"kind": 1}]', '"kind": 1}, {"name": "out", "arg": %s, "kind": 2}]')
    other = edited_forgery(path, {MODEL: model % json.dumps(X)})
    x = mx.array([1.0, 2.0])
    assert from_exported(other)(x)[0].tolist() == [2, 4]
    assert x.tolist() == [1, 2]


def edited_forgery(path: Path, records: dict[str, str]) -> Path:
    """Replace records of a forged archive."""
    with zipfile.ZipFile(path) as old:
        content = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in content.items():
            new.writestr(name, records.get(name.partition("/")[2], data))
    return path


# Arrays and records.


def meta(sizes: list[Any], strides: list[Any], offset: Any = 0, dtype: Any = 7) -> dict[str, Any]:
    return META | {
        "sizes": [{"as_int": n} for n in sizes],
        "strides": [{"as_int": n} for n in strides],
        "storage_offset": {"as_int": offset},
        "dtype": dtype,
    }


@pytest.mark.parametrize(
    "given, message",
    [
        (meta([2, 2], [-4, 1]), r"has the strides \[-4, 1\] from 0, not one of at least 0"),
        (meta([2], [-(10**9)]), "has the strides"),
        (meta([2], [1], -1), "has the strides .* from -1"),
        (meta([2], [1, 1]), "has the strides"),
        (meta([2], [10**9]), "'w' needs 1000000001 numbers, but its record has 2"),
        (meta([2], [1], 2**62), "numbers, but its record has 2"),
        (meta([3], [1]), "'w' needs 3 numbers, but its record has 2"),
        (meta([2], [1], dtype=8), "'w' needs 2 numbers, but its record has 1"),
        (meta([-2], [1]), r"has the shape \[-2\], which MLX lacks"),
        (meta([2**31], [0]), "has the shape .* which MLX lacks"),
        (meta([1] * 65, [0] * 65), "has the shape .* which MLX lacks"),
        (meta([2**31 - 1] * 3, [0] * 3), "has the shape .* which is too large"),
        (meta([2**64], [0]), "expected an integer of 64 bits"),
        (meta(["2"], [1]), "expected an integer of 64 bits, found '2'"),
        (meta([True], [1]), "expected an integer of 64 bits, found True"),
        (meta([2.0], [1]), "expected an integer of 64 bits, found 2.0"),
        (meta([math.nan], [1]), "expected an integer of 64 bits, found nan"),
        (meta([math.inf], [1]), "expected an integer of 64 bits, found inf"),
        (meta([None], [1]), "expected an integer of 64 bits, found None"),
        (meta([2], [1], dtype=99), "'w' has the dtype number 99, which MLX lacks"),
        (meta([2], [1], dtype="float32"), "expected an integer of 64 bits, found 'float32'"),
        (meta([2], [1], dtype=True), "expected an integer of 64 bits, found True"),
    ],
)
def test_arrays_outside_of_their_records(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    """The program, whose node reads the array, is not what fails."""
    path = forged(tmp_path / "a.pt2", w=META)
    config = {"w": {"path_name": "weight_0", "use_pickle": False, "tensor_meta": given}}
    edited_forgery(path, {WEIGHTS: json.dumps({"config": config})})
    with pytest.raises(ExportError, match=message) as caught:
        from_exported(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_repeated_and_overlapping_arrays_take_no_memory(tmp_path: Path) -> None:
    """Arrays of 8 TB, 64 MB and 800 arrays of one record: views of the record."""
    record = struct.pack("8f", *range(8)) + b"\0" * 2**20
    n = len(record) // 4
    shapes = {"huge": meta([10**6, 10**6, 2], [0, 0, 1]), "overlap": meta([4096, 4096], [1, 2])}
    for i in range(800):
        shapes[f"copy_{i}"] = meta([n - i], [1], i)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    path = forged(tmp_path / "a.pt2", node("aten.add.Tensor", X, X), record=record, **shapes)
    model = from_exported(path)
    assert mx.get_peak_memory() - before < 5 * len(record)
    assert model.huge.shape == (10**6, 10**6, 2)
    assert model.huge[999, 7].tolist() == [0, 1]
    assert model.overlap[:2, :2].tolist() == [[0, 2], [1, 3]]
    assert model.copy_3[:2].tolist() == [3, 4]


def test_arrays_of_another_type_than_the_programs(tmp_path: Path) -> None:
    path = forged(tmp_path / "a.pt2", node("aten.add.Tensor", X, X), w=META)
    config = {
        "w": {"path_name": "weight_0", "use_pickle": False, "tensor_meta": meta([1, 2], [2, 1])}
    }
    edited_forgery(path, {WEIGHTS: json.dumps({"config": config})})
    with pytest.raises(ExportError, match=r"'w' is .*float32 of the shape \(1, 2\), but its progr"):
        from_exported(path)


@pytest.mark.parametrize(
    "names, message",
    [
        (["layers.999999.w"], "numbers of modules leave too many gaps"),
        (["9" * 5000], "numbers of modules leave too many gaps"),
        ([".".join(["9999"] * 20)], "numbers of modules leave too many gaps"),
        (["a", "a.b"], "the array 'a.b' is inside of 'a'"),
        ([".".join("a" * 200)], "expected the path of an array"),
        (["a\nb"], "expected the path of an array"),
    ],
)
def test_paths_of_arrays(tmp_path: Path, names: list[str], message: str) -> None:
    path = with_arrays(tmp_path / "a.pt2", names)
    with pytest.raises(ExportError, match=message):
        from_exported(path)


def with_arrays(path: Path, names: list[str]) -> Path:
    """Write a program with different arrays of these names; equal ones would be tied."""
    arrays = {name: meta([1], [1], i) for i, name in enumerate(names)}
    return forged(path, record=bytes(4 * len(names)), **arrays)


def test_unusual_paths_are_names(tmp_path: Path) -> None:
    """Digits that are no numbers of a list, and names of Python."""
    names = ["²", "a.01", "a.1", "__class__", "update", "b.0", "b.2"]
    model = from_exported(with_arrays(tmp_path / "a.pt2", names))
    assert set(model) == {"²", "a", "class__", "update", "b"}
    assert len(model.b) == 3 and model(mx.zeros(2))


def test_zip_bombs(tmp_path: Path) -> None:
    """Memory is bounded by the size of the file, for honest and wrong sizes."""
    path = forged(tmp_path / "a.pt2", w=META)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/weights/weight_1", bytes(2**25))
    with pytest.raises(ExportError, match="bytes would be unpacked, more than 32 times as many"):
        from_exported(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("archive/data/weights/weight_2", b"")
    with pytest.raises(ExportError, match="by another method than deflate"):
        from_exported(path)
    lying = edited_bomb(tmp_path / "b.pt2")
    with pytest.raises(ExportError, match=r"the record 'models/model\.json' is damaged"):
        from_exported(lying)


def edited_bomb(path: Path) -> Path:
    """Write an archive whose program unpacks to more bytes than the directory says."""
    forged(path)
    with zipfile.ZipFile(path) as old:
        content = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in content.items():
            new.writestr(name, data if not name.endswith(MODEL) else bytes(2**24 - 5000))
        new.getinfo(f"archive/{MODEL}").file_size = 100
    return path


def test_two_records_of_one_name(tmp_path: Path) -> None:
    path = forged(tmp_path / "a.pt2", w=META)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data/weights/weight_0", b"\1" * 8)
    with pytest.raises(ExportError, match="has two records 'data/weights/weight_0'"):
        from_exported(path)


@pytest.mark.parametrize("content", [b"[" * 10**6, b'{"a":' * 10**5, b"9" * 10**5, b"\xff", b"1"])
def test_extreme_json(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ExportError, match=r"'models/model.json' is (damaged|not as torch writes)"):
        from_exported(edited(tmp_path / "a.pt2", {MODEL: content}))


def nested(depth: int) -> str:
    spec: Any = LEAF
    for _ in range(depth):
        spec = tree("tuple", [spec])
    return json.dumps([1, spec])


CALL = ("graph_module", "module_call_graph", 0, "signature")
FIELDS = ("graph_module", "treespec_namedtuple_fields", "programs.Pair", "field_names")


@pytest.mark.parametrize(
    "change, message",
    [
        (set_at(*CALL, "out_spec", nested(150)), "nested more than 100 levels deep"),
        (set_at(*CALL, "out_spec", json.dumps([1, tree("tuple", [])])), "other arguments or res"),
        (set_at(*CALL, "in_spec", json.dumps([1, LEAF])), "not as torch writes it"),
        (set_at(*CALL, "in_spec", json.dumps([2, LEAF])), "version 2 of torch's pytrees, not 1"),
        (set_at(*CALL, "forward_arg_names", [1]), "expected a string, found 1"),
        (set_at(*FIELDS, ["class", "b"]), "not as torch writes it"),
        (set_at(*FIELDS, ["a"]), "2 items have the keys 'a'"),
        (set_at(*FIELDS, ["a", "a"]), "not as torch writes it"),
        (set_at(*FIELDS, ["a", "__import__('os')"]), "not as torch writes it"),
        (set_at("range_constraints", "s77", {"min_val": "3", "max_val": None}), "an integer of 64"),
        (set_at("graph_module", "graph", "outputs", []), "not as torch writes it"),
        (set_at("graph_module", "signature", "output_specs", []), "not as torch writes it"),
        (
            set_at("graph_module", "signature", "output_specs", 0,
                   {"buffer_mutation": {"arg": {"name": "add"}, "buffer_name": "nothing"}}),
            "changes 'nothing', which it does not have",
        ),
    ],
)  # fmt: skip
def test_wrong_structures(tmp_path: Path, change: Any, message: str) -> None:
    path = edited(tmp_path / "a.pt2", {MODEL: change})
    with pytest.raises(ExportError, match=message) as caught:
        from_exported(path)
    assert str(caught.value).startswith(f"{path}: ")


HOSTILE: list[Any] = [
    *(None, 7, -1, 0, 2**31, 2**63, 10**30, 1.5, math.nan, math.inf, True, "text", "", "x", "eval"),
    *([], {}, [[]], X, {"as_int": -1}, {"as_none": True}, {"as_ints": [0, -1, 2**62]}),
    *({"as_string": "eval"}, {"as_name": "x"}, {"as_graph": GRAPH}, {"as_scalar_type": 7}),
]


def values_of(described: Any) -> Iterator[Any]:
    """Yield all values in a JSON structure."""
    yield described
    if isinstance(described, dict | list):
        for value in described.values() if isinstance(described, dict) else described:
            yield from values_of(value)


def hostile(value: Any, draw: random.Random, others: list[Any]) -> Any:
    """Return another value for a place: of the same type, of another one, or from elsewhere."""
    choice = draw.random()
    if choice < 0.4 and type(value) is int:
        return draw.choice([0, -1, 1, 2, 100, 2**31 - 1, 2**40, -(2**31)])
    if choice < 0.4 and isinstance(value, list) and value:
        return draw.choice([value[1:], value * 2, value[::-1], value[:1]])
    if choice < 0.7:
        return draw.choice(HOSTILE)
    return draw.choice(others)


@pytest.mark.parametrize(
    "source, seed",
    [("changes", 0), ("layers", 1), ("parts", 2), ("torchao_weights", 3), ("frozen", 4)],
)
def test_damaged_structures_raise_export_errors(tmp_path: Path, source: str, seed: int) -> None:
    """A program with other values anywhere runs, or raises an ExportError; other errors are about
    the arguments, which may not suit it any more. The results are not computed: their sizes may be
    anything."""
    with zipfile.ZipFile(FOLDER / f"{source}.pt2") as archive:
        texts = {r: archive.read(f"archive/{r}").decode() for r in (MODEL, WEIGHTS)}
    everywhere = [(r, place) for r in texts for place in places(json.loads(texts[r]))]
    others = [value for text in texts.values() for value in values_of(json.loads(text))]
    args, kwargs = Recorded(source).arguments(from_exported(FOLDER / f"{source}.pt2"))
    draw = random.Random(seed)
    for _ in range(60):
        changed = {r: json.loads(content) for r, content in texts.items()}
        for record, place in draw.sample(everywhere, draw.choice([1, 1, 2])):
            inside = changed[record]
            try:
                *path, last = place
                for key in path:
                    inside = inside[key]
                inside[last] = hostile(inside[last], draw, others)
            except (KeyError, IndexError, TypeError):
                continue  # the first change removed the place of the second one
        content = {r: json.dumps(described) for r, described in changed.items()}
        path = edited(tmp_path / "damaged.pt2", content, source)  # type: ignore[assignment]
        try:
            model = from_exported(path)
            try:
                model(*args, **kwargs)
            except (TypeError, ValueError) as error:
                if not str(error).startswith(("argument ", "the program ")):
                    raise
        except ExportError as error:
            assert str(error).startswith(f"{path}: ")
