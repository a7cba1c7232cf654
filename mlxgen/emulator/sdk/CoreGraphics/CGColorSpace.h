// The one type of Apple's CGColorSpace.h that metal-cpp names, see
// CoreFoundation.h.

#pragma once

typedef struct CGColorSpace* CGColorSpaceRef;
