# Installs the libraries, the headers, the CMake package and weir.pc. All paths in the installed files are
# relative to the files themselves, so a prefix may be moved.

foreach(weir_dir IN ITEMS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
  if(IS_ABSOLUTE "${${weir_dir}}")
    message(FATAL_ERROR "weir: ${weir_dir} must be relative to the prefix, but is ${${weir_dir}}")
  endif()
endforeach()

set(weir_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/weir")
set(weir_pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

file(RELATIVE_PATH WEIR_LIBDIR_FROM_CMAKE "/p/${weir_cmake_dir}" "/p/${CMAKE_INSTALL_LIBDIR}")
file(RELATIVE_PATH WEIR_INCLUDEDIR_FROM_CMAKE "/p/${weir_cmake_dir}" "/p/${CMAKE_INSTALL_INCLUDEDIR}")
file(RELATIVE_PATH WEIR_PREFIX_FROM_PC "/p/${weir_pc_dir}" "/p")

configure_file(cmake/weir-config.cmake.in weir-config.cmake @ONLY)
configure_file(cmake/weir.pc.in weir.pc @ONLY)
write_basic_package_version_file(weir-config-version.cmake COMPATIBILITY SameMajorVersion)

install(FILES "${weir_lib_dir}/${weir_so}" DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
install(FILES "${weir_lib_dir}/${weir_soname}" "${weir_lib_dir}/libweir.so" "${weir_lib_dir}/libweir.a"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${weir_include_dir}/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(FILES "${CMAKE_CURRENT_SOURCE_DIR}/python/weir.py" DESTINATION "${CMAKE_INSTALL_DATADIR}/weir/python")
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/weir-config.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/weir-config-version.cmake"
  DESTINATION "${weir_cmake_dir}")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/weir.pc" DESTINATION "${weir_pc_dir}")
