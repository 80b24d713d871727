// Implements the part of a multi-process test that runs in the child processes.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process_function.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <new>

#include "core/file.h"
#include "tutti/core/error.h"

namespace tutti::testing {
namespace {

/// Barrier in a file that all processes of a cluster map into memory.
struct SharedBarrier {
  std::atomic<int> num_processes, num_arrived, round;
};
static_assert(std::atomic<int>::is_always_lock_free);

std::map<std::string, ProcessFunction>& process_functions() {
  static std::map<std::string, ProcessFunction> functions;
  return functions;
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// Returns this process's TF_CONFIG. Throws kFailedPrecondition in the test's own process.
Json own_config(const char* who) {
  if (variable(kFunctionVariable).empty()) {
    fail(ErrorCode::kFailedPrecondition, who,
         ": expected a process that a MultiProcessRunner started, got the test itself");
  }
  return Json::parse(variable("TF_CONFIG"), "TF_CONFIG");
}

SharedBarrier& shared_barrier() {
  const std::string path = barrier_file(variable(kFolderVariable));
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* const memory =
      ::mmap(nullptr, sizeof(SharedBarrier), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) fail(ErrorCode::kUnavailable, "process_barrier: cannot map ", path);
  return *std::launder(reinterpret_cast<SharedBarrier*>(memory));
}

/// Listener that writes each failure to a file immediately, because the process may be killed
/// immediately afterwards.
class FailureFile : public ::testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::ofstream file(failure_file(variable(kResultVariable)), std::ios::app);
    file << (result.file_name() ? result.file_name() : "?") << ':' << result.line_number() << ": "
         << result.message() << std::endl;
  }
};

Json call(const std::string& name) {
  const auto found = process_functions().find(name);
  if (found == process_functions().end()) {
    fail(ErrorCode::kNotFound,
         "TUTTI_TEST_FUNCTION: expected a TUTTI_PROCESS_FUNCTION of this program, got '", name,
         "'");
  }
  const Json arguments = Json::parse(read_file(variable(kArgumentsVariable)), "arguments");
  Json outcome = Json::object();
  try {
    outcome.set("value", found->second(arguments));
  } catch (const Error& error) {
    outcome.set("code", static_cast<int>(error.code()));
    outcome.set("message", error.message());
  } catch (const std::exception& error) {
    outcome.set("code", static_cast<int>(ErrorCode::kInternal));
    outcome.set("message", error.what());
  }
  return outcome;
}

}  // namespace

launch::Task this_process() {
  const Json config = own_config("this_process");
  const Json& task = config.at("task");
  launch::Task self{task.at("type").as_string(), static_cast<int>(task.at("index").as_int()), ""};
  const Json::Array& addresses = config.at("cluster").at(self.type).as_array();
  self.address = addresses.at(static_cast<std::size_t>(self.index)).as_string();
  return self;
}

int num_restarts() {
  own_config("num_restarts");
  return std::atoi(variable("TUTTI_RESTART").c_str());
}

void process_barrier(Duration timeout) {
  own_config("process_barrier");
  static SharedBarrier& barrier = shared_barrier();
  const TimePoint deadline = deadline_after(Clock::system().now(), timeout);
  const int round = barrier.round.load();
  const int num_processes = barrier.num_processes.load();
  if (barrier.num_arrived.fetch_add(1) + 1 == num_processes) {
    barrier.num_arrived.store(0);
    barrier.round.store(round + 1);
    return;
  }
  while (barrier.round.load() == round) {
    if (Clock::system().now() > deadline) {
      fail(ErrorCode::kDeadlineExceeded, "process_barrier: timed out after ",
           barrier.num_arrived.load(), " of ", num_processes, " processes arrived");
    }
    Clock::system().sleep_for(std::chrono::microseconds(200));
  }
}

std::optional<int> run_process_function() {
  const std::string name = variable(kFunctionVariable);
  if (name.empty()) return std::nullopt;
  // Flushes each line, so that it is visible even if the process is killed immediately
  // afterwards.
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  ::testing::UnitTest::GetInstance()->listeners().Append(new FailureFile);  // takes ownership
  const Json outcome = call(name);
  write_file_atomically(variable(kResultVariable), outcome.dump());
  if (const Json* const message = outcome.find("message")) {
    std::fprintf(stderr, "error: %s\n", message->as_string().c_str());
    return 1;
  }
  return 0;
}

namespace functions {

bool add_process_function(const char* name, ProcessFunction function) {
  const bool added = process_functions().emplace(name, function).second;
  TUTTI_CHECK(added, "TUTTI_PROCESS_FUNCTION: expected unique names, got two of ", name);
  return added;
}

std::string barrier_bytes(int num_processes) {
  const int numbers[3] = {num_processes, 0, 0};
  static_assert(sizeof(numbers) == sizeof(SharedBarrier));
  return {reinterpret_cast<const char*>(numbers), sizeof(numbers)};
}

}  // namespace functions
}  // namespace tutti::testing
