// The product of matmul.h, compiled once for all kernels.

#include "matmul.h"

#ifdef MLXOPS_PRODUCT_APART

namespace mlxops::cpu {

template struct Product<double, double, double>;
template struct Product<float, float, float>;
template struct Product<float, float, mlxgen::float16_t>;
template struct Product<float, float, mlxgen::bfloat16_t>;
template struct Product<float, mlxgen::float16_t, mlxgen::float16_t>;
template struct Product<float, mlxgen::bfloat16_t, mlxgen::bfloat16_t>;

} // namespace mlxops::cpu

#endif
