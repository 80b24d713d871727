// Helpers for tests whose workers are processes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/multi_process_runner.h"
#include "tutti/cluster.h"
#include "tutti/tutti.h"

namespace tutti::worker_tests {

using ::testing::HasSubstr;
using testing::MultiProcessOptions;
using testing::MultiProcessRunner;
using testing::this_process;

/// Returns the strategy of this worker's job. Must be called in a worker process.
inline std::unique_ptr<MultiWorkerMirroredStrategy> connect_workers(
    const MultiWorkerOptions& options = {.local = {.devices = "cpu:0"}}) {
  return std::make_unique<MultiWorkerMirroredStrategy>(*resolver_from_environment(), options);
}

/// Strategy of a worker's job, with an open scope for the lifetime of this object. For use in
/// worker processes only.
class ScopedWorkers {
 public:
  explicit ScopedWorkers(const MultiWorkerOptions& options = {.local = {.devices = "cpu:0"}})
      : strategy_(connect_workers(options)) {}
  MultiWorkerMirroredStrategy* operator->() const { return strategy_.get(); }
  MultiWorkerMirroredStrategy& operator*() const { return *strategy_; }

 private:
  const std::unique_ptr<MultiWorkerMirroredStrategy> strategy_;
  const Scope scope_ = strategy_->scope();
};

/// Runs a process function in each task of a job. Every task must succeed.
inline testing::MultiProcessResult run_processes(const std::string& function,
                                                 const MultiProcessOptions& options,
                                                 const Json& arguments = Json::object()) {
  MultiProcessRunner runner(function, options, arguments);
  runner.start();
  return runner.join();
}

/// Same as run_processes(), but returns only the results.
inline std::vector<Json> results_of(const std::string& function, const MultiProcessOptions& options,
                                    const Json& arguments = Json::object()) {
  return run_processes(function, options, arguments).return_values;
}

/// Overload for workers, each of which must return a value.
inline std::vector<Json> results_of(const std::string& function, int workers,
                                    const Json& arguments = Json::object()) {
  std::vector<Json> values =
      results_of(function, MultiProcessOptions{.num_workers = workers}, arguments);
  EXPECT_EQ(values.size(), static_cast<std::size_t>(workers)) << function;
  return values;
}

/// Returns the code and message of the error that `fn` throws, or the code "OK".
inline Json error_as_json(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return Json::object().set("code", to_string(error.code())).set("message", error.message());
  }
  return Json::object().set("code", "OK").set("message", "");
}

inline void expect_error(const Json& error, const std::string& code,
                         const std::vector<const char*>& parts) {
  EXPECT_EQ(error.at("code").as_string(), code) << error.dump();
  for (const char* const part : parts) {
    EXPECT_THAT(error.at("message").as_string(), HasSubstr(part)) << error.dump();
  }
}

/// For use in tests. Returns the path of a folder that does not exist yet; the test program removes
/// the folder when it ends.
inline std::string new_folder(const std::string& name) {
  const std::string folder = (std::filesystem::path(::testing::TempDir()) / name).string();
  std::filesystem::remove_all(folder);
  return folder;
}

/// For use in workers. Returns a variable with one value per replica; reads outside replicas return
/// the sum.
inline Variable count_of_replicas(const std::string& name) {
  return Variable(Tensor::zeros({}), {.name = name,
                                      .synchronization = VariableSynchronization::kOnRead,
                                      .aggregation = VariableAggregation::kSum});
}

/// For use in workers. Returns a variable to which each replica adds.
inline Variable counter(const std::string& name) {
  return Variable(Tensor::zeros({}),
                  {.name = name, .trainable = false, .aggregation = VariableAggregation::kSum});
}

/// For use in workers. Adds the strategy's state and the step to `state`, and returns `state` for
/// use by a Recovery.
inline Checkpoint recoverable(Checkpoint state, Strategy& strategy, std::int64_t& step) {
  state.add_state("strategy", {[&] { return strategy.save_state(); },
                               [&](const Json& json) { strategy.restore_state(json); }});
  state.add_state("step",
                  {[&] { return Json(step); }, [&](const Json& json) { step = json.as_int(); }});
  return state;
}

}  // namespace tutti::worker_tests
