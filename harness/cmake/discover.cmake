# CTest itself reads this file, once for each program of scenarios. The file asks `program`
# for its tests and adds them. The program prints one line for each test:
# "Suite.Name<TAB>requirement<TAB>gpus<TAB>labels"; the labels are some of "alone",
# "shared" and "second_gpu", or none.
# SPDX-License-Identifier: Apache-2.0
cmake_policy(PUSH)
cmake_policy(VERSION 3.25)

if(EXISTS ${program})
  execute_process(
    COMMAND ${program} --ipclab_list
    OUTPUT_VARIABLE tests
    ERROR_VARIABLE errors
    RESULT_VARIABLE result
    TIMEOUT 60)
else()
  set(result "not built yet")
endif()

if(NOT result EQUAL 0)
  # Adds one test that fails and says why: a program that cannot list its tests must not pass.
  string(REPLACE ";" "," errors "${errors}")
  add_test(${prefix}LIST ${CMAKE_COMMAND} -E cat "${program}: ${result} ${errors}")
  set_tests_properties(${prefix}LIST PROPERTIES LABELS "${labels};gpu0" TIMEOUT 10)
else()
  string(REGEX MATCHALL "[^\n]+" tests "${tests}")
  foreach(test IN LISTS tests)
    if(NOT test MATCHES "^([^\t]+)\t([^\t]*)\t([0-9]+)\t([a-z_ ]*)$")
      continue()  # another line that the program printed
    endif()
    set(name ${CMAKE_MATCH_1})
    set(requirement ${CMAKE_MATCH_2})
    set(gpus ${CMAKE_MATCH_3})
    string(REPLACE " " ";" label "${CMAKE_MATCH_4}")
    set(all ${labels} gpu${gpus} ${label})
    if(requirement)
      list(APPEND all ${requirement})
    endif()
    add_test(${prefix}${name} ${program} --gtest_filter=${name} --gtest_brief=1)
    set_tests_properties(${prefix}${name} PROPERTIES
      LABELS "${all}"
      TIMEOUT ${timeout}
      SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
    if("alone" IN_LIST label)
      set_tests_properties(${prefix}${name} PROPERTIES RUN_SERIAL TRUE)
    endif()
    if(gpus GREATER 0)
      set_tests_properties(${prefix}${name} PROPERTIES RESOURCE_GROUPS "${gpus},gpus:1")
    endif()
  endforeach()
endif()
cmake_policy(POP)
