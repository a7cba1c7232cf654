"""The operator and the check in which a process dies or hangs are named."""

import json
import subprocess
import sys
import types

import pytest
from testing.test_cases import arg, op

from mlxgen.testing import crashes

# A kernel that reads outside of its arrays, in the first call by the check `vmap`.
SOURCE = """
import ctypes
import sys
import mlx.core as mx

def reads(x):
    return mx.exp(x)

def reads_far(x):
    frame = sys._getframe()
    while frame is not None and x.shape == (3, 2):
        if frame.f_code.co_name == "_check_vmap":
            ctypes.string_at(1)
        frame = frame.f_back
    return mx.sin(x)
"""
CHECKS = """
import deadly
from mlxgen.testing.cases import case, make_tests

SAMPLES = [{}, {"x": {"shape": [3, 2]}}]
CASES = [case(deadly.reads), *(case(deadly.reads_far, sample) for sample in SAMPLES)]
globals().update(make_tests(deadly, CASES))
"""


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "deadly"
    (folder / "checks").mkdir(parents=True)
    (folder / "__init__.py").write_text(SOURCE)
    known = [op("reads", arg("x")), op("reads_far", arg("x"))]
    (folder / "ops.json").write_text(json.dumps({"operators": known}))
    (folder / "checks" / "__init__.py").touch()
    (folder / "checks" / "test_gradients.py").write_text(CHECKS)
    return folder


def run(package, *command):
    done = subprocess.run(
        [sys.executable, *command], cwd=package.parent, capture_output=True, text=True
    )
    assert done.returncode < 0  # a signal
    return done.stderr


def test_a_check_that_dies_is_named(package):
    check = "import deadly; from mlxgen import testing; testing.check(deadly)"
    assert " in test_vmap of reads_far, sample 1\n" in run(package, "-c", check)
    pytest_ = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "deadly/checks")
    assert " in test_vmap of reads_far, sample 1\n" in run(package, *pytest_)


def test_a_notebook_shows_what_died_before(tmp_path, monkeypatch, capsys):
    kernel = types.SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: kernel))
    files = []
    handler = {"is_enabled": lambda: False, "enable": files.append, "disable": files.clear}
    monkeypatch.setattr(crashes, "faulthandler", types.SimpleNamespace(**handler))
    with crashes.reported_if_fatal(tmp_path):
        assert [file.name for file in files] == [str(tmp_path / "died.txt")]
    assert not files and not (tmp_path / "died.txt").exists() and not capsys.readouterr().out
    (tmp_path / "died.txt").write_text("File a.py in test_vmap of reads_far, sample 1")
    with crashes.reported_if_fatal(tmp_path):
        assert "test_vmap of reads_far, sample 1" in capsys.readouterr().out
    with crashes.reported_if_fatal(tmp_path / "missing"):  # nothing can be written
        pass


def test_a_check_that_hangs_is_named(monkeypatch):
    started = []
    monkeypatch.setattr(crashes.faulthandler, "dump_traceback_later", started.append)
    with crashes.reported_if_endless():
        assert started == [crashes.PATIENCE]
