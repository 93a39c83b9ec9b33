# Languages, standards, warnings and sanitizers, the same for every target.
# SPDX-License-Identifier: Apache-2.0

set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "no nvcc: install the CUDA Toolkit 13 and put nvcc on PATH "
                      "(or set CUDACXX to it)")
endif()

# PTX for every GPU of today and tomorrow (and for the reference model, which
# reads it), machine code for the one that we measure on.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "75-virtual;90-real")
endif()
# Shared, so that the reference model can take the runtime's place.
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)
find_file(IPCLAB_CUDA_HEADER cuda.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
find_package(Threads REQUIRED)

# MPI, for the lessons that also run one rank a node; all else does without.
set(MPI_CXX_SKIP_MPICXX TRUE)
find_package(MPI QUIET COMPONENTS CXX)
if(NOT MPI_CXX_FOUND OR NOT MPIEXEC_EXECUTABLE)
  message(STATUS "no MPI: no test sample.*.mpi (Debian: apt-get install libopenmpi-dev openmpi-bin)")
endif()

# A message says samples/01…, not where somebody's checkout lies.
set(IPCLAB_OPTIONS -Wall -Wextra -Werror -fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=)
set(IPCLAB_SANITIZE "" CACHE STRING "sanitizers for the harness: address,undefined or thread")
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${IPCLAB_OPTIONS}>")
string(REPLACE ";" "," options "${IPCLAB_OPTIONS}")
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler ${options} -Werror all-warnings -no-compress>")
if(IPCLAB_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${IPCLAB_SANITIZE};-fno-omit-frame-pointer;-Wno-maybe-uninitialized>")
  if(IPCLAB_SANITIZE STREQUAL thread)  # it does not know fences, and says so
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>")
  endif()
  add_link_options(-fsanitize=${IPCLAB_SANITIZE})
endif()

# GoogleTest: the system's library, or its sources where a distribution ships
# only those.
find_package(GTest QUIET)
if(NOT GTest_FOUND)
  set(source /usr/src/googletest)
  if(NOT EXISTS ${source}/CMakeLists.txt)
    message(FATAL_ERROR "no GoogleTest: install libgtest-dev")
  endif()
  set(INSTALL_GTEST OFF)
  set(BUILD_GMOCK OFF)
  add_subdirectory(${source} ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL SYSTEM)
  if(NOT TARGET GTest::gtest)
    add_library(GTest::gtest ALIAS gtest)
  endif()
endif()
