// clang-format off

// Coefficients of the approximations in gamma.h.
// Written by gamma_coefficients.py, which says how they are found: do not edit.

#pragma once

#include "mlxgen/scalar.h"

namespace mlxops {
namespace special {

// For results in float.
namespace for_float {

// log Gamma(z) / ((z - 1) (z - 2)) on 1 <= z <= 6
// error 1.4e-14
MLXGEN_TABLE(lgamma_middle_p, 8) = {
    MLXGEN_WIDE(134.940475f, 3.12275233e-07f),
    MLXGEN_WIDE(1932.73254f, 1.05281276e-06f),
    MLXGEN_WIDE(5647.83008f, 7.66483281e-05f),
    MLXGEN_WIDE(5106.44092f, -1.41102846e-05f),
    MLXGEN_WIDE(1591.04529f, 1.06127618e-06f),
    MLXGEN_WIDE(162.864349f, 4.94825008e-06f),
    MLXGEN_WIDE(4.18012476f, -1.98449413e-07f),
    MLXGEN_WIDE(0.00579662342f, 1.39392345e-10f),
};

MLXGEN_TABLE(lgamma_middle_q, 8) = {
    MLXGEN_WIDE(58.9999046f, 1.03438185e-06f),
    MLXGEN_WIDE(1546.55359f, -3.04818859e-05f),
    MLXGEN_WIDE(7225.70898f, -0.000150195396f),
    MLXGEN_WIDE(10167.1309f, -9.70826659e-05f),
    MLXGEN_WIDE(5200.29395f, -1.16140882e-05f),
    MLXGEN_WIDE(995.062866f, -2.69759839e-05f),
    MLXGEN_WIDE(64.5085907f, -3.75419927e-06f),
    MLXGEN_WIDE(1.0f, 0.0f),
};

// (log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2) z in 1/z^2, 6 <= z
// error 5.8e-13
MLXGEN_TABLE(lgamma_large, 5) = {
    MLXGEN_WIDE(0.0833333358f, -2.4835749e-09f),
    MLXGEN_WIDE(-0.00277777761f, -7.76298956e-11f),
    MLXGEN_WIDE(0.00079362496f, 2.81560296e-11f),
    MLXGEN_WIDE(-0.00059256627f, 2.20438099e-12f),
    MLXGEN_WIDE(0.000726203783f, -2.59270388e-13f),
};

// Gamma(z) / (sqrt(2 pi) z^(z - 1/2) exp(-z)) in 1/z, 6 <= z
// error 2.5e-12
MLXGEN_TABLE(gamma_large, 6) = {
    MLXGEN_WIDE(1.0f, 2.52283697e-12f),
    MLXGEN_WIDE(0.0833333358f, -3.51346729e-09f),
    MLXGEN_WIDE(0.00347228977f, 5.97004945e-11f),
    MLXGEN_WIDE(-0.00268290821f, -1.90452758e-11f),
    MLXGEN_WIDE(-0.00021389559f, -1.9580559e-12f),
    MLXGEN_WIDE(0.000729782274f, 2.44934576e-11f),
};

// n! / (sqrt(2 pi n) (n / e)^n) in 1/n, 2 <= n
// error 2.6e-11
MLXGEN_TABLE(factorial, 8) = {
    MLXGEN_WIDE(1.0f, -2.64938124e-11f),
    MLXGEN_WIDE(0.0833333433f, -2.7031235e-09f),
    MLXGEN_WIDE(0.00347189838f, -1.25187178e-11f),
    MLXGEN_WIDE(-0.00267578452f, -1.29094027e-11f),
    MLXGEN_WIDE(-0.000276307168f, 3.84855819e-12f),
    MLXGEN_WIDE(0.000999999116f, -3.24922728e-11f),
    MLXGEN_WIDE(-0.000476854621f, -1.11357902e-11f),
    MLXGEN_WIDE(5.36432453e-05f, -3.79921572e-13f),
};

// psi(z) / (z - root) on 1 <= z <= 6
// error 4.0e-15
MLXGEN_TABLE(digamma_middle_p, 8) = {
    MLXGEN_WIDE(1421.25964f, 2.11417409e-05f),
    MLXGEN_WIDE(4446.5127f, -4.61196687e-05f),
    MLXGEN_WIDE(3792.78857f, -5.38377462e-05f),
    MLXGEN_WIDE(1188.45068f, -8.62159868e-06f),
    MLXGEN_WIDE(137.379303f, -3.314678e-06f),
    MLXGEN_WIDE(4.6722393f, 7.49418589e-08f),
    MLXGEN_WIDE(0.011767244f, -2.81772966e-10f),
    MLXGEN_WIDE(-5.51766607e-05f, -1.20500127e-12f),
};

MLXGEN_TABLE(digamma_middle_q, 7) = {
    MLXGEN_WIDE(0.00094839395f, -1.16456792e-11f),
    MLXGEN_WIDE(2077.34937f, -2.47181397e-05f),
    MLXGEN_WIDE(3878.86963f, -0.000102455473f),
    MLXGEN_WIDE(2275.18799f, 0.000101530881f),
    MLXGEN_WIDE(514.662781f, 1.20563736e-05f),
    MLXGEN_WIDE(43.1159248f, 1.77674053e-06f),
    MLXGEN_WIDE(1.0f, 0.0f),
};

// (log z - 1 / (2 z) - psi(z)) z^2 in 1/z^2, 6 <= z
// error 6.1e-12
MLXGEN_TABLE(digamma_large, 5) = {
    MLXGEN_WIDE(0.0833333358f, -2.48403342e-09f),
    MLXGEN_WIDE(-0.00833333284f, 4.32716862e-10f),
    MLXGEN_WIDE(0.00396798039f, 2.09284048e-11f),
    MLXGEN_WIDE(-0.00413821498f, -2.23050745e-10f),
    MLXGEN_WIDE(0.00633473927f, -2.20837043e-10f),
};

// psi'(1 + z) on 0 <= z <= 6
// error 2.2e-11
MLXGEN_TABLE(trigamma_middle_p, 5) = {
    MLXGEN_WIDE(6.8200779f, -4.51736888e-08f),
    MLXGEN_WIDE(15.6403551f, 4.2311175e-08f),
    MLXGEN_WIDE(14.1597652f, 3.42978268e-07f),
    MLXGEN_WIDE(5.97411585f, -1.39175782e-07f),
    MLXGEN_WIDE(1.00000012f, 5.22930392e-08f),
};

MLXGEN_TABLE(trigamma_middle_q, 6) = {
    MLXGEN_WIDE(4.14611006f, 1.0442146e-07f),
    MLXGEN_WIDE(15.5678434f, -9.57075699e-08f),
    MLXGEN_WIDE(23.1768188f, -5.20061349e-07f),
    MLXGEN_WIDE(17.2301025f, -5.77935282e-07f),
    MLXGEN_WIDE(6.47412014f, 2.11267661e-07f),
    MLXGEN_WIDE(1.0f, 0.0f),
};

// (psi'(z) - 1 / z - 1 / (2 z^2)) z^3 in 1/z^2, 6 <= z
// error 1.7e-9
MLXGEN_TABLE(trigamma_large, 4) = {
    MLXGEN_WIDE(0.166666672f, -5.25253396e-09f),
    MLXGEN_WIDE(-0.0333329961f, -1.72968484e-09f),
    MLXGEN_WIDE(0.0237476174f, -8.91153151e-10f),
    MLXGEN_WIDE(-0.0296088681f, 1.44630766e-10f),
};

// log Gamma(3 + z) less Stirling's formula on 0 <= z <= 1000000, error absolute
// error 9.3e-18
MLXGEN_TABLE(lgamma_rest_p, 6) = {
    MLXGEN_WIDE(-20.9455509f, -3.57462341e-07f),
    MLXGEN_WIDE(-29.5042973f, -9.10223775e-07f),
    MLXGEN_WIDE(-16.8186913f, 4.60183202e-07f),
    MLXGEN_WIDE(-4.85013771f, 1.51848525e-08f),
    MLXGEN_WIDE(-0.707355559f, -5.54894353e-09f),
    MLXGEN_WIDE(-0.0416666679f, 1.2417698e-09f),
};

MLXGEN_TABLE(lgamma_rest_q, 7) = {
    MLXGEN_WIDE(1268.03003f, 3.15134503e-06f),
    MLXGEN_WIDE(2284.65698f, 8.93868055e-05f),
    MLXGEN_WIDE(1721.88855f, 3.71844071e-05f),
    MLXGEN_WIDE(695.501282f, 2.34181935e-05f),
    MLXGEN_WIDE(158.902969f, 2.52954874e-06f),
    MLXGEN_WIDE(19.4765339f, -3.43693358e-07f),
    MLXGEN_WIDE(1.0f, 0.0f),
};

// psi(3 + z) - log(z + 5/2) on 0 <= z <= 1000000, error absolute
// error 8.0e-17
MLXGEN_TABLE(digamma_rest_p, 5) = {
    MLXGEN_WIDE(4.60106707f, -8.07533901e-11f),
    MLXGEN_WIDE(5.40671635f, 2.07840472e-07f),
    MLXGEN_WIDE(2.45565677f, 5.73002001e-09f),
    MLXGEN_WIDE(0.512390792f, -8.72356143e-09f),
    MLXGEN_WIDE(0.0416666679f, -1.23895194e-09f),
};

MLXGEN_TABLE(digamma_rest_q, 7) = {
    MLXGEN_WIDE(708.553772f, 1.20608036e-06f),
    MLXGEN_WIDE(1385.39453f, 3.21649459e-05f),
    MLXGEN_WIDE(1137.83215f, 1.68136412e-05f),
    MLXGEN_WIDE(503.450684f, -9.9323388e-06f),
    MLXGEN_WIDE(126.847656f, 9.39581781e-08f),
    MLXGEN_WIDE(17.2973785f, 2.7423809e-07f),
    MLXGEN_WIDE(1.0f, 0.0f),
};

// sin(pi r) / (pi r) in r^2, |r| <= 1/2
// error 1.4e-16
MLXGEN_TABLE(sine, 8) = {
    MLXGEN_WIDE(1.0f, -1.42158956e-16f),
    MLXGEN_WIDE(-1.64493406f, -8.65876526e-09f),
    MLXGEN_WIDE(0.811742425f, 3.12856435e-10f),
    MLXGEN_WIDE(-0.190751821f, -3.14589044e-09f),
    MLXGEN_WIDE(0.0261478443f, 8.88438434e-10f),
    MLXGEN_WIDE(-0.00234605884f, 4.79406376e-11f),
    MLXGEN_WIDE(0.000148325285f, -3.19439852e-12f),
    MLXGEN_WIDE(-6.72364467e-06f, -5.39287717e-14f),
};

// (1 - pi r cot(pi r)) / r^2 in r^2, |r| <= 1/2
// error 1.7e-15
MLXGEN_TABLE(cotangent, 13) = {
    MLXGEN_WIDE(3.28986812f, 1.73176744e-08f),
    MLXGEN_WIDE(2.16464639f, 8.03144715e-08f),
    MLXGEN_WIDE(2.03468609f, 3.70908531e-08f),
    MLXGEN_WIDE(2.00815463f, -6.47160263e-08f),
    MLXGEN_WIDE(2.0019958f, -5.51646373e-08f),
    MLXGEN_WIDE(2.00031614f, -8.66680878e-08f),
    MLXGEN_WIDE(2.00312471f, 4.29778773e-08f),
    MLXGEN_WIDE(1.96598339f, -2.79295094e-08f),
    MLXGEN_WIDE(2.26154089f, 8.2969116e-08f),
    MLXGEN_WIDE(0.642792881f, 1.56437068e-08f),
    MLXGEN_WIDE(6.62699556f, -1.39206875e-07f),
    MLXGEN_WIDE(-7.64309025f, 5.0823644e-08f),
    MLXGEN_WIDE(12.1728716f, -4.03576166e-07f),
};

// B_2k / (2k)!, k = 1, 2 and so on
MLXGEN_TABLE(bernoulli, 10) = {
    MLXGEN_WIDE(0.0833333358f, -2.48352694e-09f),
    MLXGEN_WIDE(-0.00138888892f, 3.36310944e-11f),
    MLXGEN_WIDE(3.30687835e-05f, -4.54266128e-13f),
    MLXGEN_WIDE(-8.26719599e-07f, 2.27253366e-14f),
    MLXGEN_WIDE(2.08767563e-08f, 6.64194745e-16f),
    MLXGEN_WIDE(-5.28419031e-10f, 1.68854297e-17f),
    MLXGEN_WIDE(1.33825364e-11f, 1.32197265e-19f),
    MLXGEN_WIDE(-3.3896803e-13f, 4.44747106e-22f),
    MLXGEN_WIDE(8.58606213e-15f, -6.89473582e-23f),
    MLXGEN_WIDE(-2.17486866e-16f, -3.63616244e-24f),
};

// the positive zero of psi, in two parts
MLXGEN_TABLE(digamma_root, 2) = {
    MLXGEN_WIDE(1.46163213f, 0.0f),
    MLXGEN_WIDE(1.24381501e-08f, -1.26544644e-16f),
};

// 1 / e
MLXGEN_TABLE(inverse_e, 1) = {
    MLXGEN_WIDE(0.36787945f, -9.14975562e-09f),
};

MLXGEN_TABLE(log_2_pi, 1) = {
    MLXGEN_WIDE(1.83787704f, 3.12683532e-08f),
};

MLXGEN_TABLE(half_log_half_pi, 1) = {
    MLXGEN_WIDE(0.22579135f, 2.6376703e-09f),
};

} // namespace for_float

// For what is computed in float.
namespace in_float {

// (2 log Gamma(z) / ((z - 1) (z - 2)) - the same at 9/4) / (z - 9/4) on 1 <= z <= 3, relative to log Gamma(z)
// error 6.4e-10
MLXGEN_NUMBER float lgamma_middle_p[4] = {
    -1.38129652f,
    -6.21902514f,
    -4.09646273f,
    -0.395552456f,
};

MLXGEN_NUMBER float lgamma_middle_q[5] = {
    1.0f,
    12.2792349f,
    21.0153923f,
    7.73091841f,
    0.522859335f,
};

// (log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2) z in 1/z^2, 3 <= z, relative to z log Gamma(z)
// error 1.2e-09
MLXGEN_NUMBER float lgamma_large[3] = {
    0.0833331645f,
    -0.00276991189f,
    0.000678978278f,
};

// (psi(z) / (z - root) - psi'(root)) / (z - root) on 1 <= z <= 2, relative to psi(z)
// error 1.9e-09
MLXGEN_NUMBER float digamma_middle_p[3] = {
    -400.711395f,
    -590.403137f,
    -105.707169f,
};

MLXGEN_NUMBER float digamma_middle_q[4] = {
    1.0f,
    849.682373f,
    826.432129f,
    113.87957f,
};

// (log z - 1 / (2 z) - psi(z)) z^2 in 1/z^2, 2 <= z, relative to z^2 psi(z)
// error 5.4e-10
MLXGEN_NUMBER float digamma_large[5] = {
    0.0833332092f,
    -0.0083267903f,
    0.00384795084f,
    -0.00308135827f,
    0.00192505307f,
};

// the positive zero of psi less 1, in two parts
MLXGEN_NUMBER float digamma_root[2] = {
    0.461632133f,
    1.24381501e-08f,
};

// psi' there, less 1
MLXGEN_NUMBER float digamma_slope[1] = {
    -0.0323277563f,
};

// 2 log Gamma(z) / ((z - 1) (z - 2)) - 1 at 9/4
MLXGEN_NUMBER float lgamma_slope[1] = {
    -0.200821027f,
};

// (log(2 pi) - 1) / 2
MLXGEN_NUMBER float stirling[1] = {
    0.418938547f,
};

} // namespace in_float

#ifndef __METAL_VERSION__
// For results in double.
namespace for_double {

// log Gamma(z) / ((z - 1) (z - 2)) on 1 <= z <= 6
// error 1.7e-16
inline constexpr double lgamma_middle_p[9] = {
    297.7592243802229,
    5696.033527605321,
    23345.36740920509,
    31839.292031058474,
    16482.108583917132,
    3304.6619900032256,
    235.15818936624603,
    4.429141947244599,
    0.004575935304998308,
};

inline constexpr double lgamma_middle_q[9] = {
    123.93773568736322,
    4174.208946151266,
    26304.093853275102,
    53093.25779394956,
    41604.05557095997,
    13514.739280347072,
    1783.846623341998,
    84.52422552186007,
    1.0,
};

// (log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2) z in 1/z^2, 6 <= z
// error 1.0e-17
inline constexpr double lgamma_large[8] = {
    0.08333333333333333,
    -0.0027777777777737147,
    0.0007936507905090429,
    -0.0005952371662878655,
    0.0008416149445485422,
    -0.0019065729756243413,
    0.005905932555213606,
    -0.016495178723317253,
};

// Gamma(z) / (sqrt(2 pi) z^(z - 1/2) exp(-z)) in 1/z, 6 <= z
// error 2.9e-17
inline constexpr double gamma_large[10] = {
    1.0,
    0.08333333333329919,
    0.003472222228968732,
    -0.0026813276768820186,
    -0.00022945206622818876,
    0.0007835948775881273,
    7.568322695328024e-05,
    -0.0006407328974293785,
    0.00017729941531369287,
    0.00033242170562706395,
};

// n! / (sqrt(2 pi n) (n / e)^n) in 1/n, 2 <= n
// error 6.2e-17
inline constexpr double factorial[15] = {
    0.9999999999999999,
    0.08333333333339055,
    0.0034722222135127414,
    -0.0026813266379988013,
    -0.00022948846337144166,
    0.000784346629821666,
    6.59906428485828e-05,
    -0.0005614543875599375,
    -0.00022526826500688225,
    0.001505900808433834,
    -0.0015493337453959663,
    -8.027673773752577e-05,
    0.0016180479932779994,
    -0.0014831032732958492,
    0.0004727418658701886,
};

// psi(z) / (z - root) on 1 <= z <= 6
// error 1.7e-16
inline constexpr double digamma_middle_p[8] = {
    35427.17554599457,
    114913.26073741731,
    106793.74912305057,
    39114.74822606745,
    5946.702868838674,
    342.38508442709434,
    5.470180281237637,
    0.004427910317769429,
};

inline constexpr double digamma_middle_q[8] = {
    0.0034828211053715883,
    51781.46188453857,
    102644.84141825115,
    67108.27574003882,
    18242.58850624133,
    2093.138562823094,
    89.90453498758535,
    1.0,
};

// (log z - 1 / (2 z) - psi(z)) z^2 in 1/z^2, 6 <= z
// error 1.6e-16
inline constexpr double digamma_large[8] = {
    0.08333333333333331,
    -0.008333333333269731,
    0.0039682539189615715,
    -0.004166652052664626,
    0.007573612025721209,
    -0.02091894141635775,
    0.07525816972396568,
    -0.23055084296042297,
};

// psi'(1 + z) on 0 <= z <= 6
// error 1.6e-18
inline constexpr double trigamma_middle_p[8] = {
    233.16803472556717,
    715.4504043157184,
    956.6950734084785,
    719.6995595643778,
    328.9301425975821,
    91.5520525701704,
    14.430838938851174,
    0.9999999999543789,
};

inline constexpr double trigamma_middle_q[9] = {
    141.7491675957131,
    642.1117760607972,
    1240.262237988204,
    1340.1438250806843,
    891.1913038311781,
    375.8670713058027,
    98.85080542678409,
    14.930838936563065,
    1.0,
};

// (psi'(z) - 1 / z - 1 / (2 z^2)) z^3 in 1/z^2, 6 <= z
// error 1.3e-15
inline constexpr double trigamma_large[8] = {
    0.16666666666666644,
    -0.033333333332281945,
    0.02380952299284135,
    -0.03333309054136728,
    0.07572179873763123,
    -0.2501985899555401,
    1.0300185119853575,
    -3.42658399755454,
};

// sin(pi r) / (pi r) in r^2, |r| <= 1/2
// error 2.6e-19
inline constexpr double sine[9] = {
    1.0,
    -1.6449340668482262,
    0.8117424252833373,
    -0.19075182412143046,
    0.02614784780452918,
    -0.002346080886820632,
    0.00014842780086039161,
    -6.972000454807469e-06,
    2.449307732040822e-07,
};

// (1 - pi r cot(pi r)) / r^2 in r^2, |r| <= 1/2
// error 1.2e-16
inline constexpr double cotangent[14] = {
    3.2898681336964524,
    2.1646464674229087,
    2.034686123805916,
    2.008154728909879,
    2.001988279385799,
    2.0005195947525833,
    1.9995654179843374,
    2.0076706055965094,
    1.9275326252852636,
    2.4791168270844537,
    -0.18571920468126568,
    8.655624485824363,
    -10.527932739529072,
    13.983565230732603,
};

// B_2k / (2k)!, k = 1, 2 and so on
inline constexpr double bernoulli[16] = {
    0.08333333333333333,
    -0.001388888888888889,
    3.306878306878307e-05,
    -8.267195767195768e-07,
    2.08767569878681e-08,
    -5.284190138687493e-10,
    1.3382536530684679e-11,
    -3.3896802963225827e-13,
    8.586062056277845e-15,
    -2.174868698558062e-16,
    5.5090028283602295e-18,
    -1.3954464685812522e-19,
    3.534707039629467e-21,
    -8.953517427037546e-23,
    2.267952452337683e-24,
    -5.744790668872202e-26,
};

// the positive zero of psi, in two parts
inline constexpr double digamma_root[2] = {
    1.4616321449683622,
    9.549995429965697e-17,
};

// 1 / e
inline constexpr double inverse_e[1] = {
    0.36787944117144233,
};

inline constexpr double log_2_pi[1] = {
    1.8378770664093456,
};

} // namespace for_double
#endif

} // namespace special
} // namespace mlxops
