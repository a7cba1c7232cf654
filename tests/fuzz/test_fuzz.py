"""For any file, mlxgen reports located errors or generates C++ that compiles, and nothing else.

There are two sources of files: the sample's entries with mistakes (mutations.py), and random
entries that are mostly right (entries.py). Accepted files are compiled, many packages at a time.

``MLXGEN_FUZZ_SECONDS`` limits the time for compiling (60 seconds by default, 0 omits it),
``MLXGEN_FUZZ_SEED`` selects other files, and ``MLXGEN_FUZZ_EXAMPLES`` is the number of broken
files.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from fuzz.compiler import COMPILER, Compiler
from fuzz.entries import Entries, Project
from fuzz.mutations import Mutator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample import project
from yaml import SafeLoader, compose

from mlxgen.command import generate
from mlxgen.diagnostics import LINE_BREAK, Diagnostics
from mlxgen.read import sources
from mlxgen.read.cpp import Reader

SECONDS = float(os.environ.get("MLXGEN_FUZZ_SECONDS", "60"))
SEED = int(os.environ.get("MLXGEN_FUZZ_SEED", "0"))
EXAMPLES = int(os.environ.get("MLXGEN_FUZZ_EXAMPLES", "250"))
BUNDLE = 60  # packages in one translation unit


@pytest.fixture(autouse=True, scope="module")
def fast() -> Iterator[None]:
    """Compile templates and scan the sample's sources only once for all files."""
    patch = pytest.MonkeyPatch()
    sample = cache(Reader)

    def reader(folders, **options):
        make = sample if str(project.HERE) in os.path.abspath(folders[0]) else Reader
        return make(tuple(folders), **options)

    patch.setattr(sources, "Reader", reader)
    yield
    patch.undo()


def run(text: str, folder: Path, name: str) -> Diagnostics:
    """Generate a package from a YAML text; check that the diagnostics are useful."""
    yaml = folder / "mlx_ops.yaml"
    yaml.write_text(text, encoding="utf-8", newline="")
    output = folder / name
    diags = project.run(yaml, output, name)
    check(diags, folder)
    assert output.exists() == diags.ok
    if diags.ok:  # no entry is lost
        root = compose(text, Loader=SafeLoader)
        assert len(json.loads((output / "python" / "ops.json").read_text())["operators"]) == len(
            root.value if root else []
        )
    return diags


def check(diags: Diagnostics, folder: Path) -> None:
    """Check that every diagnostic describes its error in one line, with a location."""
    shown = diags.render_text()
    diags.to_json()
    for item in diags.sorted():
        assert item.message and "\n" not in item.message and len(item.message) < 1000
        assert item.message in shown or len(diags) > diags.limit
        path = Path(item.span.file)
        assert path.is_file(), item
        lines = LINE_BREAK.split(path.read_text(encoding="utf-8"))
        span = item.span
        assert 1 <= span.line <= span.end_line <= len(lines), item
        assert 1 <= span.column <= len(lines[span.line - 1]) + 1, item
        assert (span.line, span.column) <= (span.end_line, span.end_column), item


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=SEED == 0,
    suppress_health_check=list(HealthCheck),
)
@given(st.randoms(use_true_random=False))
def test_mistakes_are_reported(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("mistakes")
    run(Mutator(rng).file(), folder, "ops")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    if COMPILER is None or "g++" not in COMPILER:
        pytest.skip("needs g++")
    if SECONDS <= 0:
        pytest.skip("MLXGEN_FUZZ_SECONDS is 0")
    return Compiler(tmp_path_factory.mktemp("compiler"))


def mutants(seed: int, folder: Path, count: int) -> dict[Path, str]:
    """Return generated packages of accepted mutated files, with their text."""
    found: dict[Path, str] = {}
    texts = set()
    tries = 0
    while len(found) < count:
        text = Mutator(random.Random(f"{seed}-{tries}")).file()
        tries += 1
        name = f"m{tries}"
        place = folder / name
        place.mkdir(parents=True)
        if text not in texts and run(text, place, name).ok:
            found[place / name] = text
        texts.add(text)
    return found


def random_projects(seed: int, folder: Path, count: int) -> dict[Path, str]:
    """Return generated packages of accepted random entries, with their text."""
    found: dict[Path, str] = {}
    tries = 0
    while len(found) < count:
        tries += 1
        name = f"r{tries}"
        place = folder / name
        rng = random.Random(f"{seed}-{tries}")
        made = Entries(rng).project()
        if generated(made, place, tries, rng):
            found[place / name] = made.yaml
    return found


def generated(made: Project, place: Path, number: int, rng: random.Random) -> bool:
    """Return true if a random project is accepted, after its missing kernels were added."""
    name = f"r{number}"
    for _ in range(3):
        yaml = made.write(place, number)
        diags = Diagnostics()
        found = generate.generate(project.settings(yaml, name), place / name, diags)
        check(diags, place)
        if found is not None or not made.supply(diags, rng):
            return found is not None
    return False


@pytest.mark.extended
@pytest.mark.parametrize("make", [mutants, random_projects])
def test_what_is_accepted_compiles(
    make, compiler: Compiler, tmp_path_factory: pytest.TempPathFactory
) -> None:
    end = time.monotonic() + SECONDS / 2
    for turn in range(1000):
        folder = tmp_path_factory.mktemp("accepted")
        packages = make(SEED * 1000 + turn, folder, BUNDLE)
        csrc = [project.HERE / "csrc", *(path.parent / "csrc" for path in packages)]
        errors = compiler.errors(packages, csrc)
        failed = {path: text for path, text in packages.items() if path.name in errors}
        shown = "\n".join(
            f"---- {path}\n{text}\n" + "\n".join(errors[path.name][:8])
            for path, text in failed.items()
        )
        assert not errors, shown or errors
        shutil.rmtree(folder)
        if time.monotonic() > end:
            break
