// The one type of Apple's IOSurface that metal-cpp names, see CoreFoundation.h.

#pragma once

typedef struct __IOSurface* IOSurfaceRef;
