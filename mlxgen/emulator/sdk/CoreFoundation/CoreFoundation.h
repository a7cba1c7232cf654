// The few types of Apple's CoreFoundation that metal-cpp names. zig includes
// the headers of macOS's C library but none of its frameworks. Checking
// generated code against MLX's macOS headers (emulator/host.py) needs these
// types.

#pragma once

#include <stdint.h>

typedef double CFTimeInterval;
typedef long CFIndex;
typedef unsigned long CFTypeID;
typedef const void* CFTypeRef;
typedef const struct __CFString* CFStringRef;
