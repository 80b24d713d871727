# Finds MPI's library. A program that links an installed tutti needs no other part of MPI. Result:
# MPILIB_FOUND, target MPILIB::mpi. (FindMPI requires a language and its compiler, but projects in C
# or C++ may use tutti.)
find_library(MPILIB_LIBRARY NAMES mpi mpich HINTS ${MPILIB_HINTS} $ENV{MPI_HOME}
             PATH_SUFFIXES lib openmpi/lib mpich/lib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(MPILIB REQUIRED_VARS MPILIB_LIBRARY)
if(MPILIB_FOUND AND NOT TARGET MPILIB::mpi)
  add_library(MPILIB::mpi UNKNOWN IMPORTED)
  set_target_properties(MPILIB::mpi PROPERTIES IMPORTED_LOCATION "${MPILIB_LIBRARY}")
endif()
mark_as_advanced(MPILIB_LIBRARY)
