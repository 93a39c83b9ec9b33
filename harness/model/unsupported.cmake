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
    # The forms for per-thread default streams.
    string(REGEX MATCHALL "_API_PT[DS][SZ][(]${prefix}[A-Z][A-Za-z0-9_]*" threaded
      "${text}")
    foreach(word IN LISTS threaded)
      string(REGEX REPLACE "_API_(PT..)[(](.*)" "\\2;\\1" word "${word}")
      list(POP_BACK word suffix)
      string(TOLOWER ${suffix} suffix)
      list(APPEND found ${word}_${suffix})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES found)
  list(SORT found)
  set(${names} ${found} PARENT_SCOPE)
endfunction()

# ipclab_write_unsupported(FILE NAME...): writes one line for each name.
function(ipclab_write_unsupported file)
  list(TRANSFORM ARGN REPLACE "(.+)" "IPCLAB_UNSUPPORTED(\\1)")
  list(JOIN ARGN "\n" lines)
  file(CONFIGURE OUTPUT ${file} CONTENT "${lines}\n" @ONLY)
endfunction()

# ipclab_write_versions(FOLDER HEADERS NAME...): finds out which version of CUDA brought each
# function of the driver. HEADERS are cudaTypedefs.h and its kind, which have one type for
# each form of a function, with that version. The newest form has the highest suffix.
# Writes three files into FOLDER:
#   entry_points.inc     IPCLAB_ENTRY(base name, version, symbol) for each form
#   newer_functions.inc  IPCLAB_NEWER(symbol, version) for the forms that came after CUDA 12.0
#   newer_names.h        gives each of these another name, under which the model defines it,
#                        if the name is not a macro of cuda.h for a newer form
function(ipclab_write_versions folder headers)
  set(bases "")
  foreach(header IN LISTS headers)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
    file(READ ${header} text)
    string(REGEX MATCHALL "[*]PFN_cu[A-Za-z0-9_]+_v[0-9]+[)]" types "${text}")
    foreach(type IN LISTS types)
      string(REGEX MATCH "PFN_(.+)_v([0-9]+)" matched "${type}")
      list(APPEND bases ${CMAKE_MATCH_1})
      list(APPEND versions_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES bases)
  set(entries "")
  set(newer "")
  set(names "#pragma once\n")
  foreach(base IN LISTS bases)
    list(REMOVE_DUPLICATES versions_${base})
    list(SORT versions_${base} COMPARE NATURAL ORDER DESCENDING)
    foreach(symbol ${base}_v4 ${base}_v3 ${base}_v2 ${base})
      if(symbol IN_LIST ARGN AND versions_${base})
        list(POP_FRONT versions_${base} version)
        string(APPEND entries "IPCLAB_ENTRY(\"${base}\", ${version}, \"${symbol}\")\n")
        if(version GREATER 12000)
          string(APPEND newer "IPCLAB_NEWER(${symbol}, ${version})\n")
          string(APPEND names
            "#ifndef ${symbol}\n#define ${symbol} ipclab_${symbol}\n#endif\n")
        endif()
      endif()
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT ${folder}/entry_points.inc CONTENT "${entries}" @ONLY)
  file(CONFIGURE OUTPUT ${folder}/newer_functions.inc CONTENT "${newer}" @ONLY)
  file(CONFIGURE OUTPUT ${folder}/newer_names.h CONTENT "${names}" @ONLY)
endfunction()
