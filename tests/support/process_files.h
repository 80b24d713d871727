// Where a MultiProcessRunner and its processes leave things for each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti::testing {

inline constexpr const char* kFunctionVariable = "TUTTI_TEST_FUNCTION";
inline constexpr const char* kFolderVariable = "TUTTI_TEST_FOLDER";
inline constexpr const char* kArgumentsVariable = "TUTTI_TEST_ARGUMENTS";
inline constexpr const char* kResultVariable = "TUTTI_TEST_RESULT";

/// What failed in the process whose result goes to `result_file`; no file: nothing.
inline std::string failure_file(const std::string& result_file) {
  return result_file + ".failures";
}

inline std::string barrier_file(const std::string& folder) { return folder + "/barrier"; }

}  // namespace tutti::testing
