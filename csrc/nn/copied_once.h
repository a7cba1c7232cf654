// A copy that several kernels of a gradient share.

#pragma once

#include "mlx/mlx.h"
#include "mlxgen/op.h"

namespace mlxops {

namespace mx = mlx::core;

/** The array as CPU kernels receive it; each would copy it otherwise. */
inline mx::array copied_once(const mx::array& x, mx::StreamOrDevice s) {
  auto stream = mx::to_stream(s);
  return stream.device == mx::Device::cpu ? mlxgen::ready(x, x.dtype(), stream)
                                          : x;
}

} // namespace mlxops
