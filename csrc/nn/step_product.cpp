// The products of step_product.h, compiled once for all recurrent networks.

#include "step_product.h"

#ifdef MLXOPS_PRODUCT_APART

namespace mlxops::cpu {

template class StepProduct<double, double>;
template class StepProduct<float, float>;
template class StepProduct<mlxgen::float16_t, float>;
template class StepProduct<mlxgen::bfloat16_t, float>;

} // namespace mlxops::cpu

#endif
