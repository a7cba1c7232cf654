// The error of kernels that need invertible matrices.

#pragma once

#include <stdexcept>
#include <string>

namespace mlxops::linalg {

/** Raise an error: pivot `step`, counted from 1, is 0. */
[[noreturn]] inline void raise_singular(int step) {
  throw std::runtime_error(
      "failed with error code " + std::to_string(step) +
      ": a matrix is singular, its pivot " + std::to_string(step) + " is 0.");
}

} // namespace mlxops::linalg
