inline float squared(float& x) {
  return std::pow(x, 2.0f);
}
inline float factorial(int n) {
  return n < 2 ? 1 : n * factorial(n - 1);
}
