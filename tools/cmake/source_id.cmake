# Records the sources that a program was built from, in a header that every build remakes. Only programs that ask for it depend on it,
# so a commit relinks nothing else. Run as a script it writes the header if it has changed.
if(CMAKE_SCRIPT_MODE_FILE)
  set(id "no commit")
  execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET RESULT_VARIABLE code)
  if(code EQUAL 0)
    set(id "${commit}")
    execute_process(COMMAND git -C ${SOURCE} status --porcelain --untracked-files=no OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      string(APPEND id " with changes")
    endif()
  endif()
  set(before "")
  if(EXISTS ${HEADER})
    file(READ ${HEADER} before)
  endif()
  set(text "#define PERDURE_SOURCE_ID \"${id}\"\n")
  if(NOT text STREQUAL before)
    file(WRITE ${HEADER} "${text}")
  endif()
  return()
endif()

set(PERDURE_SOURCE_ID_DIRECTORY ${CMAKE_BINARY_DIR}/source_id)
add_custom_target(perdure_source_id
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DHEADER=${PERDURE_SOURCE_ID_DIRECTORY}/perdure_source_id.h
    -P ${CMAKE_CURRENT_LIST_FILE}
  BYPRODUCTS ${PERDURE_SOURCE_ID_DIRECTORY}/perdure_source_id.h VERBATIM)
function(perdure_says_source_id target)
  target_include_directories(${target} PRIVATE ${PERDURE_SOURCE_ID_DIRECTORY})
  add_dependencies(${target} perdure_source_id)
endfunction()
