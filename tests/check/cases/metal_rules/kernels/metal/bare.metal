template <typename T>
T bare(T x) {
  return sqrt(x);
}
