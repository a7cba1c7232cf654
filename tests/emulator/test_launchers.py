"""Launchers in the emulation: hand-written ones, and libraries of which one does not compile."""

import subprocess
from pathlib import Path

import pytest
from emulator.reference_cpp import mlx_include

from mlxgen.emulator import package
from mlxgen.package import toolchain

EMULATOR = Path(package.__file__).parent
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
GOOD = f'{HEAD}#line 1 "good.metal"\nkernel void f(device float* y) {{ y[0] = 1; }}\n'
BAD = f'{HEAD}#line 1 "lib/bad.h"\nvoid g();\n#line 7 "bad.metal"\nkernel void f(device float* y) '
BAD += "{ y[0] = z; }\n"


def test_one_bad_library_does_not_stop_the_others(tmp_path, monkeypatch):
    sources = {"kk.a": GOOD, "kk.bad": BAD, "kk.c": GOOD}
    monkeypatch.setattr(package, "_sources", lambda built: sources)
    (error,) = package._compile_kernels(tmp_path, tmp_path, 2)
    assert error.startswith("kk.bad does not compile:")
    assert "bad.metal:7" in error and "‘z’" in error  # the user's file
    found = sorted(path.name for path in (tmp_path / "libraries").glob("*.so"))
    assert found == ["kk.a.so", "kk.c.so"]


LAUNCHER = """
#include "mlx/mlx.h"
#include "mlx/backend/metal/device.h"
#include "mlx/backend/metal/utils.h"
namespace mx = mlx::core;

void eval_gpu(const mx::array& x, mx::array& out, mx::Stream s) {
  auto& d = mx::metal::device(s.device);
  auto library = d.get_library("kk.manual", [] { return std::string("..."); });
  std::string name;
  mx::concatenate(name, "scale_", mx::type_to_name(out), "_", 4);
  auto kernel = d.get_kernel(name, library);
  auto& encoder = mx::metal::get_command_encoder(s);
  encoder.set_compute_pipeline_state(kernel);
  encoder.set_input_array(x, 0);
  encoder.set_output_array(out, 1);
  encoder.set_threadgroup_memory_length(256, 0);
  auto group = MTL::Size::Make(kernel->maxTotalThreadsPerThreadgroup(), 1, 1);
  mx::check_kernel_threadgroup_size(kernel, group, name);
  size_t threads = mx::ceildiv(x.size(), mx::get_work_per_thread(x.dtype()));
  encoder.dispatch_threads(MTL::Size(threads, 1, 1), group);
}
"""


@pytest.mark.extended
def test_a_hand_written_launcher(tmp_path):
    source = tmp_path / "launcher.cpp"
    source.write_text(LAUNCHER)
    folders = [f"-I{path}" for path in (EMULATOR / "include", EMULATOR, mlx_include())]
    command = [*toolchain.compiler(), "-std=c++20", "-fsyntax-only", *folders, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
