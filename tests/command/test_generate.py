"""Effects of `mlxgen generate` on the output folder, for valid and invalid entries."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sample import project

from mlxgen.command import generate
from mlxgen.diagnostics import Diagnostics

CALLER = """
inline mlx::core::array caller(const mlx::core::array& x, mlx::core::StreamOrDevice s) {
  return ops::calls(x, 2, s);
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the sample project."""
    shutil.copytree(project.HERE, tmp_path / "project")
    return tmp_path / "project"


def run(folder: Path, **options: bool) -> tuple[generate.Result | None, list[str]]:
    """Generate into ``folder/out``; return the result and the codes of the diagnostics."""
    diags = Diagnostics()
    settings = project.settings(folder / "mlx_ops.yaml")
    result = generate.generate(settings, folder / "out", diags, **options)
    return result, [item.code for item in diags.sorted()]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return bytes and time of every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in files
    }


def edit(folder: Path, old: str, new: str, file: str = "mlx_ops.yaml") -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))


def test_errors_leave_the_output_untouched(folder: Path) -> None:
    run(folder)
    before = contents(folder / "out")
    edit(folder, "composite: cap * tanh(x / cap)", "composite: cap * tanhh(x / cap)")
    result, codes = run(folder)
    assert (result, codes) == (None, ["MG304"])
    assert contents(folder / "out") == before


def test_errors_in_kernels_leave_the_output_untouched(folder: Path) -> None:
    run(folder)
    before = contents(folder / "out")
    edit(folder, "T scale(T x, T a) {", "T scale(T a, T x {", "csrc/kernels.h")
    assert run(folder)[0] is None
    assert contents(folder / "out") == before


def test_nothing_is_written_the_second_time(folder: Path) -> None:
    assert run(folder)[0].changes.written
    before = contents(folder / "out")
    assert run(folder)[0].changes is None
    assert contents(folder / "out") == before


def test_a_file_that_was_changed_is_written_again(folder: Path) -> None:
    run(folder)
    before = (folder / "out/src/scale.cpp").read_bytes()
    (folder / "out/src/scale.cpp").write_bytes(before + b"// mine\n")
    assert run(folder)[0].changes.written == ("src/scale.cpp",)
    assert (folder / "out/src/scale.cpp").read_bytes() == before


def test_files_of_others_stay(folder: Path) -> None:
    mine = folder / "out/src/scale.cpp"
    mine.parent.mkdir(parents=True)
    mine.write_text("// mine\n")
    assert run(folder) == (None, ["MG607"])  # the first run in a folder of sources
    assert [*contents(folder / "out")] == ["src/scale.cpp"]
    mine.unlink()
    run(folder)
    mine.write_text("// mine\n")
    before = contents(folder / "out")
    assert run(folder) == run(folder, check=True) == (None, ["MG607"])
    assert contents(folder / "out") == before
    edit(folder, "scale", "other")  # so that it is stale
    edit(folder, "scale", "other", "csrc/kernels.h")
    edit(folder, "scale", "other", "csrc/functions.cpp")
    edit(folder, "scale", "other", "kernels/metal/kernels.metal")
    result, codes = run(folder)
    assert codes == [] and "src/other.cpp" in result.changes.written
    assert mine.read_text() == "// mine\n" and not (folder / "out/include/ops/scale.h").exists()


def test_a_link_is_not_followed(folder: Path) -> None:
    run(folder)
    (folder / "out/src/scale.cpp").unlink()
    (folder / "out/src/scale.cpp").symlink_to(folder / "mine.cpp")
    assert run(folder) == (None, ["MG607"])
    assert not (folder / "mine.cpp").exists()


@pytest.mark.parametrize("output", [".", "csrc", "csrc/new", "kernels", "..", "tests"])
def test_no_output_among_sources(folder: Path, output: str) -> None:
    before = contents(folder.parent)
    diags = Diagnostics()
    settings = project.settings(folder / "mlx_ops.yaml")
    assert generate.generate(settings, folder / output, diags) is None
    assert "the output folder cannot contain or be inside" in diags.render_text()
    assert contents(folder.parent) == before and not (folder / output / "new").exists()


def test_only_what_changed_is_written(folder: Path) -> None:
    run(folder)
    before = contents(folder / "out")
    edit(folder, "composite: cap * tanh(x / cap)", "composite: tanh(x / cap) * cap")
    changes = run(folder)[0].changes
    assert changes.removed == ()
    assert set(changes.written) == {"src/softcap.cpp", "python/ops.json"}
    after = contents(folder / "out")
    assert {name for name in after if after[name] != before[name]} == {
        *changes.written,
        ".mlxgen.json",
    }


def test_selected_entries_and_the_ones_that_they_call(folder: Path) -> None:
    """By formulas, and by hand-written headers, also through other headers."""
    (folder / "csrc" / "inner.h").write_text('#pragma once\n#include "ops/calls.h"\n')
    (folder / "csrc" / "outer.h").write_text('#include "inner.h"\n' + CALLER)
    with (folder / "mlx_ops.yaml").open("a") as file:
        file.write('\n- signature: "caller(x: array) -> array"\n  cpp: caller\n')
    assert run(folder, include=["caller"])[1] == []
    made = {path.stem for path in (folder / "out" / "include" / "ops").glob("*.h")}
    assert made - {"dispatch", "export", "ops"} == {"caller", "calls", "helper", "softcap"}


def test_stale_files_are_removed_and_others_stay(folder: Path) -> None:
    run(folder)
    (folder / "out/src/mine.cpp").write_text("// not mlxgen's\n")
    (folder / "out/notes").mkdir()
    (folder / "out/notes/mine.txt").write_text("not mlxgen's\n")
    edit(folder, "  module: nn.activations\n", "")
    edit(folder, "scale2", "scale3")
    edit(folder, "scale2", "scale3", "csrc/kernels.h")
    edit(folder, "scale2", "scale3", "csrc/functions.cpp")
    changes = run(folder)[0].changes
    assert "src/scale2.cpp" in changes.removed and "src/scale3.cpp" in changes.written
    files = contents(folder / "out")
    assert not [name for name in files if "scale2" in name or "activations" in name]
    assert not (folder / "out/python/nn/activations").exists()
    assert "src/mine.cpp" in files and "notes/mine.txt" in files


def test_check_writes_nothing(folder: Path) -> None:
    assert run(folder, check=True)[0].changes.written
    assert not (folder / "out").exists()
    run(folder)
    before = contents(folder / "out")
    edit(folder, "composite: cap * tanh(x / cap)", "composite: tanh(x / cap) * cap")
    assert run(folder, check=True)[0].changes.written
    assert contents(folder / "out") == before


SCRIPT = """
import sys
from pathlib import Path
from mlxgen.command import generate, operators
from mlxgen.diagnostics import Diagnostics
diags = Diagnostics()
settings = operators.plain_settings(Path("mlx_ops.yaml"))
assert generate.generate(settings, Path(sys.argv[1]), diags), diags.render_text()
"""


def test_the_same_input_gives_the_same_bytes(folder: Path) -> None:
    outputs = []
    for seed in ("1", "2"):
        out = folder / f"out{seed}"
        root = str(Path(generate.__file__).parents[2])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(out)], cwd=folder, env=environment, check=True
        )
        files = {name: data for name, (data, _) in contents(out).items()}
        files.pop(".mlxgen.json")  # which has times
        outputs.append(files)
    assert outputs[0] == outputs[1]


def generating(folder: Path, before: str = "") -> subprocess.Popen[bytes]:
    """Start a process that generates into ``folder/out``, after some lines of Python."""
    root = str(Path(generate.__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", before + SCRIPT, "out"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root},
        stderr=subprocess.PIPE,
    )


def outcome(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, said = process.communicate()
    return process.returncode, said.decode()


def test_runs_at_once(folder: Path) -> None:
    processes = [generating(folder) for _ in range(4)]
    assert [outcome(process) for process in processes] == [(0, "")] * 4
    found = contents(folder / "out")
    shutil.rmtree(folder / "out")
    assert outcome(generating(folder)) == (0, "")
    assert {n: d for n, (d, _) in found.items() if n != ".mlxgen.json"} == {
        n: d for n, (d, _) in contents(folder / "out").items() if n != ".mlxgen.json"
    }


KILLED = """
import os
replace = os.replace
def counted(source, target):
    counted.left -= "out" in os.fspath(target).split(os.sep)  # others: jinja's cache of templates
    if not counted.left:
        os._exit(9)
    replace(source, target)
counted.left = {}
os.replace = counted
"""


@pytest.mark.parametrize("writes", [1, 2, 30])
def test_what_a_killed_run_leaves_is_removed(folder: Path, writes: int) -> None:
    assert outcome(generating(folder, KILLED.format(writes)))[0] == 9
    assert (folder / "out/.mlxgen.tmp").exists()
    edit(folder, "scale2", "scale3")
    edit(folder, "scale2", "scale3", "csrc/kernels.h")
    edit(folder, "scale2", "scale3", "csrc/functions.cpp")
    assert outcome(generating(folder)) == (0, "")
    found = {*contents(folder / "out")}
    shutil.rmtree(folder / "out")
    assert outcome(generating(folder)) == (0, "")
    assert found == {*contents(folder / "out")}


@pytest.mark.parametrize("limit", [10, 9000])
def test_full_disk(folder: Path, limit: int) -> None:
    """A limit on the size of files substitutes for a full disk."""
    script = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    code, said = outcome(generating(folder, script))
    assert code == 1 and "error[MG607]: cannot write out: File too large\n1 error" in said
    assert outcome(generating(folder)) == (0, "")


def test_output_that_cannot_be_written(folder: Path) -> None:
    (folder / "out").write_text("a file, where a folder should be\n")
    assert run(folder) == (None, ["MG607"])
    assert (folder / "out").read_text() == "a file, where a folder should be\n"


def test_file_in_the_place_of_a_folder(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out/src").write_text("a file, where a folder should be\n")
    assert run(folder) == (None, ["MG607"])


@pytest.mark.parametrize("content", [b"- name: f\xe9\n", None, "folder"])
def test_file_that_cannot_be_read(folder: Path, content: bytes | str | None) -> None:
    yaml = folder / "mlx_ops.yaml"
    yaml.unlink()
    if isinstance(content, bytes):
        yaml.write_bytes(content)
    elif content:
        yaml.mkdir()
    assert run(folder) == (None, ["MG007"])


def test_empty_file(folder: Path) -> None:
    (folder / "mlx_ops.yaml").write_text("# nothing yet\n")
    result, codes = run(folder)
    assert codes == [] and result is not None and result.operators == 0


def test_sources_that_cannot_be_read(folder: Path) -> None:
    (folder / "csrc/latin.h").write_bytes(b"// \xe9\n")
    assert run(folder) == (None, ["MG501"])


def test_odd_files_in_the_sources(folder: Path) -> None:
    (folder / "csrc/folder.h").mkdir()
    (folder / "csrc/gone.h").symlink_to(folder / "nowhere.h")
    assert set(run(folder)[1]) <= {"MG501"}


def test_sources_behind_a_link(folder: Path) -> None:
    (folder / "csrc").rename(folder / "sources")
    (folder / "csrc").symlink_to(folder / "sources", target_is_directory=True)
    assert run(folder)[1] == []
    assert '#include "kernels.h"' in (folder / "out/src/scale.cpp").read_text()


def test_long_chain_of_composites(folder: Path) -> None:
    entries = [
        f'- signature: "f{i}(x: array) -> array"\n  composite: f{i + 1}(x)\n' for i in range(1500)
    ]
    yaml = folder / "mlx_ops.yaml"
    yaml.write_text(
        "".join(entries) + '- signature: "f1500(x: array) -> array"\n  composite: exp(x)\n'
    )
    assert run(folder)[1] == []
    yaml.write_text(
        "".join(entries) + '- signature: "f1500(x: array) -> array"\n  composite: f7(x)\n'
    )
    assert run(folder)[1] == ["MG605"]


def mlxgen(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(generate.__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-m", "mlxgen", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )


def test_command_line(folder: Path) -> None:
    edit(folder, "composite: cap * tanh(x / cap)", "composite: cap * tanhh(x / cap)")
    plain = mlxgen(folder, "check", "mlx_ops.yaml")
    assert plain.returncode == 1
    assert (
        "mlx_ops.yaml:24:20: error[MG304]: op 'softcap': unknown function 'tanhh'" in plain.stderr
    )
    found = mlxgen(folder, "check", "mlx_ops.yaml", "--format", "json")
    assert found.returncode == 1
    (item,) = json.loads(found.stdout)
    place = (item["code"], item["op"], item["file"], item["line"], item["column"])
    assert place == ("MG304", "softcap", "mlx_ops.yaml", 24, 20)


def test_command_line_with_unknown_operator(folder: Path) -> None:
    found = mlxgen(folder, "check", "mlx_ops.yaml", "--select", "softcapp")
    assert found.returncode == 1
    assert (
        "error[MG606]: unknown operator or tag 'softcapp' (did you mean 'softcap'?)" in found.stderr
    )
    found = mlxgen(folder, "check", "mlx_ops.yaml", "--select", "tag:nn")
    assert found.returncode == 0


@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"key": 1, "files": [1]}', "[" * 10**5])
def test_manifest_that_is_broken(folder: Path, manifest: str) -> None:
    run(folder)
    before = contents(folder / "out/src")
    (folder / "out/.mlxgen.json").write_text(manifest)
    result, codes = run(folder)
    assert codes == [] and result is not None and result.changes.written == ()
    assert contents(folder / "out/src") == before


def test_manifest_that_names_files_elsewhere(folder: Path) -> None:
    run(folder)
    mine = folder / "mine.txt"
    mine.write_text("x")
    stat = mine.stat()
    files = {path: [stat.st_size, stat.st_mtime_ns] for path in ("../mine.txt", str(mine))}
    (folder / "out/.mlxgen.json").write_text(json.dumps(["", "", files]))
    _, codes = run(folder)
    assert codes == [] and mine.exists()
