# Runs cargo, puts the libraries under their installed names into <build>/lib, and defines the targets
# weir::weir and weir::static for this build tree.

find_program(WEIR_CARGO cargo HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin" REQUIRED)
find_program(WEIR_RUSTC rustc HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin" REQUIRED)

# The system libraries a static Rust library needs, as rustc itself names them. Asked of an empty library
# here, because the targets need the answer before anything is built; checked against weir's own when it is.
file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/native/empty.rs" "")
execute_process(
  COMMAND "${WEIR_RUSTC}" --crate-type staticlib --print native-static-libs=expected.txt empty.rs -o empty.a
  WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/native"
  RESULT_VARIABLE weir_result ERROR_VARIABLE weir_error)
if(weir_result)
  message(FATAL_ERROR "weir: rustc did not name its native static libraries: ${weir_error}")
endif()
file(REMOVE "${CMAKE_CURRENT_BINARY_DIR}/native/empty.a")
file(STRINGS "${CMAKE_CURRENT_BINARY_DIR}/native/expected.txt" WEIR_NATIVE_LIBS LIMIT_COUNT 1)
string(STRIP "${WEIR_NATIVE_LIBS}" WEIR_NATIVE_LIBS)
string(REPLACE " " ";" WEIR_NATIVE_LIBS_LIST "${WEIR_NATIVE_LIBS}")

if(WEIR_CARGO_PROFILE STREQUAL "dev")
  set(weir_profile_dir debug)
else()
  set(weir_profile_dir "${WEIR_CARGO_PROFILE}")
endif()
set(weir_cargo_dir "${CMAKE_CURRENT_BINARY_DIR}/cargo")
set(weir_lib_dir "${CMAKE_CURRENT_BINARY_DIR}/lib")
set(weir_include_dir "${CMAKE_CURRENT_SOURCE_DIR}/include")
set(weir_so "libweir.so.${PROJECT_VERSION}")
set(weir_soname "libweir.so.${PROJECT_VERSION_MAJOR}")

# Blanks separate, as in a shell, and so do semicolons, as in CMake.
separate_arguments(weir_cargo_flags UNIX_COMMAND "${WEIR_CARGO_FLAGS}")

# cargo decides what is out of date, so it is always asked, and runs where it finds .cargo/config.toml. Without a library
# for Rust beside them, whose users could name any of its functions and variables, these two need not keep each within
# reach of others.
add_custom_target(weir_cargo ALL
  COMMAND "${WEIR_CARGO}" rustc --locked --lib --crate-type cdylib,staticlib --profile "${WEIR_CARGO_PROFILE}"
          --manifest-path "${CMAKE_CURRENT_SOURCE_DIR}/Cargo.toml" --target-dir "${weir_cargo_dir}" ${weir_cargo_flags}
          -- --print "native-static-libs=${CMAKE_CURRENT_BINARY_DIR}/native/actual.txt"
  COMMAND "${CMAKE_COMMAND}" "-DEXPECTED=${CMAKE_CURRENT_BINARY_DIR}/native/expected.txt"
          "-DACTUAL=${CMAKE_CURRENT_BINARY_DIR}/native/actual.txt"
          -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/CheckNativeLibs.cmake"
  COMMAND "${CMAKE_COMMAND}" -E make_directory "${weir_lib_dir}"
  COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${weir_cargo_dir}/${weir_profile_dir}/libweir.so" "${weir_lib_dir}/${weir_so}"
  COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${weir_cargo_dir}/${weir_profile_dir}/libweir.a" "${weir_lib_dir}/libweir.a"
  COMMAND "${CMAKE_COMMAND}" -E create_symlink "${weir_so}" "${weir_lib_dir}/${weir_soname}"
  COMMAND "${CMAKE_COMMAND}" -E create_symlink "${weir_soname}" "${weir_lib_dir}/libweir.so"
  BYPRODUCTS "${weir_lib_dir}/${weir_so}" "${weir_lib_dir}/libweir.a"
  WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
  COMMENT "Building weir with cargo"
  VERBATIM USES_TERMINAL)

add_library(weir::weir SHARED IMPORTED GLOBAL)
set_target_properties(weir::weir PROPERTIES
  IMPORTED_LOCATION "${weir_lib_dir}/${weir_so}"
  IMPORTED_SONAME "${weir_soname}"
  INTERFACE_INCLUDE_DIRECTORIES "${weir_include_dir}")
add_dependencies(weir::weir weir_cargo)

add_library(weir::static STATIC IMPORTED GLOBAL)
set_target_properties(weir::static PROPERTIES
  IMPORTED_LOCATION "${weir_lib_dir}/libweir.a"
  INTERFACE_INCLUDE_DIRECTORIES "${weir_include_dir}"
  INTERFACE_LINK_LIBRARIES "${WEIR_NATIVE_LIBS_LIST}")
add_dependencies(weir::static weir_cargo)
