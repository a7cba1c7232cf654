"""The cache of build products: items are complete or missing, also with interruptions and races."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from builds import output, run

from mlxgen.package import cache, compat, probe, toolchain

KEY = "0123abcd"


def build(made: Path) -> Iterable[str]:
    (made / "inside").mkdir()
    (made / "inside" / "file").write_bytes(b"text" * 100)
    return []


def no_build(made: Path) -> Iterable[str]:
    raise AssertionError("it is there already")


@pytest.fixture
def store(tmp_path: Path) -> cache.Cache:
    return cache.Cache(tmp_path / "cache")


def test_what_was_built_is_found(store: cache.Cache) -> None:
    assert store.find("kind", KEY) is None
    made = store.obtain("kind", KEY, "a file", build)
    assert (made / "inside" / "file").stat().st_size == 400
    assert store.obtain("kind", KEY, "a file", no_build) == made == store.find("kind", KEY)
    assert store.find("kind", "fe") is None and store.find("other", KEY) is None
    (entry,) = store.entries()
    assert entry[:4] == ("kind", KEY, "a file", 400) and time.time() - entry.used < 60


def damage(store: cache.Cache, how: str) -> None:
    (file,) = store.root.glob("kind/*/inside/file")
    manifest = store.root / "kind" / f"{KEY}.json"
    if how == "another byte":
        file.write_bytes(b"text" * 99 + b"tex!")
    elif how == "cut":
        file.write_bytes(b"text")
    elif how == "missing":
        file.unlink()
    elif how == "no folder":
        shutil.rmtree(file.parents[1])
    elif how == "empty manifest":
        manifest.write_bytes(b"")
    elif how == "foreign manifest":
        manifest.write_text('{"folder": "../..", "about": 1, "files": {}, "outside": {}}')
    elif how == "parent folder":
        manifest.write_text('{"folder": "..", "about": "", "files": {}, "outside": {}}')
    else:
        known = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**known, how: 1}))


@pytest.mark.parametrize(
    "how",
    """another byte,cut,missing,no folder,empty manifest,foreign manifest,parent folder,files,
    outside,folder""".replace("\n    ", "").split(","),
)
def test_what_is_damaged_is_built_again(how: str, store: cache.Cache) -> None:
    store.obtain("kind", KEY, "a file", build)
    damage(store, how)
    assert store.find("kind", KEY) is None
    made = store.obtain("kind", KEY, "a file", build)
    assert store.find("kind", KEY) == made
    assert [path for path in made.parent.iterdir() if path.is_dir()] == [made]


def test_a_cache_that_others_can_write_to_is_not_used(store: cache.Cache) -> None:
    """Its programs could be anybody's. The commands in the messages repair it."""
    store.obtain("kind", KEY, "", build)
    for folder in (store.root, store.root / "kind"):
        for mode in (0o777, 0o770, 0o1777):
            folder.chmod(mode)
            assert store.find("kind", KEY) is None
            with pytest.raises(PermissionError, match="other users can write to") as caught:
                store.obtain("kind", KEY, "", no_build)
            command = str(caught.value).split("`")[1]
            assert subprocess.run(command, shell=True).returncode == 0
            assert store.find("kind", KEY) is not None


def test_a_cache_of_another_user_is_not_used(
    store: cache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.obtain("kind", KEY, "", build)
    if os.getuid() == 0:
        os.chown(store.root, 4321, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 4321)
    assert store.find("kind", KEY) is None
    with pytest.raises(PermissionError, match="belongs to another user: set MLXGEN_CACHE"):
        store.obtain("kind", KEY, "", no_build)


def test_new_caches_are_private(store: cache.Cache) -> None:
    before = os.umask(0)
    try:
        made = store.obtain("kind", KEY, "", build)
    finally:
        os.umask(before)
    folders = (store.root, made.parent, made)
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}


def test_files_elsewhere(store: cache.Cache, tmp_path: Path) -> None:
    """A system header changes after an update."""
    header = tmp_path / "header.h"
    header.touch()
    store.obtain("kind", KEY, "", lambda made: [str(header)])
    assert store.find("kind", KEY) is not None
    os.utime(header, (1, 1))
    assert store.find("kind", KEY) is None


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_nothing_is_left_of_what_fails(error: type[BaseException], store: cache.Cache) -> None:
    def fail(made: Path) -> Iterable[str]:
        build(made)
        raise error

    with pytest.raises(error):
        store.obtain("kind", KEY, "", fail)
    assert [path.name for path in store.root.glob("kind/*")] == [f"{KEY}.lock"]
    store.obtain("kind", KEY, "", build)


def killed(root: Path) -> None:
    def kill(made: Path) -> Iterable[str]:
        build(made)
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    cache.Cache(root).obtain("kind", KEY, "", kill)


def test_nothing_is_left_of_who_is_killed(store: cache.Cache) -> None:
    process = multiprocessing.get_context("fork").Process(target=killed, args=(store.root,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(list(store.root.glob(f"kind/{KEY}-*"))) == 1
    assert store.find("kind", KEY) is None
    store.obtain("kind", "ff", "", build)  # the next build removes it
    assert not list(store.root.glob(f"kind/{KEY}-*"))


def test_two_at_once_build_once(store: cache.Cache) -> None:
    built = []

    def slow(made: Path) -> Iterable[str]:
        time.sleep(0.2)
        built.append(made)
        return build(made)

    found = []

    def obtain() -> None:
        found.append(cache.Cache(store.root).obtain("kind", KEY, "", slow))

    threads = [threading.Thread(target=obtain) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1 and found == built * 4


def test_without_locks_the_last_one_is_kept(
    store: cache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(file: object, how: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(cache.fcntl, "flock", no_locks)
    between = []

    def interrupted(made: Path) -> Iterable[str]:
        between.append(cache.Cache(store.root).obtain("kind", KEY, "", build))
        return build(made)

    last = store.obtain("kind", KEY, "", interrupted)
    assert store.find("kind", KEY) == last != between[0]


def test_of_too_much_the_last_used_stays(
    store: cache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 1000)
    for age, key in ((7200, "aa"), (9000, "bb"), (7000, "cc")):
        store.obtain("kind", key, "", build)
        os.utime(store.root / "kind" / f"{key}.json", (time.time() - age,) * 2)
    os.utime(store.root / "kind" / "aa.json")  # used now
    store.obtain("kind", "dd", "", build)
    assert sorted(entry.key for entry in store.entries()) == ["aa", "dd"]


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXGEN_CACHE", str(tmp_path / "cache"))
    store = cache.Cache(cache.folder())
    assert store.root == tmp_path / "cache"

    def mlxgen(*arguments: str) -> str:
        return output(run("-m", "mlxgen", "cache", *arguments, cwd=tmp_path))

    assert mlxgen() == f"{store.root}: 0 B\n"
    store.obtain("kind", KEY, "a file", build)
    store.obtain("other", KEY, "another file", build)
    (store.root / "metal").mkdir()
    (store.root / "metal" / "kernel.so").write_bytes(b"x" * 2000)
    text = mlxgen()
    assert re.search(r"^kind +400 B +0 minutes ago +a file$", text, re.MULTILINE)
    assert re.search(r"^metal +2 kB .*Metal kernels", text, re.MULTILINE)
    assert text.endswith(f"{store.root}: 3 kB\n")
    assert [entry["size"] for entry in json.loads(mlxgen("kind", "--format", "json"))] == [400]
    assert mlxgen("--clear", "kind") == f"{store.root}: 400 B removed\n"
    assert store.find("kind", KEY) is None and store.find("other", KEY) is not None
    done = run("-m", "mlxgen", "cache", "--clear", "runtime", cwd=tmp_path)
    assert done.returncode == 2 and "no 'runtime' is kept: there is metal, other" in re.sub(
        r"\W*\n\W*", " ", done.stderr
    )
    mlxgen("--clear")
    assert not store.entries() and not (store.root / "metal").exists()


# --------------------------------------------------------------------------- the common parts


@pytest.fixture
def obtained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Obtain the shared toolchain, with compilers that only record their calls."""
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    log = tmp_path / "log"
    compiler.write_text(
        f"""#!/bin/sh
[ -e {tmp_path}/broken ] && {{ echo 'error: no space left' >&2; exit 1; }}
case "$*" in --version) echo 'g++ (fake) 1.2'; exit ;; esac
echo "$@" >> {log}
while [ $# -gt 1 ]; do
  case "$1" in -o) echo made > "$2" ;; -MF) echo 'x.o: /bin/sh' > "$2" ;; esac
  shift
done
"""
    )
    compiler.chmod(0o755)
    machine = probe.to_cmake(probe.of_machine(compat.find()))
    commands = {
        "ops": [str(compiler), "-O3", "-isystem", "{mlx}/include"],
        "ext": [str(compiler), "-Os", "-isystem", "{nanobind}/include"],
        "nanobind": [str(compiler), "-O2"],
        "link": [str(compiler), "-shared"],
        "ar": ["true"],
    }

    def ask(self: toolchain._Builder, made: Path) -> Iterable[str]:
        flags = self.given.get("CMAKE_CXX_FLAGS", "").split()
        told = {name: [*words, *flags] for name, words in commands.items()}
        (made / "commands.json").write_text(json.dumps(told))
        (made / "known.cmake").touch()
        return []

    monkeypatch.setattr(toolchain._Builder, "_ask", ask)
    monkeypatch.setenv("MLXGEN_CACHE", str(tmp_path / "cache"))

    def obtain(
        flags: str = "", precompile: bool = True, **more: str
    ) -> tuple[toolchain.Common, list[str], int]:
        """Return the parts, the messages, and the number of compiler calls."""
        log.write_text("")
        said: list[str] = []
        given = {"CMAKE_CXX_COMPILER": str(compiler), "CMAKE_CXX_FLAGS": flags, **more}
        local = tmp_path / "local"
        common = toolchain.obtain(
            compat.find(), machine, given, toolchain.tools, local, said.append, precompile
        )
        return common, said, len(log.read_text().splitlines())

    return obtain


def test_parts_are_built_once_for_the_same_flags(obtained, monkeypatch) -> None:
    first, said, calls = obtained()
    assert calls == 4 and len(said) == 3  # two headers, nanobind, the runtime
    assert obtained() == (first, [], 0)
    other, _, calls = obtained("-fsanitize=address")
    assert calls == 4 and other.headers == first.headers
    assert all(a != b for a, b in zip(first[1:], other[1:], strict=True))
    emulated, _, calls = obtained(MLXGEN_EMULATE_METAL="ON")
    assert calls == 2 and emulated.nanobind is None and emulated.headers != first.headers
    assert obtained() == (first, [], 0)
    monkeypatch.setenv("CPATH", "/elsewhere")
    again, said, _ = obtained()
    assert again.known != first.known and not said  # CMake ran again, with the same result


def test_precompiled_headers_can_wait(obtained) -> None:
    first, said, calls = obtained(precompile=False)
    assert calls == 2 and len(said) == 2 and first.precompiled == first.headers
    later, said, calls = obtained()
    assert calls == 2 and len(said) == 1 and later.precompiled != first.headers
    assert (later.runtime, later.nanobind) == (first.runtime, first.nanobind)
    assert sorted(path.name for path in later.precompiled.glob("*.gch")) == [
        "ext.h.gch",
        "ops.h.gch",
    ]
    assert obtained(precompile=False) == (later, [], 0)


def test_a_source_of_the_runtime_makes_the_runtime_anew(obtained, tmp_path, monkeypatch) -> None:
    first, _, _ = obtained()
    copy = tmp_path / "runtime"
    shutil.copytree(toolchain.RUNTIME, copy)
    monkeypatch.setattr(toolchain, "RUNTIME", copy)
    assert obtained()[0] == first  # the location does not matter
    (copy / "src" / "op.cpp").write_text("// other")
    other, _, calls = obtained()
    assert calls == 1 and other.runtime != first.runtime
    assert (other.headers, other.nanobind) == (first.headers, first.nanobind)
    (copy / "include" / "mlxgen" / "op.h").write_text("// other")
    other, _, calls = obtained()
    assert calls == 3 and other.headers != first.headers and other.nanobind == first.nanobind


def test_a_cache_that_cannot_be_used(obtained, tmp_path) -> None:
    (tmp_path / "cache").write_text("a file, where a folder has to be")
    common, said, calls = obtained()
    assert calls == 4 and common.headers.is_relative_to(tmp_path / "local")
    assert re.match(r"the cache .*cache is not used: .*Not a directory", said[0])
    assert obtained()[2] == 0  # the second build in the same place


def test_a_compiler_that_fails(obtained, tmp_path) -> None:
    obtained("-g")
    (tmp_path / "broken").touch()
    with pytest.raises(toolchain.BuildError, match=r"(?s)g\+\+ failed:.*no space left"):
        obtained("-O0")
    (tmp_path / "broken").unlink()
    assert obtained("-O0")[2] == 4  # nothing was cached by mistake


def test_commands() -> None:
    line = (
        ": && /usr/bin/c++ -O3 -shared -Wl,-s -Wl,-rpath,/there -o _ext.so a.o lib.a /l/libmlx.so "
        "&& : && python compat.py"
    )
    assert toolchain._linking(line.partition(" && python")[0]) == [
        "/usr/bin/c++",
        "-O3",
        "-shared",
        "-Wl,-s",
    ]
    assert toolchain._prerequisites("a.o: b.h \\\n c\\ d.h\n") == ["b.h", "c d.h"]


def test_tools_that_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        toolchain.BuildError, match=r"cmake is missing: run .*python -m pip install 'cmake'"
    ):
        toolchain.tools()
