# Builds the package for the other releases of MLX that it lists, one after the
# other, each by the same CMakeLists.txt with that release (MLXGEN_MLX_SITE). A
# wheel then has the compiled files of each in releases/<release>. The rest is
# the same for all.
#
#   MLXGEN_RELEASES         the releases, if MLXGEN_ALL_RELEASES is on
#   MLXGEN_RELEASE_FOLDERS  the folders in which they are

include(ExternalProject)

set(before "")
foreach(release folder IN ZIP_LISTS MLXGEN_RELEASES MLXGEN_RELEASE_FOLDERS)
  set(root "${CMAKE_BINARY_DIR}/releases/${release}")
  # As this build was called: the same compiler, flags and system.
  list(TRANSFORM given REPLACE "^--define=" "-D" OUTPUT_VARIABLE as_here)
  ExternalProject_Add(
    "mlx-${release}"
    SOURCE_DIR "${CMAKE_CURRENT_SOURCE_DIR}"
    PREFIX "${root}"
    BINARY_DIR "${root}/build"
    INSTALL_DIR "${root}/installed"
    CMAKE_ARGS ${as_here}
               "-DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM}"
               "-DPython_EXECUTABLE=${Python_EXECUTABLE}"
               "-DPython_INCLUDE_DIR=${Python_INCLUDE_DIR}"
               "-DMLXGEN_PROJECT=${MLXGEN_PROJECT}"
               "-DMLXGEN_MLX_SITE=${folder}"
               "-DMLXGEN_MLX_PLACE=../../../mlx"
    INSTALL_COMMAND "${CMAKE_COMMAND}" --install <BINARY_DIR> --component binaries --strip
                    --prefix <INSTALL_DIR>
    BUILD_ALWAYS ON
    USES_TERMINAL_CONFIGURE ON
    USES_TERMINAL_BUILD ON
    DEPENDS ${before} _ext)
  set(before "mlx-${release}")
  install(DIRECTORY "${root}/installed/" DESTINATION "releases/${release}" USE_SOURCE_PERMISSIONS)
endforeach()
