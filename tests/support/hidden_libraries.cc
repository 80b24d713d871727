// Hides shared libraries from a program that opens them at run time. Load it with LD_PRELOAD.
// SPDX-License-Identifier: Apache-2.0
//
// TUTTI_HIDDEN_LIBRARIES: fragments of the libraries' names, separated by colons.
#include <dlfcn.h>

#include <cstdlib>
#include <sstream>
#include <string>

extern "C" void* dlopen(const char* file, int flags) {
  using Open = void* (*)(const char*, int);
  static const Open open = reinterpret_cast<Open>(::dlsym(RTLD_NEXT, "dlopen"));
  const char* const hidden = std::getenv("TUTTI_HIDDEN_LIBRARIES");
  std::istringstream names(hidden ? hidden : "");
  for (std::string name; file && std::getline(names, name, ':');) {
    if (!name.empty() && std::string(file).find(name) != std::string::npos) {
      // Fails with the error for a missing file.
      return open("a library that this test hides", flags);
    }
  }
  return open(file, flags);
}
