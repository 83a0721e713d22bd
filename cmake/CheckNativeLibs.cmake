# cmake -DEXPECTED=file -DACTUAL=file -P CheckNativeLibs.cmake
# Fails if weir's static library needs system libraries that the installed package would not name.
cmake_minimum_required(VERSION 3.20)
file(STRINGS "${EXPECTED}" expected LIMIT_COUNT 1)
file(STRINGS "${ACTUAL}" actual LIMIT_COUNT 1)
string(REGEX MATCHALL "[^ ]+" expected "${expected}")
string(REGEX MATCHALL "[^ ]+" actual "${actual}")
# Asked for by the crate that declares the driver's types, and needed by nobody: weir opens the driver at run time.
list(REMOVE_ITEM actual -lcuda)
foreach(library IN LISTS actual)
  if(NOT library IN_LIST expected)
    message(FATAL_ERROR "weir: libweir.a needs ${library}, which the package does not name (${expected})")
  endif()
endforeach()
