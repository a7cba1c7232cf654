// Coefficients of the approximations in gamma.metal.
// Written by csrc/coefficients.py, which says how they are found: do not edit.

// clang-format off

#pragma once

namespace gamma_coefficients {

// log Gamma(z) / ((z - 1) (z - 2)) on 1 <= z <= 6
// relative error 9.9e-11
constexpr constant float lgamma_middle_p[6] = {
    25.8074668f,
    178.632105f,
    218.10697f,
    61.7808508f,
    3.5673572f,
    0.0103149259f};
constexpr constant float lgamma_middle_q[6] = {
    12.853201f,
    181.919882f,
    397.777573f,
    219.119537f,
    32.6032366f,
    1.0f};
// (log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2) z in 1/z^2, 6 <= z
// relative error 4.1e-11
constexpr constant float lgamma_large[4] = {
    0.0833333333f,
    -0.00277777383f,
    0.00079292746f,
    -0.000552290959f};
// psi(z) / (z - root) on 1 <= z <= 6
// relative error 1.4e-11
constexpr constant float digamma_middle_p[6] = {
    362.522092f,
    1011.91425f,
    641.591087f,
    114.61277f,
    4.69831805f,
    0.00911346699f};
constexpr constant float digamma_middle_q[6] = {
    0.0243761821f,
    529.669373f,
    811.543686f,
    326.936533f,
    38.584792f,
    1.0f};
// (log z - 1 / (2 z) - psi(z)) z^2 in 1/z^2, 6 <= z
// relative error 6.1e-12
constexpr constant float digamma_large[5] = {
    0.0833333333f,
    -0.0083333324f,
    0.00396798041f,
    -0.0041382152f,
    0.00633473905f};
// psi'(1 + z) on 0 <= z <= 6
// relative error 2.2e-11
constexpr constant float trigamma_middle_p[5] = {
    6.82007785f,
    15.6403552f,
    14.1597656f,
    5.97411571f,
    1.00000017f};
constexpr constant float trigamma_middle_q[6] = {
    4.14611016f,
    15.5678433f,
    23.1768183f,
    17.230102f,
    6.47412035f,
    1.0f};
// (psi'(z) - 1 / z - 1 / (2 z^2)) z^3 in 1/z^2, 6 <= z
// relative error 1.7e-9
constexpr constant float trigamma_large[4] = {
    0.166666666f,
    -0.0333329978f,
    0.0237476165f,
    -0.0296088679f};
// sin(pi r) / (pi r) in r^2, |r| <= 1/2
// relative error 2.1e-11
constexpr constant float sine[6] = {
    1.0f,
    -1.64493406f,
    0.811742171f,
    -0.190747623f,
    0.0261162053f,
    -0.00223522403f};
// (1 - pi r cot(pi r)) / r^2 in r^2, |r| <= 1/2
// relative error 4.6e-12
constexpr constant float cotangent[10] = {
    3.28986813f,
    2.16464648f,
    2.03468455f,
    2.00823401f,
    1.99997596f,
    2.0295949f,
    1.74739473f,
    3.327853f,
    -2.0306244f,
    8.0300547f};
// B_2k / (2k)!, k = 1, 2 and so on
constexpr constant float bernoulli[8] = {
    0.0833333333f,
    -0.00138888889f,
    3.30687831e-05f,
    -8.26719577e-07f,
    2.0876757e-08f,
    -5.28419014e-10f,
    1.33825365e-11f,
    -3.3896803e-13f};
// the positive zero of psi, in two parts
constexpr constant float digamma_root = 1.46163213f;
constexpr constant float digamma_root_low = 1.24381499e-08f;
// (log(2 pi) - 1) / 2
constexpr constant float lgamma_constant = 0.418938533f;

} // namespace gamma_coefficients
