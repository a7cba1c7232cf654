// The transforms of primitives, from the rules of their operators.

#include "mlxgen/primitive.h"

namespace mlxgen {

namespace {

bool is_inexact(const array& a) {
  return mx::issubdtype(a.dtype(), mx::inexact);
}

} // namespace

Arrays OperatorBase::jvp(
    const Arrays& primals,
    const Arrays& all_tangents,
    const std::vector<int>& all_argnums) {
  const auto& s = stream();
  auto own = rules();
  // The tangents of integers and bools are zeros.
  Arrays tangents;
  std::vector<int> argnums;
  for (size_t i = 0; i < all_argnums.size(); ++i) {
    if (is_inexact(primals[all_argnums[i]])) {
      argnums.push_back(all_argnums[i]);
      tangents.push_back(all_tangents[i]);
    }
  }
  if (argnums.empty()) {
    return zeros_for(call(primals), s);
  }
  if (own.jvp == Jvp::gradient && own.has_gradient) {
    auto outputs = own.uses_outputs ? call(primals) : Arrays();
    auto term = [&](int arg, size_t i) -> Term {
      auto one = gradient_of(arg, primals, {tangents[i]}, outputs);
      return {one.argument, one.value ? Arrays{*one.value} : Arrays()};
    };
    return sum_of_terms(
        own.op, argnums, term, output_shapes(primals), {primals[0].dtype()}, s);
  }
  if (own.jvp == Jvp::linear) {
    return call(with_arguments(zeros_for(primals, s), argnums, tangents));
  }
  if (own.jvp == Jvp::composite) {
    return composite_jvp(forward(), primals, tangents, argnums);
  }
  auto outputs = call(primals);
  auto pullback = [&](const Arrays& cotangents) {
    return vjp(primals, cotangents, argnums, outputs);
  };
  return jvp_from_vjp(pullback, outputs, tangents, s);
}

Arrays OperatorBase::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  auto own = rules();
  if (own.has_gradient) {
    auto gradient = [&](int arg) {
      return gradient_of(arg, primals, cotangents, outputs);
    };
    return gradients(own.op, argnums, primals, gradient, stream());
  }
  if (own.has_composite) {
    std::vector<int> inexact;
    for (auto arg : argnums) {
      if (is_inexact(primals[arg])) {
        inexact.push_back(arg);
      }
    }
    auto found = composite_vjp(forward(), primals, cotangents, inexact);
    auto next = found.begin();
    auto gradient = [&](int) -> Gradient { return {"", *next++}; };
    return gradients(own.op, argnums, primals, gradient, stream());
  }
  return Primitive::vjp(primals, cotangents, argnums, outputs);
}

std::pair<Arrays, std::vector<int>> OperatorBase::vmap(
    const Arrays& inputs,
    const std::vector<int>& axes) {
  auto own = rules();
  Arrays outputs;
  switch (own.vmap) {
    case Vmap::elementwise:
      outputs = call(batch_to_front(inputs, axes, stream()));
      break;
    case Vmap::batch:
      // Formulas of sizes and checks hold for a batch with elements only.
      if (batch_size(inputs, axes) > 0) {
        outputs = call(batch_in_front(inputs, axes, stream()));
        break;
      }
      [[fallthrough]];
    case Vmap::sequential: {
      auto one = [&](const Arrays& element) { return call(element); };
      outputs = vmap_sequential(one, inputs, axes, stream());
      break;
    }
    case Vmap::none:
      no_vmap(own.op);
  }
  return {outputs, std::vector<int>(outputs.size(), 0)};
}

std::vector<Shape> OperatorBase::output_shapes(const Arrays& inputs) {
  std::vector<Shape> shapes;
  for (const auto& out : call(inputs)) {
    shapes.push_back(out.shape());
  }
  return shapes;
}

bool OperatorBase::row_contiguous() {
  return stream().device == mx::Device::cpu;
}

array OperatorBase::composite_gradient(
    int arg,
    const Arrays& primals,
    const Arrays& cotangents) {
  return composite_vjp(forward(), primals, cotangents, {arg})[0];
}

std::function<Arrays(const Arrays&)> OperatorBase::forward() {
  return [this](const Arrays& inputs) {
    return composed(rules().op, composition(inputs), output_shapes(inputs));
  };
}

} // namespace mlxgen
