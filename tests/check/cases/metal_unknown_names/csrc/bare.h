#pragma once
template <typename T>
T bare(T x) {
  return exp(x);
}
