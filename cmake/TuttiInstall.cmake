# Installation: headers, libraries and the package configuration file for find_package(tutti).
include(CMakePackageConfigHelpers)

get_property(modules GLOBAL PROPERTY TUTTI_MODULES)
set(targets tutti_tutti)
foreach(module IN LISTS modules)
  list(APPEND targets tutti_${module})
endforeach()
install(TARGETS ${targets} EXPORT tutti_targets)
install(TARGETS tutti_cli)

get_property(headers GLOBAL PROPERTY TUTTI_PUBLIC_HEADERS)
foreach(header IN LISTS headers)
  cmake_path(GET header PARENT_PATH place)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti/${place})
endforeach()

# Guides, and the examples as a project by itself.
install(FILES LICENSE README.md CHANGELOG.md CITATION.cff SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc
        PATTERN "__pycache__" EXCLUDE PATTERN "coverage*" EXCLUDE)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(EXPORT tutti_targets NAMESPACE tutti:: DESTINATION ${package_folder})
configure_package_config_file(cmake/tuttiConfig.cmake.in ${CMAKE_BINARY_DIR}/tuttiConfig.cmake
                              INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tuttiConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tuttiConfig.cmake ${CMAKE_BINARY_DIR}/tuttiConfigVersion.cmake
              cmake/FindDNNL2.cmake cmake/FindGRPCCPP.cmake cmake/FindISAL.cmake DESTINATION ${package_folder})
