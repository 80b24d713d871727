// Functions of a test program that run in separate processes, and these processes' tasks.
// SPDX-License-Identifier: Apache-2.0
//
//     TUTTI_PROCESS_FUNCTION(add_index) {  // const Json& arguments -> Json
//       std::cout << "here is " << testing::this_process().name() << std::endl;
//       testing::process_barrier();
//       return Json(arguments.at("start").as_int() + testing::this_process().index);
//     }
//
// Define the function at namespace scope, under a name that is unique in the test program, and
// start it with multi_process_runner.h. Json() means "no result"; the runner rethrows exceptions.
#pragma once

#include <optional>
#include <string>

#include "tools/launch/job_plan.h"
#include "tutti/core/clock.h"
#include "tutti/core/json.h"

namespace tutti::testing {

using ProcessFunction = Json (*)(const Json& arguments);

/// Returns the task of this process. Throws kFailedPrecondition in the test's own process.
launch::Task this_process();

/// Returns the number of earlier starts of this task. Throws kFailedPrecondition in the test's own
/// process.
int num_restarts();

/// Waits until every process of the cluster has arrived. Throws kDeadlineExceeded, with the number
/// of arrivals, after `timeout`, and kFailedPrecondition if called in the test's own process.
void process_barrier(Duration timeout = std::chrono::seconds(60));

/// For main(): runs the function for which this process was started and returns its exit code;
/// returns nullopt in the test's own process.
std::optional<int> run_process_function();

namespace functions {
/// Registers a function. For use by TUTTI_PROCESS_FUNCTION.
bool add_process_function(const char* name, ProcessFunction function);
/// Returns the initial contents of the file that the processes of a cluster use as a barrier.
std::string barrier_bytes(int num_processes);
}  // namespace functions

}  // namespace tutti::testing

#define TUTTI_PROCESS_FUNCTION(name)                                   \
  static ::tutti::Json name(const ::tutti::Json& arguments);           \
  [[maybe_unused]] static const bool name##_is_known =                 \
      ::tutti::testing::functions::add_process_function(#name, &name); \
  static ::tutti::Json name([[maybe_unused]] const ::tutti::Json& arguments)

inline constexpr const char* kFunctionVariable = "TUTTI_TEST_FUNCTION";
inline constexpr const char* kFolderVariable = "TUTTI_TEST_FOLDER";
inline constexpr const char* kArgumentsVariable = "TUTTI_TEST_ARGUMENTS";
inline constexpr const char* kResultVariable = "TUTTI_TEST_RESULT";

/// Returns the path of the failure file of the process that writes `result_file`; the file exists
/// only after a failure.
inline std::string failure_file(const std::string& result_file) {
  return result_file + ".failures";
}

inline std::string barrier_file(const std::string& folder) { return folder + "/barrier"; }
