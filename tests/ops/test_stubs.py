"""Type checkers accept right calls of the installed operators, and report wrong ones."""

import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent

RIGHT = """
import mlx.core as mx
import mlxops

x: mx.array = mlxops.lgamma(mx.ones(3))
y: mx.array = mlxops.examples.axpby(x, 2.0, alpha=3, stream=mx.cpu)
sin, cos = mlxops.sincos(x)
both: tuple[mx.array, mx.array] = mlxops.rms_norm_residual(x, x, None, eps=1e-6)
z: mx.array = mlxops.block_diag([x, y, 1.0])
w: mx.array = mlxops.grid_sample(x, y, mode="nearest", padding_mode="border", align_corners=True)
table: dict[str, dict[str, dict[str, str | list[str]]]] = mlxops.dispatch_table()
mlxops.install_methods()
alias: mx.array = mlxops.gammaln(0.5, stream=mx.default_stream(mx.cpu))
"""

WRONG = [
    "mlxops.lgamma('x')",
    "mlxops.lgamma()",
    "mlxops.examples.axpby(x)",
    "mlxops.examples.axpby(x, x, alpha='2')",
    "mlxops.examples.axpby(x, x, gamma=2)",
    "mlxops.grid_sample(x, x, mode='cubic')",
    "mlxops.grid_sample(x, x, 'nearest')",
    "mlxops.segment_sum(x, x, 2.5)",
    "mlxops.block_diag(x=[x])",
    "a, b, c = mlxops.sincos(x)",
    "number: int = mlxops.softcap(x)",
    "mlxops.rms_norm_residual(x)",
    "mlxops.lgamma(x, stream='cpu')",
    "mlxops.no_such_operator(x)",
]


def _check(command: list[str], tmp_path: Path, text: str) -> tuple[int, str]:
    file = tmp_path / "user.py"
    file.write_text(text)
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, cwd=tmp_path)
    return done.returncode, done.stdout + done.stderr


MYPY = [sys.executable, "-m", "mypy", "--strict", "--python-executable", sys.executable]
PYRIGHT = [str(BIN / "basedpyright"), "--level", "error", "--pythonpath", sys.executable]


@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_type_checkers(checker: list[str], tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    status, output = _check(checker, tmp_path, RIGHT)
    assert status == 0, output
    wrong = "\n".join(WRONG)
    status, output = _check(
        checker, tmp_path, f"import mlx.core as mx, mlxops\nx = mx.ones(3)\n{wrong}\n"
    )
    assert status != 0
    for number, line in enumerate(WRONG, start=3):
        assert f"user.py:{number}:" in output, f"accepted: {line}\n{output}"
