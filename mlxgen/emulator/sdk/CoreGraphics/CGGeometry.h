// The one type of Apple's CGGeometry.h that metal-cpp names, see
// CoreFoundation.h.

#pragma once

typedef double CGFloat;
typedef struct CGSize {
  CGFloat width;
  CGFloat height;
} CGSize;
