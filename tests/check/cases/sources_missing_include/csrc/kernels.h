#pragma once

#include "helprs.h"

template <typename T>
T scale(T x, T a) {
  return a * x;
}
