// A node of MLX's graph that runs an emulated Metal kernel on a CPU stream, and
// its binding. It is compiled once per machine (build.py), together with the
// substitute for MLX's Metal device.

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "device.cpp"
#include "mlx/primitives.h"
#include "mlx/scheduler.h"
#include "mlxgen/python.h"

namespace mx = mlx::core;
namespace nb = nanobind;

namespace {

using Sizes = std::array<int64_t, 3>;
using Infos = std::vector<std::array<bool, 3>>; // shape, strides, ndim

/**
 * Whether a task may throw. Older releases of MLX (0.32.0) end the process;
 * there, an error is raised at the end of the emulation.
 */
template <typename S = mx::scheduler::Scheduler>
constexpr bool tasks_may_throw =
    requires(S& scheduler, mx::Stream s) { scheduler.check_error(s); };

/** A compiled kernel; it exists until the process ends. */
struct Kernel {
  Kernel(const std::string& name, const std::string& object, bool whole) {
    library = mx::metal::emulation::open(name, object);
    state.library = library.get();
    state.raises = tasks_may_throw<>;
    state.whole = whole;
  }
  std::unique_ptr<MTL::Library> library;
  MTL::ComputePipelineState state;
};

/** As MLX's CustomKernel, by name, and thus in MLX's messages, too. */
class EmulatedKernel : public mx::Primitive {
 public:
  EmulatedKernel(
      mx::Stream stream,
      Kernel* kernel,
      Sizes grid,
      Sizes group,
      Infos infos,
      std::optional<float> init)
      : Primitive(stream),
        kernel_(kernel),
        grid_(grid),
        group_(group),
        infos_(std::move(infos)),
        init_(init) {}

  void eval_cpu(
      const std::vector<mx::array>& inputs,
      std::vector<mx::array>& outputs) override {
    for (auto& out : outputs) {
      out.set_data(mx::allocator::malloc(out.nbytes()));
      if (init_) {
        fill(out);
      }
    }
    auto& encoder = mx::metal::get_command_encoder(stream());
    encoder.set_compute_pipeline_state(&kernel_->state);
    int index = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto& in = inputs[i];
      encoder.set_input_array(in, index++);
      if (in.ndim() == 0) {
        continue;
      }
      if (infos_[i][0]) {
        encoder.set_vector_bytes(in.shape(), in.ndim(), index++);
      }
      if (infos_[i][1]) {
        encoder.set_vector_bytes(in.strides(), in.ndim(), index++);
      }
      if (infos_[i][2]) {
        encoder.set_bytes(int(in.ndim()), index++);
      }
    }
    for (auto& out : outputs) {
      encoder.set_output_array(out, index++);
    }
    auto size = [](const Sizes& s) {
      return MTL::Size(uint64_t(s[0]), uint64_t(s[1]), uint64_t(s[2]));
    };
    encoder.dispatch_threads(size(grid_), size(group_));
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&)
      override {
    throw std::runtime_error("[metal emulation] The kernel runs on the CPU.");
  }

  const char* name() const override {
    return "CustomKernel";
  }

 private:
  void fill(mx::array& out) {
    mx::metal::emulation::keep(out);
    auto value = mx::array(*init_, out.dtype());
    value.eval();
    auto& encoder = mx::cpu::get_command_encoder(stream());
    encoder.set_output_array(out);
    encoder.dispatch([to = out.data<char>(),
                      value,
                      size = out.itemsize(),
                      count = out.size()] {
      for (size_t i = 0; i < count; ++i) {
        std::memcpy(to + i * size, value.data<char>(), size);
      }
    });
  }

  Kernel* kernel_;
  Sizes grid_;
  Sizes group_;
  Infos infos_;
  std::optional<float> init_;
};

std::vector<mx::array> call(
    Kernel& kernel,
    std::vector<mx::array> inputs,
    const std::vector<std::vector<int>>& shapes,
    std::vector<mx::Dtype> dtypes,
    Sizes grid,
    Sizes group,
    const Infos& infos,
    bool contiguous,
    std::optional<float> init,
    const mlxgen::StreamArg& stream) {
  auto s = mx::to_stream(stream.value);
  if (contiguous) {
    for (auto& in : inputs) {
      in = mx::contiguous(in, false, s);
    }
  }
  std::vector<mx::Shape> sizes;
  for (const auto& shape : shapes) {
    sizes.emplace_back(shape.begin(), shape.end());
  }
  return mx::array::make_arrays(
      std::move(sizes),
      std::move(dtypes),
      std::make_shared<EmulatedKernel>(s, &kernel, grid, group, infos, init),
      std::move(inputs));
}

} // namespace

NB_MODULE(_ext, m) {
  nb::class_<Kernel>(m, "Kernel")
      .def(nb::init<const std::string&, const std::string&, bool>())
      .def("__call__", &call);
  // MLX raises an error of a task again, as std::runtime_error. All modules of
  // MLX's domain share the list of translators.
  static PyObject* type = nullptr;
  static PyObject* seen = nullptr;
  m.def("raise_as", [](nb::object error, nb::set messages) {
    type = error.release().ptr();
    seen = messages.release().ptr();
  });
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const std::runtime_error& error) {
      if (type == nullptr || !mx::metal::emulation::is_error(error.what())) {
        throw;
      }
      PySet_Add(seen, nb::str(error.what()).ptr());
      PyErr_SetString(type, error.what());
    }
  });
  m.def("take", [] {
    auto events = mx::metal::emulation::take();
    return std::make_pair(events.launches, events.errors);
  });
}
