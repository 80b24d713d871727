# Installation: headers, libraries and the package configuration file for find_package(tutti).
include(CMakePackageConfigHelpers)

get_property(modules GLOBAL PROPERTY TUTTI_MODULES)
set(targets tutti_tutti)
foreach(module IN LISTS modules)
  if(TUTTI_SHARED AND NOT module STREQUAL "plugin")
    set(module shared_${module})
  endif()
  list(APPEND targets tutti_${module})
endforeach()
# Components: runtime (programs and the library that they load), cuda, dev, doc.
install(TARGETS ${targets} EXPORT tutti_targets ARCHIVE COMPONENT dev
        LIBRARY COMPONENT runtime NAMELINK_COMPONENT dev)
install(TARGETS tutti_cli COMPONENT runtime)
if(TUTTI_SHARED)
  set_target_properties(tutti_cli PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
endif()

install(DIRECTORY include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev FILES_MATCHING PATTERN "*.h")

# Installs the guides, the reference if it was built (target `reference`), and the examples as a
# separate project.
install(FILES LICENSE README.md CHANGELOG.md CITATION.cff .github/SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc PATTERN "__pycache__" EXCLUDE
        PATTERN "docs/reference" EXCLUDE REGEX "docs/pictures/.*\\.(py|csv)$" EXCLUDE)
install(DIRECTORY ${PROJECT_BINARY_DIR}/reference/site/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/reference COMPONENT doc OPTIONAL)
install(CODE "set(tutti_pages \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}\")" COMPONENT doc)
install(SCRIPT cmake/package/installed_links.cmake COMPONENT doc)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(EXPORT tutti_targets NAMESPACE tutti:: DESTINATION ${package_folder} COMPONENT dev)
configure_package_config_file(cmake/tuttiConfig.cmake.in ${PROJECT_BINARY_DIR}/tuttiConfig.cmake
                              INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
              cmake/FindDNNL2.cmake cmake/FindGRPCCPP.cmake cmake/FindISAL.cmake cmake/FindMPILIB.cmake
              cmake/FindUtf8Proc.cmake
        DESTINATION ${package_folder} COMPONENT dev)

include(TuttiPkgConfig)
