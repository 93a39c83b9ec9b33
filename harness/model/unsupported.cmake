# SPDX-License-Identifier: Apache-2.0
# Finds the functions that a CUDA header declares, so that a new toolkit needs only
# a build. Each function becomes a weak symbol. A call of this symbol reports that the
# model does not have the function. If the model has the function, the model's own
# symbol replaces the weak symbol.

# ipclab_declared_functions(NAMES MARKER PREFIX HEADER...): the functions that
# the headers declare after MARKER, or that a macro of a header names.
function(ipclab_declared_functions names marker prefix)
  set(found "")
  foreach(header IN LISTS ARGN)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
    file(READ ${header} text)
    string(REGEX MATCHALL
      "${marker}[ \r\n]+${prefix}[A-Z][A-Za-z0-9_]*[ \r\n]*\\(" declared
      "${text}")
    string(REGEX MATCHALL
      "# *define[ \t]+${prefix}[A-Z][A-Za-z0-9_]*[ \t]+[^\r\n]*" redirected
      "${text}")
    foreach(line IN LISTS declared redirected)
      string(REGEX MATCHALL "${prefix}[A-Z][A-Za-z0-9_]*" words "${line}")
      list(APPEND found ${words})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES found)
  # Per-thread default streams have other names: see README.
  list(FILTER found EXCLUDE REGEX "_pt[sd][sz]$")
  list(SORT found)
  set(${names} ${found} PARENT_SCOPE)
endfunction()

# ipclab_write_unsupported(FILE NAME...): writes one line for each name.
function(ipclab_write_unsupported file)
  list(TRANSFORM ARGN REPLACE "(.+)" "IPCLAB_UNSUPPORTED(\\1)")
  list(JOIN ARGN "\n" lines)
  file(CONFIGURE OUTPUT ${file} CONTENT "${lines}\n" @ONLY)
endfunction()
