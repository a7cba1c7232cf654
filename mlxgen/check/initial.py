"""Values of outputs before a kernel runs: `init` and `donate`.

A donated array is not passed to the kernel: only the output has its values, so that a kernel cannot
notice whether the two share memory.
"""

from __future__ import annotations

from ..formula.compile import Want
from ..model.kinds import Kind
from ..model.op import Form, Initial, OutputRules
from .context import Context, Environment
from .dispatch import dtype_of


def initial_values(
    context: Context, env: Environment, output_rules: OutputRules
) -> tuple[Initial, ...]:
    """Return the initial values of outputs."""
    rules, axes = output_rules.dtypes, context.axes.of
    names, arrays = context.output_names, env.arguments.arrays
    plain = {p.name: p for p in arrays if p.is_plain}
    found: dict[str, Initial] = {}
    for key in ("init", "donate", "strided"):
        if getattr(context.raw, key) and (context.form is not Form.KERNELS or context.elementwise):
            context.error("without_shape", (key,), key=True, what=key)
            return ()
    for key, given in (("init", context.raw.init), ("donate", context.raw.donate)):
        if len(rules) == len(names):  # else an error of `dtype` was reported
            for of, outputs in context.known_in("unknown_output", given, names, key).items():
                path, text, number, donor = (key, of), given[of].strip(), None, None
                if key == "donate":
                    known = context.is_known("unknown_donor", text, plain, path, key=False)
                    donor = plain[text] if known else None
                elif text in {p.name for p in arrays}:
                    context.error("fill_with_array", path, name=text)
                else:
                    want = Want(Kind.FLOAT)
                    number = context.formula(path, text, want, env.names(), stream=False)
                for name in outputs if number or donor else ():
                    dtype = dtype_of(env.arguments, rules[names.index(name)])
                    if name in found:
                        context.error("twice", path, key=True, item=name)
                    elif donor and dtype != (donor.dtype or "T"):
                        context.error("donated_dtype", path, name=name, donor=donor.name)
                    elif donor and name in axes and axes[name] != axes.get(text, axes[name]):
                        context.error("donated_shape", path, name=name, donor=donor.name)
                    found[name] = Initial(names.index(name), number, donor)
    return tuple(found.values())
