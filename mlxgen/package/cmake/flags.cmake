# Compiler flags for packages (CMakeLists.txt) and for the shared toolchain
# (toolchain/): both must be compiled alike. Included after project() and
# find_package(Python). mlxgen/package/probe.py sets the variables that depend on
# the machine, before mlxgen_operators() is called.

include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)

option(MLXGEN_EMULATE_METAL "Let Metal kernels run on the CPU, for tests" OFF)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF) # clang's scanner is a separate package
if(MLXGEN_EMULATE_METAL)
  # Built for one test run.
  set(CMAKE_CXX_FLAGS_RELEASE "-Og -DNDEBUG")
else()
  set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ collects garbage later: a tenth less CPU time, and half a GB of memory.
  add_compile_options(--param=ggc-min-heapsize=500000)
endif()
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  # Some compilers link the C++ library statically. If such a copy exported its
  # symbols, some of them would be those of MLX's copy: numbers in messages would
  # be missing, or the process would end.
  add_link_options(LINKER:--exclude-libs,libstdc++.a)
endif()
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# mlxgen's folder
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH mlxgen_dir)
cmake_path(GET mlxgen_dir PARENT_PATH mlxgen_dir)

macro(mlxgen_find_mlx)
  # Not cached: the environment may have another release since the last run.
  unset(MLX_DIR CACHE)
  unset(MLX_LIBRARY CACHE)
  unset(nanobind_DIR CACHE)
  find_package(MLX CONFIG REQUIRED PATHS "${MLXGEN_MLX_ROOT}" NO_DEFAULT_PATH)
  find_package(nanobind CONFIG REQUIRED PATHS "${MLXGEN_NANOBIND_ROOT}/cmake"
               NO_DEFAULT_PATH)

  if(APPLE)
    # The wheel refers to frameworks by their path on the machine that built it.
    get_target_property(frameworks mlx INTERFACE_LINK_LIBRARIES)
    if(frameworks)
      list(TRANSFORM frameworks REPLACE "^/.*/([^/]+)\\.framework$"
                                        "-framework \\1")
      set_target_properties(mlx PROPERTIES INTERFACE_LINK_LIBRARIES
                                           "${frameworks}")
    endif()
  endif()
endmacro()

# A library of operators.
function(mlxgen_operators target)
  set_target_properties(${target} PROPERTIES DEFINE_SYMBOL "")
  target_include_directories(${target} SYSTEM PRIVATE ${MLX_INCLUDE_DIRS})
  target_link_libraries(${target} PUBLIC mlx)

  # Loops call vector functions only if these need not set errno or raise
  # floating-point exceptions; MLX's own kernels do neither. Products and sums
  # are fused (FMA) if the processor supports it. This is the default of g++;
  # with clang's default, results would differ more between the two.
  target_compile_options(${target} PRIVATE -Wall -Wextra -fno-math-errno
                                           -fno-trapping-math -ffp-contract=fast)

  # clang warns about every loop that is not vectorized; some cannot be.
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(${target} PRIVATE -Wno-pass-failed)
  endif()

  if(APPLE)
    check_cxx_compiler_flag(-fveclib=Darwin_libsystem_m MLXGEN_DARWIN_VECLIB)
    if(MLXGEN_DARWIN_VECLIB)
      target_compile_options(${target} PRIVATE -fveclib=Darwin_libsystem_m)
    endif()
  else()
    # A call of a function that MLX lacks is an error here, not when the library
    # is loaded.
    target_link_options(${target} PRIVATE LINKER:-z,defs)
  endif()

  # libmvec. MLXGEN_VEC_EXP tells g++ that exp and expf have variants. clang has
  # its own list, shorter on x86-64, which may name missing functions.
  if(MLXGEN_VECTOR_SYMBOLS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(TRANSFORM MLXGEN_VECTOR_SYMBOLS REPLACE "(.+)" "X(\\1)"
                                                 OUTPUT_VARIABLE symbols)
    list(JOIN symbols "\n" symbols)
    check_cxx_source_compiles(
      "#define X(f) extern \"C\" void f();
       ${symbols}
       #undef X
       #define X(f) f();
       int main() { ${symbols} }"
      MLXGEN_LINKS_LIBMVEC)
    if(MLXGEN_LINKS_LIBMVEC)
      list(TRANSFORM MLXGEN_VECTOR_FUNCTIONS TOUPPER OUTPUT_VARIABLE vector)
      list(TRANSFORM vector PREPEND MLXGEN_VEC_)
      target_compile_definitions(${target} PRIVATE ${vector})
    endif()
  endif()
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_CXX_COMPILER_ID STREQUAL
                                            "Clang")
    set(CMAKE_REQUIRED_FLAGS "-O3 -fno-math-errno -fveclib=libmvec")
    set(loops "")
    foreach(f IN LISTS MLXGEN_UNARY_FUNCTIONS)
      string(APPEND loops "LOOP(std::${f}(x[i]))\n")
    endforeach()
    foreach(f IN LISTS MLXGEN_BINARY_FUNCTIONS)
      string(APPEND loops "LOOP(std::${f}(x[i], x[i]))\n")
    endforeach()
    check_cxx_source_compiles(
      "#include <cmath>
       #define LOOP(value) for (int i = 0; i < 64; ++i) x[i] += value;
       template <typename T> void run(volatile T* seen) {
         T x[64];
         for (T& y : x) y = *seen;
         ${loops}
         for (T y : x) *seen = y;
       }
       int main() {
         volatile double d = 1;
         volatile float s = 1;
         run(&d);
         run(&s);
       }"
      MLXGEN_CLANG_LINKS_LIBMVEC)
    unset(CMAKE_REQUIRED_FLAGS)
    if(MLXGEN_CLANG_LINKS_LIBMVEC)
      target_compile_options(${target} PRIVATE -fveclib=libmvec)
    endif()
  endif()

  if(MLXGEN_EMULATE_METAL)
    # A substitute for MLX's Metal device, searched before it (docs/emulation.md).
    target_include_directories(${target} BEFORE
                               PRIVATE "${mlxgen_dir}/emulator/include")
    target_compile_definitions(${target} PRIVATE _METAL_ MLXGEN_EMULATE_METAL)
  endif()
endfunction()

# The extension module _ext.
function(mlxgen_extension)
  nanobind_add_module(_ext NB_STATIC NB_DOMAIN mlx NB_SUPPRESS_WARNINGS ${ARGN})
  set_target_properties(_ext PROPERTIES DEFINE_SYMBOL "")
  target_include_directories(_ext SYSTEM PRIVATE ${MLX_INCLUDE_DIRS})
  target_link_libraries(_ext PRIVATE mlx)
  target_compile_options(_ext PRIVATE -Wall -Wextra)
endfunction()
