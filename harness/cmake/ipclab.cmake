# Functions that make the targets and the tests. The folder of a lesson calls one function,
# and the folder of the lesson's mirror calls another function. The runner then reads
# ctest --show-only=json-v1, and the documentation reads lessons.json.
# SPDX-License-Identifier: Apache-2.0

set_property(GLOBAL PROPERTY IPCLAB_LESSONS "")

# Python for the tests, with the packages that ci/setup installs: the Python of .venv, or
# the system's Python.
find_program(IPCLAB_PYTHON NAMES python3 PATHS ${CMAKE_SOURCE_DIR}/.venv/bin NO_DEFAULT_PATH)
find_program(IPCLAB_PYTHON NAMES python3 REQUIRED)

# Sets the variable `folder` to the name of the folder that CMake reads: 01_legacy_memory.
# Sets the variable `target` to this name without the number, the name of a lesson's target.
function(ipc_lesson folder target)
  get_filename_component(name ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(NOT name MATCHES "^[0-9][0-9]_([a-z0-9_]+)$")
    message(FATAL_ERROR "${name}: the folder of a lesson must be called NN_topic")
  endif()
  set(${folder} ${name} PARENT_SCOPE)
  set(${target} ${CMAKE_MATCH_1} PARENT_SCOPE)
endfunction()

# ipc_add_sample(TITLE text [GPUS n] [NEEDS text] [TOOLKIT version]
#                [PROFILE name] [BUILDS_ON folder...] [TIMEOUT seconds] [ALONE] [MPI])
#
# The lesson of this folder: target topic from topic.cu, CTest sample.NN_topic.
#   TITLE      the text in the list of lessons
#   GPUS       how many GPUs the lesson needs (1)
#   NEEDS      what else the lesson needs, in words for its reader
#   TOOLKIT    the oldest CUDA Toolkit that has the lesson's functions, if it is newer
#              than 12.0; if the lesson is built with an older toolkit, it only skips
#   PROFILE    the machine that the reference model must imitate for the lesson, if
#              the number of GPUs does not say enough
#   BUILDS_ON  lessons that a reader should know before this lesson
#   TIMEOUT    seconds after which the lesson counts as hung (30)
#   ALONE      no other test may use its GPUs meanwhile: the lesson measures their memory
#   MPI        with -DUSE_MPI, the lesson's source is also a program of two ranks: if MPI
#              is installed, the function adds target topic_mpi and CTest
#              sample.NN_topic.mpi
function(ipc_add_sample)
  cmake_parse_arguments(PARSE_ARGV 0 arg "ALONE;MPI" "TITLE;GPUS;NEEDS;TOOLKIT;PROFILE;TIMEOUT" "BUILDS_ON")
  ipc_lesson(folder topic)
  if(NOT arg_TITLE OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${folder}: ipc_add_sample(TITLE text [GPUS n] [BUILDS_ON folder...])")
  endif()
  if(NOT arg_GPUS)
    set(arg_GPUS 1)
  endif()
  if(NOT arg_PROFILE)
    if(arg_GPUS EQUAL 1)
      set(arg_PROFILE one-gpu)
    else()
      set(arg_PROFILE two-gpus)
    endif()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 30)
  endif()
  foreach(before IN LISTS arg_BUILDS_ON)
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/../${before} OR NOT "${before}" STRLESS "${folder}")
      message(FATAL_ERROR "${folder}: BUILDS_ON ${before} is not an earlier lesson")
    endif()
  endforeach()

  add_executable(${topic} ${topic}.cu)
  install(TARGETS ${topic} DESTINATION bin)
  set_property(GLOBAL APPEND PROPERTY IPCLAB_PROGRAMS $<TARGET_FILE:${topic}>)
  add_test(NAME sample.${folder} COMMAND ${topic})
  set(tests sample.${folder})
  if(arg_MPI AND MPI_CXX_FOUND AND MPIEXEC_EXECUTABLE)
    add_executable(${topic}_mpi ${topic}.cu)
    target_compile_definitions(${topic}_mpi PRIVATE USE_MPI)
    target_link_libraries(${topic}_mpi PRIVATE MPI::MPI_CXX)
    ipc_two_ranks(start)
    add_test(NAME sample.${folder}.mpi COMMAND ${start} $<TARGET_FILE:${topic}_mpi>)
    list(APPEND tests sample.${folder}.mpi)
  endif()
  set_tests_properties(
    ${tests}
    PROPERTIES LABELS "sample;${folder};gpu${arg_GPUS}"
               TIMEOUT ${arg_TIMEOUT}
               SKIP_RETURN_CODE 77
               RESOURCE_GROUPS "${arg_GPUS},gpus:1")
  if(arg_ALONE)
    set_property(TEST ${tests} APPEND PROPERTY LABELS alone)
    set_property(TEST ${tests} PROPERTY RUN_SERIAL TRUE)
  endif()

  list(TRANSFORM arg_BUILDS_ON REPLACE "(.+)" "\"\\1\"")
  list(JOIN arg_BUILDS_ON ", " before)
  set_property(GLOBAL APPEND PROPERTY IPCLAB_LESSONS
    "{\"lesson\": \"${folder}\", \"title\": \"${arg_TITLE}\", \"gpus\": ${arg_GPUS}, \"needs\": \"${arg_NEEDS}\", \"toolkit\": \"${arg_TOOLKIT}\", \"profile\": \"${arg_PROFILE}\", \"builds_on\": [${before}]}")
endfunction()

# The command that starts a program as two ranks on this machine. It also works on a
# single core, and as root, which is the usual user in a container.
function(ipc_two_ranks command)
  set(start ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 2)
  execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(version MATCHES "Open ?(MPI|RTE)")
    list(APPEND start --oversubscribe)
    execute_process(COMMAND id -u OUTPUT_VARIABLE user)
    if(user EQUAL 0)
      list(APPEND start --allow-run-as-root)
    endif()
  endif()
  set(${command} ${start} PARENT_SCOPE)
endfunction()

# ipc_add_conformance([TIMEOUT seconds])
#
# The mirror of the lesson of the same folder: target topic_test from
# topic_test.cu and topic_subject_test.cu …, one CTest conformance.NN_topic.Suite.Name for
# each TEST.
#   TIMEOUT  seconds after which CTest ends a TEST (120); the referee has
#            shorter deadlines of its own
function(ipc_add_conformance)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "TIMEOUT" "")
  ipc_lesson(folder topic)
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${folder}: ipc_add_conformance([TIMEOUT seconds])")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${topic}_*test.cu)
  ipc_straight_to_cxx(${sources})
  add_executable(${topic}_test ${sources})
  install(TARGETS ${topic}_test DESTINATION bin)
  set_property(GLOBAL APPEND PROPERTY IPCLAB_PROGRAMS $<TARGET_FILE:${topic}_test>)
  target_link_libraries(${topic}_test PRIVATE ipclab_cuda)
  target_compile_definitions(
    ${topic}_test PRIVATE IPCLAB_CUDA_HEADER="${IPCLAB_CUDA_HEADER}")
  if(NOT TARGET ipclab_test_headers)
    # Headers that take half of the compile time of these files.
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/test_headers.cc CONTENT "\n")
    add_library(ipclab_test_headers OBJECT ${CMAKE_BINARY_DIR}/test_headers.cc)
    target_link_libraries(ipclab_test_headers PRIVATE ipclab_cuda)
    target_compile_definitions(
      ipclab_test_headers PRIVATE IPCLAB_CUDA_HEADER="${IPCLAB_CUDA_HEADER}")
    target_precompile_headers(ipclab_test_headers PRIVATE
      <functional> <map> <memory> <optional> <string> <thread> <vector>
      <cuda.h> <cuda_runtime_api.h> <gtest/gtest.h>
      ${CMAKE_SOURCE_DIR}/harness/scenario/both_apis.h
      ${CMAKE_SOURCE_DIR}/harness/scenario/pool.h
      ${CMAKE_SOURCE_DIR}/harness/scenario/vmm.h)
  endif()
  target_precompile_headers(${topic}_test REUSE_FROM ipclab_test_headers)
  ipc_discover(${topic}_test conformance.${folder}. "conformance;${folder}" ${arg_TIMEOUT})
endfunction()

# ipc_add_finding(source)
#
# The reproducer NN_name/name.cu of a finding: target name, and part of the target
# `findings`. It is no test of CTest, because on a driver with the fault it exits with 1.
# A build for users (IPCLAB_TESTS=OFF) makes it only with the target `findings`.
function(ipc_add_finding source)
  get_filename_component(name ${source} NAME_WE)
  if(NOT source MATCHES "^[0-9][0-9]_${name}/")
    message(FATAL_ERROR "${source}: a finding must be called NN_name/name.cu")
  endif()
  ipc_straight_to_cxx(${source})
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE CUDA::cudart CUDA::cuda_driver Threads::Threads)
  # They name only the first fields of a structure, so that they stay short.
  target_compile_options(${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wno-missing-field-initializers>")
  add_dependencies(findings ${name})
  if(NOT IPCLAB_TESTS)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
  endif()
endfunction()

# ipc_straight_to_cxx(file...): compiles a .cu with the C++ compiler if the file contains no
# kernel and includes no lesson's header. Such a file is plain C++. The C++ compiler needs
# a quarter of nvcc's time, because nvcc parses such a file three times.
function(ipc_straight_to_cxx)
  foreach(file IN LISTS ARGN)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(STRINGS ${file} kernels REGEX "__(global|device|constant|managed)__|<<<|^#include \"samples/[0-9]" LIMIT_COUNT 1)
    if(NOT kernels)
      set_source_files_properties(${file} PROPERTIES LANGUAGE CXX)
    endif()
  endforeach()
endfunction()

# ipc_add_tests(target prefix timeout): adds the tests of the harness itself that `target`, a
# program of scenarios, contains: one CTest harness.<prefix>.Suite.Name for each TEST.
function(ipc_add_tests target prefix timeout)
  ipc_discover(${target} harness.${prefix}. "harness" ${timeout})
endfunction()

# Adds the tests of a program each time CTest starts: the program lists its tests, their
# requirements and how many GPUs they need. (gtest_discover_tests() handles neither
# requirements nor GPUs, and drops all labels except the first.)
function(ipc_discover target prefix labels timeout)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_tests.cmake)
  file(GENERATE OUTPUT ${file} CONTENT
"set(program [==[$<TARGET_FILE:${target}>]==])
set(prefix [==[${prefix}]==])
set(labels [==[${labels}]==])
set(timeout ${timeout})
include([==[${CMAKE_SOURCE_DIR}/harness/cmake/discover.cmake]==])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()

# Call this after all lessons. It writes the facts about lessons that the documentation
# needs, and checks that the model's interpreter can read every kernel of the lessons.
function(ipc_finish)
  get_property(known GLOBAL PROPERTY IPCLAB_LESSONS)
  list(JOIN known ",\n" lessons)
  file(WRITE ${CMAKE_BINARY_DIR}/lessons.json "[\n${lessons}\n]\n")

  get_property(programs GLOBAL PROPERTY IPCLAB_PROGRAMS)
  if(TARGET ipclab_ptx_check AND programs)
    add_test(NAME harness.ptx.every_kernel COMMAND ipclab_ptx_check ${programs})
    set_tests_properties(harness.ptx.every_kernel PROPERTIES LABELS harness TIMEOUT 600)
  endif()
endfunction()

# ipc_add_pytest(name file [TIMEOUT seconds] [ENVIRONMENT var=value...]): CTest
# harness.<name> runs that file of pytest tests with IPCLAB_PYTHON.
function(ipc_add_pytest name file)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "TIMEOUT" "ENVIRONMENT")
  add_test(NAME harness.${name}
           COMMAND ${IPCLAB_PYTHON} -m pytest -q -p no:cacheprovider ${file}
           WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties(harness.${name} PROPERTIES
    LABELS harness
    TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1;${arg_ENVIRONMENT}")
endfunction()
