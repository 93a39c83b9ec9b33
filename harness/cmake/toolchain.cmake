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
  message(FATAL_ERROR "no nvcc: run ci/setup, or put the nvcc of a CUDA Toolkit 12 or 13 on PATH "
                      "(or set CUDACXX to it)")
endif()

set(CMAKE_CUDA_ARCHITECTURES OFF)  # see IPCLAB_GPU_CODE
# Programs use the shared runtime, because the reference model must be able to replace it.
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(CUDAToolkit_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "CUDA ${CUDAToolkit_VERSION} is too old: run ci/setup, or put the nvcc of CUDA 12.0 or newer on PATH")
endif()
# Embeds PTX for every GPU that the toolkit's drivers know, also for future ones and for the
# reference model, and machine code for the GPUs that are named here. All machine code is
# made from one PTX, so nvcc compiles the device code of a file to PTX only once.
set(IPCLAB_GPU_CODE "90" CACHE STRING
  "compute capabilities to make machine code for, in addition to PTX: 80;90;100")
if(CUDAToolkit_VERSION VERSION_LESS 13)  # CUDA 13 dropped Volta
  set(ptx compute_70)
else()
  set(ptx compute_75)
endif()
set(code ${ptx})
foreach(capability IN LISTS IPCLAB_GPU_CODE)
  list(APPEND code sm_${capability})
endforeach()
list(JOIN code "," code)
set(code "--generate-code=arch=${ptx},code=[${code}]")
find_file(IPCLAB_CUDA_HEADER cuda.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
find_package(Threads REQUIRED)
link_libraries(Threads::Threads rt)  # up to glibc 2.33 they have threads and shm_open()
# The loader does not always search the toolkit's folder. It searches LD_LIBRARY_PATH,
# which can name the model, before this path.
set(CMAKE_BUILD_RPATH ${CUDAToolkit_LIBRARY_DIR})
# After an installation (the wheel of ci/package) the programs are in ipclab/suite/bin of
# a site-packages folder. The wheel of the runtime is in the same folder.
if(CUDAToolkit_VERSION VERSION_LESS 13)
  set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../nvidia/cuda_runtime/lib")
else()
  set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../nvidia/cu13/lib")
endif()

# GNU gold links in a third of the time of GNU ld.
find_program(IPCLAB_GOLD ld.gold)
if(IPCLAB_QUICK AND IPCLAB_GOLD)
  add_link_options(-fuse-ld=gold)
endif()

# MPI, for the lessons that can also run as MPI ranks; nothing else needs MPI.
set(MPI_CXX_SKIP_MPICXX TRUE)
find_package(MPI QUIET COMPONENTS CXX)
if(NOT MPI_CXX_FOUND OR NOT MPIEXEC_EXECUTABLE)
  message(STATUS "no MPI: no test sample.*.mpi (Debian: apt-get install libopenmpi-dev openmpi-bin)")
endif()

# Messages name a file as samples/01…, without the path of this checkout.
set(IPCLAB_OPTIONS -Wall -Wextra -fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=)
set(IPCLAB_SANITIZE "" CACHE STRING "sanitizers for the harness: address,undefined or thread")
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${IPCLAB_OPTIONS}>")
string(REPLACE ";" "," options "${IPCLAB_OPTIONS}")
if(CMAKE_COMPILE_WARNING_AS_ERROR)  # CMake handles the warnings of nvcc itself
  string(APPEND options ",-Werror")
endif()
# Without this option nvcc writes its process id into each object, and two builds of the
# same sources differ. With the option, a few objects still differ.
set(same --objdir-as-tempdir)
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:SHELL:${code} -Xcompiler ${options} -no-compress ${same}>")
if(IPCLAB_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${IPCLAB_SANITIZE};-fno-omit-frame-pointer;-Wno-maybe-uninitialized>")
  if(IPCLAB_SANITIZE STREQUAL thread)  # ThreadSanitizer does not know fences, and warns
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>")
  endif()
  add_link_options(-fsanitize=${IPCLAB_SANITIZE})
endif()

# GoogleTest: the system's library, or its sources. The sources come from a distribution
# that ships only sources, or from the wheel that ci/setup installs.
find_package(GTest QUIET)
if(NOT GTest_FOUND)
  find_path(IPCLAB_GTEST src/gtest-all.cc
    PATHS /usr/src/googletest/googletest ${CMAKE_SOURCE_DIR}/.venv/googletest/src/gtest_vendor
    NO_DEFAULT_PATH)
  if(NOT IPCLAB_GTEST)
    message(FATAL_ERROR "no GoogleTest: run ci/setup, or install libgtest-dev")
  endif()
  add_library(gtest STATIC EXCLUDE_FROM_ALL ${IPCLAB_GTEST}/src/gtest-all.cc)
  target_include_directories(gtest SYSTEM PUBLIC ${IPCLAB_GTEST}/include PRIVATE ${IPCLAB_GTEST})
  target_link_libraries(gtest PUBLIC Threads::Threads)
  add_library(GTest::gtest ALIAS gtest)
endif()
