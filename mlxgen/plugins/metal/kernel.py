"""The function that replaces `mx.fast.metal_kernel`, and the callable that it returns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import index
from typing import Any, NoReturn, SupportsFloat, SupportsIndex

import mlx.core as mx

from ...check.metal import POSITIONS, SCALAR_POSITIONS
from ...emulator.translate import MAX_BUFFERS
from ...read.names import KEYWORDS
from . import build
from .pretend import device_type, is_gpu
from .signature import Declared, Form, form_of, function, type_name

MAX_THREADS = 1024  # of a threadgroup
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NAMES = "use letters, digits and _, no keyword of C++ or Metal, and each name once"
_GROUP = "at most 1024 threads in all, at least 1 along each axis"

# Whether elements that no thread writes are an error; None outside of the emulation.
Mode = Callable[[], bool | None]


def as_array(value: Any) -> mx.array:
    """Return an input as an array; MLX accepts arrays of other libraries, but no lists.

    Raises:
        TypeError: If it is neither an array nor a number.
        ValueError: If MLX cannot convert it.
    """
    if isinstance(value, list | tuple):
        raise TypeError
    return value if isinstance(value, mx.array) else mx.array(value)


def _wrong_name(names: Sequence[Any]) -> Any:
    """Return the first name that Metal rejects or that occurs twice; None if there is none."""
    taken = KEYWORDS | POSITIONS | SCALAR_POSITIONS
    return next(
        (
            name
            for i, name in enumerate(names)
            if not isinstance(name, str)
            or not _NAME.fullmatch(name)
            or name in taken
            or name in names[:i]
        ),
        None,
    )


def _integers(sizes: Sequence[SupportsIndex]) -> list[int]:
    """Return sizes as integers; none if one of them is another object, as a float."""
    try:
        return [*map(index, sizes)]
    except TypeError:
        return []


class EmulatedKernel:
    """A kernel that runs on the CPU; it is called like the result of `mx.fast.metal_kernel`."""

    def __init__(
        self,
        declared: Declared,
        original: Callable[..., Any],
        mode: Mode,
    ) -> None:
        self.declared = declared
        self.original = original  # of MLX, for calls outside of the emulation
        self.mode = mode
        self.compiled: dict[tuple[Form, bool], Any] = {}
        self.infos = declared.infos

    def __repr__(self) -> str:
        return f"<emulated metal_kernel {self.declared.name}>"

    def __call__(
        self,
        *,
        inputs: Sequence[Any] | None = None,
        output_shapes: Sequence[Sequence[int]] | None = None,
        output_dtypes: Sequence[mx.Dtype] | None = None,
        grid: Sequence[int] | None = None,
        threadgroup: Sequence[int] | None = None,
        template: Sequence[tuple[str, bool | int | mx.Dtype]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
    ) -> list[mx.array]:
        """Return the outputs of the kernel, which runs when they are evaluated.

        Args:
            inputs: An array or a number for each input name.
            output_shapes: The shape of each output.
            output_dtypes: The dtype of each output.
            grid: The number of threads along three axes.
            threadgroup: The number of threads of a threadgroup along three axes.
            template: The names and values of template parameters.
            init_value: The initial value of all outputs.
            verbose: Print the Metal function, as MLX does.
            stream: The stream; `mx.gpu` means the default stream of the CPU.

        Raises:
            TypeError: For an argument that is missing or of the wrong type.
            ValueError: For an argument with a wrong value.
            EmulationError: If the kernel does not compile. Evaluating the outputs raises it if the
                kernel does something invalid.
        """
        given = {
            "inputs": inputs,
            "output_shapes": output_shapes,
            "output_dtypes": output_dtypes,
            "grid": grid,
            "threadgroup": threadgroup,
        }
        whole = self.mode()
        if whole is None:
            more = {"template": template, "init_value": init_value}
            return list(self.original(**given, **more, verbose=verbose, stream=stream))
        for name, value in given.items():
            if not isinstance(value, list | tuple):
                got = "missing" if value is None else f"a {type(value).__name__}"
                self._fail(TypeError, f"`{name}` is {got}", f"give a list or tuple as `{name}=`")
        assert inputs is not None and output_shapes is not None and output_dtypes is not None
        assert grid is not None and threadgroup is not None
        declared = self.declared
        self._count("inputs", inputs, declared.inputs)
        self._count("output_shapes", output_shapes, declared.outputs)
        self._count("output_dtypes", output_dtypes, declared.outputs)
        arrays = [self._array(n, v) for n, v in zip(declared.inputs, inputs, strict=True)]
        for name, dtype in zip(declared.outputs, output_dtypes, strict=True):
            self._metal_type(f"output '{name}'", dtype)
        shapes = [
            self._shape(name, shape)
            for name, shape in zip(declared.outputs, output_shapes, strict=True)
        ]
        grid = self._sizes("grid", grid, "at least 1 thread along each axis")
        threadgroup = self._sizes("threadgroup", threadgroup, _GROUP)
        if prod(threadgroup) > MAX_THREADS:
            sizes = " x ".join(map(str, threadgroup))
            message = f"a threadgroup of {sizes} threads exceeds the maximum of {MAX_THREADS}"
            self._fail(ValueError, message, "use a smaller threadgroup")
        if init_value is not None:
            if not isinstance(init_value, SupportsFloat):
                kind = type(init_value).__name__
                self._fail(TypeError, f"`init_value` is a {kind}", "give a number")
            init_value = float(init_value)
        form = form_of(arrays, output_dtypes, self._template(template))
        if verbose:
            text = function(declared, form, lines=False)
            print(f"Generated source code for `{declared.name}`:\n```\n{text}\n```")
        call = self.compiled.get((form, whole)) or self._compile(form, whole)
        group = [min(t, g) for t, g in zip(threadgroup, grid, strict=True)]
        place = self._stream(stream)
        contiguous = declared.contiguous
        outputs: list[mx.array] = call(
            *(arrays, shapes, output_dtypes, grid, group, self.infos, contiguous, init_value, place)
        )
        return outputs

    def _compile(self, form: Form, whole: bool) -> Any:
        source = function(self.declared, form, lines=True)
        made = build.loaded(self.declared.name, source, whole)
        return self.compiled.setdefault((form, whole), made)

    # -- arguments

    def _fail(self, kind: type[Exception], message: str, help: str) -> NoReturn:
        raise kind(f"[metal_kernel] {self.declared.name}: {message}\nhelp: {help}") from None

    def _count(self, name: str, given: Sequence[Any], names: Sequence[str]) -> None:
        if len(given) != len(names):
            message = f"expected {len(names)} `{name}`, found {len(given)}"
            self._fail(ValueError, message, f"give one for each of {', '.join(names)}")

    def _array(self, name: str, value: Any) -> mx.array:
        try:
            array = as_array(value)
        except (TypeError, ValueError):
            message = f"input '{name}' is a {type(value).__name__}"
            self._fail(TypeError, message, "give an array or a number")
        self._metal_type(f"input '{name}'", array.dtype)
        return array

    def _metal_type(self, what: str, dtype: Any) -> None:
        if not isinstance(dtype, mx.Dtype):
            kind = type(dtype).__name__
            self._fail(TypeError, f"{what} has a {kind} as dtype", "give a dtype, as mx.float32")
        if dtype == mx.float64:
            self._fail(ValueError, f"{what} is float64, which Metal lacks", "use mx.float32")

    def _shape(self, name: str, shape: Any) -> list[int]:
        right = isinstance(shape, list | tuple) and all(isinstance(n, SupportsIndex) for n in shape)
        if not right or not all(0 <= index(n) < 2**31 for n in shape):
            message = f"the shape of output '{name}' is {shape!r}"
            self._fail(ValueError if right else TypeError, message, "give sizes of 0 to 2147483647")
        return [*map(index, shape)]

    def _sizes(self, name: str, sizes: Sequence[int], help: str) -> list[int]:
        found = _integers(sizes)
        if len(found) != 3 or not all(1 <= n < 2**31 for n in found):
            kind = ValueError if len(found) == 3 else TypeError
            message = f"`{name}` must be three sizes, but is {tuple(sizes)}"
            self._fail(kind, message, f"give {help}")
        return found

    def _template(self, given: Any) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = []
        for item in given or ():
            if not isinstance(item, list | tuple) or len(item) != 2:
                message = f"the template argument {item!r} is not a pair"
                self._fail(TypeError, message, 'give pairs of a name and a value: [("T", dtype)]')
            name, value = item
            names = [*self.declared.inputs, *self.declared.outputs, *(n for n, *_ in found), name]
            if _wrong_name(names) is not None:
                message = f"the template argument {name!r} is not a valid name"
                self._fail(ValueError, message, _NAMES)
            if isinstance(value, bool):
                found.append((name, "bool", str(int(value))))
            elif isinstance(value, int):
                if not 0 <= value < 2**31:
                    message = f"the template argument {name} is {value}"
                    help = "MLX accepts 0 to 2147483647 here: pass other numbers as an input"
                    self._fail(ValueError, message, help)
                found.append((name, "int", str(value)))
            elif isinstance(value, mx.Dtype):
                self._metal_type(f"the template argument {name}", value)
                found.append((name, "typename", type_name(value)))
            else:
                message = f"the template argument {name} is {value!r}"
                self._fail(ValueError, message, "give an int, a bool or a dtype")
        return found

    def _stream(self, stream: Any) -> Any:
        if device_type(stream) is not None and not is_gpu(stream):
            message = "Only supports the GPU, but the stream is that of the CPU"
            self._fail(ValueError, message, "leave out `stream`, or give mx.gpu")
        on_gpu = stream is None or is_gpu(getattr(stream, "device", stream))
        return mx.Device(mx.cpu) if on_gpu else stream


def metal_kernel(original: Callable[..., Any], mode: Mode) -> Callable[..., EmulatedKernel]:
    """Return the function that replaces MLX's `mx.fast.metal_kernel`."""

    def emulated(
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
        atomic_outputs: bool = False,
        compile_options: Mapping[str, str] | None = None,
    ) -> EmulatedKernel:
        """Return a Metal kernel that runs on the CPU; see `mx.fast.metal_kernel`.

        Raises:
            TypeError: For an argument of the wrong type.
            ValueError: For an argument that MLX or Metal do not accept.
        """
        made = original(
            name,
            list(input_names),
            list(output_names),
            source,
            header,
            ensure_row_contiguous,
            atomic_outputs,
            compile_options,
        )
        names = (*input_names, *output_names)
        valid = re.fullmatch(r"\w+", name, re.ASCII)
        wrong = _wrong_name(names) if valid else name
        if wrong is not None:
            message = f"[metal_kernel] {name}: '{wrong}' is not a valid name"
            raise ValueError(f"{message}\nhelp: {_NAMES}")
        declared = Declared(
            *(name, tuple(input_names), tuple(output_names), source, header),
            *(ensure_row_contiguous, atomic_outputs),
        )
        buffers = len(names) + sum(map(sum, declared.infos))
        if buffers > MAX_BUFFERS:
            message = f"[metal_kernel] {name}: {buffers} buffers, but Metal has {MAX_BUFFERS}"
            raise ValueError(f"{message}\nhelp: join arrays, or pass sizes as template arguments")
        return EmulatedKernel(declared, made, mode)

    return emulated
