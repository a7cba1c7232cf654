// Functions of the sample project outside of headers.

#include "kernels.h"
#include "mlx/mlx.h"
#include "ops/by_hand.h"

namespace my {

mx::array twice(const mx::array& x, mx::StreamOrDevice s) {
  return mx::add(x, x, s);
}

std::vector<mx::array> scale2_vjp(
    const mx::array& x,
    double a,
    double b,
    const std::vector<mx::array>& cotangents,
    const std::vector<mx::array>& outputs,
    mx::StreamOrDevice s) {
  return cotangents;
}

template <typename T>
T hidden(T x) {
  return x;
}

} // namespace my

namespace ops {

std::vector<mx::array> ByHand::vjp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& cotangents,
    const std::vector<int>& argnums,
    const std::vector<mx::array>& outputs) {
  return cotangents;
}

} // namespace ops
