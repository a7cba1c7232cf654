"""Records the samples again with the torch that is installed, and compares mlx_aten with them.

    python aten/tools/live.py                            # `make aten` runs this
    python aten/tools/live.py --torch ~/torch/bin/python
    python aten/tools/live.py --torch ~/torch/bin/python --replay [NAME ...]
    python aten/tools/live.py --torch ~/torch/bin/python --wide --seed 7 [NAME ...]

torch may be installed in this environment or in another one, whose Python is given with
``--torch``; recording also needs NumPy, SciPy, PyYAML and expecttest there. Without torch there is
nothing to compare with, and the recorded samples of aten/tests are all that is tested.

First, torch's results are compared with the recorded ones of aten/tests, which may be of another
release: what has changed in torch is printed before what differs in mlx_aten. ``--replay`` records
the calls of aten/tests only: all of them have recorded results, and OpInfo is not needed.

``--wide`` records far more calls, with other random numbers. It lists what differs, also in ways
that report.yaml explains, and is meant for finding faults.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np

ATEN = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ATEN / "tests"))
import report  # noqa: E402
from comparing import argument, compare, compare_gradient, to_mlx  # noqa: E402
from samples import SAMPLES as RECORDED  # noqa: E402
from samples import Array, Sample, load  # noqa: E402

SAMPLES = ATEN.parent / "build" / "aten-samples"
#: the releases of torch that mlx_aten is compared with: each has a file of its own formulas
RELEASES = sorted(path.stem for path in (ATEN / "releases").glob("*.yaml"))
#: calls that differ, which are printed for each operator
SHOWN = 3


def torch_of(python: str) -> str:
    """Return the version of the torch that a Python has, or ""."""
    command = [python, "-c", "import torch; print(torch.__version__)"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def whole(array: Array) -> mx.array:
    """Return a recorded result; a large one has zeros where nothing is recorded."""
    flat = np.zeros(math.prod(array.shape), array.data.dtype)
    flat[:: array.step] = array.data.ravel()
    return to_mlx(replace(array, data=flat.reshape(array.shape)))


def change(old: Sample, new: Sample) -> str:
    """Return how torch's results or gradients for a call differ from the recorded ones, or ""."""
    if old.raises or new.raises:
        if old.raises and new.raises:
            return ""
        return f"raises {': '.join(new.raises)}" if new.raises else "raises nothing"
    if old.gradients.keys() != new.gradients.keys():
        found, wanted = (", ".join(s.gradients) or "nothing" for s in (new, old))
        return f"gradients of {found} instead of {wanted}"
    if [a.dtype for a in old.out] != [a.dtype for a in new.out]:
        return f"dtypes {', '.join(a.dtype for a in new.out)}"
    args, kwargs = to_mlx(old.args), {key: to_mlx(value) for key, value in old.kwargs.items()}
    try:
        compare(replace(old, gradients={}), lambda *_, **__: [whole(array) for array in new.out])
        for key, found in new.gradients.items():
            array = argument(old, key, args, kwargs)
            compare_gradient(old, key, array, whole(found) if found else mx.zeros_like(array))
    except AssertionError as error:
        return str(error)
    return ""


def print_changes(names: list[str]) -> None:
    """Print the calls for which this torch has other results than the recorded ones."""
    same = 0
    changed: dict[str, list[str]] = {}
    for name in names:
        recorded = {sample.identity: sample for sample in load(name, RECORDED)}
        for new in load(name, SAMPLES):
            if old := recorded.get(new.identity):
                if found := change(old, new):
                    changed.setdefault(name, []).append(f"  {new.overload} ({new.origin}): {found}")
                else:
                    same += 1
    for name, found in changed.items():
        print(f"{name}: torch has other results than the recorded ones for {len(found)} calls")
        print(*found[:SHOWN], sep="\n")
    count = sum(map(len, changed.values()))
    print(f"{same + count} recorded calls, for {count} of which this torch has other results")


def compare_all(names: list[str], wide: bool) -> int:
    """Compare all calls of the recorded names; print what differs, and return how many."""
    rows, _ = report.read()
    total = wrong = 0
    for name in names:
        calls = load(name, SAMPLES)
        found = []
        for sample in calls:
            if wide or not rows[name].leaves_out(sample):
                total += 1
                problem = report.problem(name, sample)
                found += [f"  {sample.overload} ({sample.origin}): {problem}"] if problem else []
        wrong += len(found)
        if found:
            reason = f" ({rows[name].reason})" if rows[name].reason else ""
            print(f"{name}: {len(found)} of {len(calls)} calls differ{reason}")
            print(*found[:SHOWN], sep="\n")
    print(f"{total} calls compared, {wrong} of which differ")
    return wrong


def main() -> int:
    """Record and compare; return 1 if a call differs that should not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="operators; all by default")
    parser.add_argument("--torch", default="", help="a Python with torch; by default this one")
    parser.add_argument("--replay", action="store_true", help="the recorded calls only")
    parser.add_argument("--wide", action="store_true", help="far more calls")
    parser.add_argument("--seed", type=int, default=0, help="other random numbers, with --wide")
    options = parser.parse_args()
    wanted = " or ".join(RELEASES)
    python = options.torch or sys.executable
    version = torch_of(python)
    if ".".join(version.split(".")[:2]) not in RELEASES:
        has = f"has torch {version}" if version else "has no torch"
        print(f"{python} {has}: torch {wanted} is needed to compare live.")
        if options.torch:
            return 1
        print("Only the recorded samples were compared. `make aten TORCH=python` names another.")
        return 0
    print(f"Recording with torch {version}, which takes a few minutes", flush=True)
    command = [python, str(ATEN / "tools" / "record.py"), "--into", str(SAMPLES), *options.names]
    command += ["--wide", "--seed", str(options.seed)] if options.wide else []
    command += ["--replay"] if options.replay else []
    SAMPLES.mkdir(parents=True, exist_ok=True)
    for old in SAMPLES.glob("*.npz"):
        old.unlink()
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return 1
    mx.set_default_device(mx.cpu)
    print_changes(options.names or report.names())
    wrong = compare_all(options.names or report.names(), options.wide)
    return int(bool(wrong) and not options.wide)


if __name__ == "__main__":
    sys.exit(main())
