# Runs before CPack builds the packages: adds the copyright notice and Debian's changelog to each
# package, where Debian expects them.
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)  # uses SOURCE_DATE_EPOCH if set
file(WRITE ${CPACK_TEMPORARY_DIRECTORY}/changelog
     "tutti (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium\n\n  * CHANGELOG.md in tutti-doc lists the changes.\n\n"
     " -- ${CPACK_PACKAGE_CONTACT}  ${now}\n")
execute_process(COMMAND gzip -9nf ${CPACK_TEMPORARY_DIRECTORY}/changelog COMMAND_ERROR_IS_FATAL ANY)
foreach(component IN ITEMS runtime dev doc cuda)
  string(TOUPPER ${component} upper)
  set(folder ${CPACK_TEMPORARY_DIRECTORY}/${component})
  set(package ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  set(place ${folder}/usr/share/doc/${package})
  if(IS_DIRECTORY ${folder})
    file(COPY ${CMAKE_CURRENT_LIST_DIR}/copyright ${CPACK_TEMPORARY_DIRECTORY}/changelog.gz DESTINATION ${place})
  endif()
endforeach()
# The module is opened by its path, and CUDA's libraries are in folders that no Debian package uses.
if(IS_DIRECTORY ${CPACK_TEMPORARY_DIRECTORY}/cuda)
  file(WRITE ${CPACK_TEMPORARY_DIRECTORY}/cuda/usr/share/lintian/overrides/tutti-cuda
       "tutti-cuda: custom-library-search-path\ntutti-cuda: sharedobject-in-library-directory-missing-soname\n")
endif()
