/* What the two files of thrust_systems.cpp have in common. Each names its system first. */
#ifndef WEIR_C_TESTS_CPP_THRUST_SYSTEMS_H
#define WEIR_C_TESTS_CPP_THRUST_SYSTEMS_H

#include "../check.h"
#include <typeindex>
#include <utility>
#include <weir/thrust.hpp>

using types = std::pair<std::type_index, std::type_index>;

/* Of the CUDA system: its allocator and its resource, and whether its allocator takes such a pool. */
types thrust_types_of_cuda();
bool thrust_allocator_of_cuda_takes(const weir::pool &pool);

#endif
