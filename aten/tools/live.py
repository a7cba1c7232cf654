"""Records the samples again with the torch that is installed, and compares mlx_aten with them.

    python aten/tools/live.py                            # `make aten` runs this
    python aten/tools/live.py --torch ~/torch/bin/python
    python aten/tools/live.py --torch ~/torch/bin/python --wide --seed 7 [NAME ...]

torch may be installed in this environment or in another one, whose Python is given with
``--torch``; recording also needs NumPy, SciPy, PyYAML and expecttest there. Without torch there is
nothing to compare with, and the recorded samples of aten/tests are all that is tested.

``--wide`` records far more calls, with other random numbers. It lists what differs, also in ways
that report.yaml explains, and is meant for finding faults.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ATEN = Path(__file__).resolve().parent.parent
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


def compare(names: list[str], wide: bool) -> int:
    """Compare all calls of the recorded names; print what differs, and return how many."""
    sys.path.insert(0, str(ATEN / "tests"))
    import mlx.core as mx
    import report
    from samples import load

    mx.set_default_device(mx.cpu)
    rows, _ = report.read()
    total = wrong = 0
    for name in names or report.names():
        calls = load(name)
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
    SAMPLES.mkdir(parents=True, exist_ok=True)
    for old in SAMPLES.glob("*.npz"):
        old.unlink()
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return 1
    os.environ["ATEN_SAMPLES"] = str(SAMPLES)
    wrong = compare(options.names, options.wide)
    return int(bool(wrong) and not options.wide)


if __name__ == "__main__":
    sys.exit(main())
