// Starts, observes and ends the processes of a multi-process test.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/multi_process_runner.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "core/file.h"
#include "tests/support/process_function.h"
#include "tools/launch/job_plan.h"
#include "tutti/core/error.h"

namespace tutti::testing {
namespace {

constexpr int kPollMilliseconds = 2;  // time between checks for exited processes
/// Time for which the other processes may continue after the chief has failed; same as in tf.
constexpr std::chrono::seconds kAloneAfterChief{3};

/// Folder that is removed at the end of this object's lifetime.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(std::filesystem::temp_directory_path() / "tutti_processes_XXXXXX") {
    if (!::mkdtemp(path_.data()))
      fail(ErrorCode::kUnavailable, "MultiProcessRunner: cannot create folder ", path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<launch::Task> local_tasks(const MultiProcessOptions& options) {
  const launch::TaskCounts counts{options.num_chiefs, options.num_workers, options.num_ps};
  std::vector<std::string> addresses;
  for (const int port : launch::free_ports(counts.total())) {
    addresses.push_back(concat("127.0.0.1:", port));
  }
  return launch::make_tasks(counts, addresses);
}

}  // namespace

bool has_line(const std::vector<std::string>& output, std::string_view part) {
  return num_lines(output, part) > 0;
}

int num_lines(const std::vector<std::string>& output, std::string_view part) {
  return static_cast<int>(std::ranges::count_if(
      output, [&](const std::string& line) { return line.find(part) != std::string::npos; }));
}

struct MultiProcessRunner::Impl {
  /// Task, and its current or latest process.
  struct Place {
    launch::Task task;
    std::unique_ptr<launch::ChildProcess> process;
    std::optional<launch::ExitStatus> status;  // set when the process has ended
    int num_starts = 0;
    bool terminated = false;
    bool ended_with_chief = false;
    std::string function, arguments_file, result_file;
    std::vector<std::string> lines;  // output of the current process

    bool running() const { return process && !status; }
  };

  Impl(std::string name, MultiProcessOptions chosen, Json given)
      : function(std::move(name)), options(std::move(chosen)), arguments(std::move(given)) {
    for (launch::Task& task : local_tasks(options)) places.emplace_back().task = std::move(task);
    write_file_atomically(barrier_file(folder.path()),
                          functions::barrier_bytes(static_cast<int>(places.size())));
  }

  Place& place(const std::string& type, int index) {
    for (Place& each : places) {
      if (each.task.type == type && each.task.index == index) return each;
    }
    fail(ErrorCode::kNotFound, "MultiProcessRunner: no task ", type, "-", index);
  }

  void start(Place& at, const std::string& function_name, const Json& values) {
    if (at.running()) {
      fail(ErrorCode::kFailedPrecondition, "MultiProcessRunner: ", at.task.name(),
           " is already running");
    }
    at.function = function_name;
    at.arguments_file = concat(folder.path(), "/", at.task.name(), ".arguments");
    write_file_atomically(at.arguments_file, values.dump());
    start_process(at);
  }

  void start_process(Place& at) {
    at.result_file = concat(folder.path(), "/", at.task.name(), ".", at.num_starts, ".result");
    std::vector<launch::Task> tasks;
    for (const Place& each : places) tasks.push_back(each.task);
    launch::ChildOptions child;
    child.arguments = {"/proc/self/exe"};
    child.environment = options.environment;
    child.environment.insert(child.environment.end(),
                             {{"TF_CONFIG", launch::tf_config(tasks, at.task)},
                              {"TUTTI_RESTART", std::to_string(at.num_starts)},
                              {kFunctionVariable, at.function},
                              {kFolderVariable, folder.path()},
                              {kArgumentsVariable, at.arguments_file},
                              {kResultVariable, at.result_file}});
    at.status.reset();
    at.terminated = at.ended_with_chief = false;
    at.lines.clear();
    at.process = std::make_unique<launch::ChildProcess>(child);
    ++at.num_starts;
  }

  void hear(Place& at, std::string_view line) {
    std::string text = concat("[", at.task.name(), "]: ", line);
    if (options.stream_output) std::printf("%s\n", text.c_str());
    result.output.push_back(std::move(text));
    at.lines.emplace_back(line);
  }

  /// Reads new output and checks for exited processes.
  void look() {
    for (Place& at : places) {
      if (!at.running()) continue;
      const auto on_line = [&](launch::Stream, std::string_view line) { hear(at, line); };
      at.process->read_lines(on_line);
      at.status = at.process->try_wait();
      if (!at.status) continue;
      at.process->finish_lines(on_line);
      report_failures(at);
      if (options.auto_restart && !at.status->success() && !at.terminated) start_process(at);
    }
    end_with_chief();
  }

  /// Returns the chief if it failed and is not restarted, otherwise null.
  const Place* failed_chief() const {
    const auto found = std::ranges::find_if(places, [](const Place& at) {
      return at.task.type == "chief" && at.status && !at.status->success() && !at.terminated;
    });
    return found == places.end() ? nullptr : &*found;
  }

  /// Kills the remaining processes once kAloneAfterChief has passed since the chief failed.
  void end_with_chief() {
    if (!failed_chief()) return others_end.reset();
    const TimePoint now = Clock::system().now();
    if (!others_end) others_end = deadline_after(now, kAloneAfterChief);
    if (now < *others_end) return;
    for (Place& at : places) {
      if (!at.running() || at.terminated) continue;
      at.ended_with_chief = at.terminated = true;
      at.process->send(SIGKILL);
    }
  }

  /// Reports the failed assertions of an exited process as failures of the running test.
  void report_failures(const Place& at) const {
    const std::string path = failure_file(at.result_file);
    if (!std::filesystem::exists(path)) return;
    ADD_FAILURE() << "in " << at.task.name() << ": " << read_file(path);
  }

  void wait_a_little() {
    std::vector<pollfd> fds;
    for (const Place& at : places) {
      if (!at.running()) continue;
      for (const launch::Stream stream : {launch::Stream::kOutput, launch::Stream::kError}) {
        fds.push_back({at.process->fd(stream), POLLIN, 0});
      }
    }
    ::poll(fds.data(), fds.size(), kPollMilliseconds);
  }

  /// Polls until `done()` returns true; returns false if the deadline passes first.
  template <class Done>
  bool look_until(Duration timeout, const Done& done) {
    const TimePoint deadline = deadline_after(Clock::system().now(), timeout);
    for (look(); !done(); look()) {
      if (Clock::system().now() > deadline) return false;
      wait_a_little();
    }
    return true;
  }

  void end(Place& at) {
    at.terminated = true;
    if (!at.running()) return;
    at.process->send(SIGKILL);
    look_until(kTimeout, [&] { return !at.running(); });
  }

  template <class Which>
  std::string names_of(const Which& which) const {
    std::vector<std::string> names;
    for (const Place& at : places) {
      if (!which(at)) continue;
      names.push_back(concat(at.task.name(), at.lines.empty()
                                                 ? " (wrote nothing)"
                                                 : " (last line: " + at.lines.back() + ")"));
    }
    return tutti::join(names);
  }

  std::optional<Json> outcome_of(const Place& at) const {
    if (!at.process || !std::filesystem::exists(at.result_file)) return std::nullopt;
    return Json::parse(read_file(at.result_file), at.result_file);
  }

  void collect_values() {
    result.return_values.clear();
    for (const Place& at : places) {
      const std::optional<Json> outcome = outcome_of(at);
      const Json* const value = outcome ? outcome->find("value") : nullptr;
      if (value && !value->is_null()) result.return_values.push_back(*value);
    }
  }

  /// Returns the error that the task's function threw; nullopt if it threw none.
  std::optional<Error> thrown_by(const Place& at) const {
    const std::optional<Json> outcome = outcome_of(at);
    if (!outcome || !outcome->find("message")) return std::nullopt;
    return Error(static_cast<ErrorCode>(outcome->at("code").as_int()),
                 concat(at.task.name(), ": ", outcome->at("message").as_string()));
  }

  /// Returns an error if the process failed and the test did not terminate it.
  std::optional<Error> crash_of(const Place& at) const {
    if (!at.status || at.status->success() || at.terminated) return std::nullopt;
    return Error(ErrorCode::kAborted, concat(at.task.name(), ": ", at.status->to_string()));
  }

  /// Returns an error that describes the chief's failure and names the processes that were killed
  /// as a result.
  std::optional<Error> failure_of_chief() const {
    const Place* const chief = failed_chief();
    if (!chief) return std::nullopt;
    std::optional<Error> error = thrown_by(*chief);
    if (!error) error = crash_of(*chief);
    const std::string others = names_of([](const Place& at) { return at.ended_with_chief; });
    if (others.empty()) return error;
    return Error(error->code(), concat(error->message(), "; killed as a result: ", others));
  }

  /// Throws the chief's error first, because the other errors may be consequences of it.
  void throw_failures() const {
    if (const auto error = failure_of_chief()) throw *error;
    for (const Place& at : places) {
      if (const auto error = thrown_by(at)) throw *error;
    }
    for (const Place& at : places) {
      if (const auto error = crash_of(at)) throw *error;
    }
  }

  const TemporaryFolder folder;
  const std::string function;
  const MultiProcessOptions options;
  const Json arguments;
  std::vector<Place> places;
  MultiProcessResult result;
  // Time at which remaining processes are killed; set when the chief fails.
  std::optional<TimePoint> others_end;
};

MultiProcessRunner::MultiProcessRunner(std::string function, MultiProcessOptions options,
                                       Json arguments)
    : impl_(std::make_unique<Impl>(std::move(function), std::move(options), std::move(arguments))) {
}

MultiProcessRunner::~MultiProcessRunner() {
  for (Impl::Place& at : impl_->places) {
    if (!at.running()) continue;
    at.process.reset();
    impl_->report_failures(at);
  }
}

void MultiProcessRunner::start() {
  for (Impl::Place& at : impl_->places) impl_->start(at, impl_->function, impl_->arguments);
}

void MultiProcessRunner::start_single_process(const std::string& type, int index) {
  impl_->start(impl_->place(type, index), impl_->function, impl_->arguments);
}

void MultiProcessRunner::start_single_process(const std::string& type, int index,
                                              std::string function, Json arguments) {
  impl_->start(impl_->place(type, index), function, arguments);
}

const MultiProcessResult& MultiProcessRunner::join(Duration timeout) {
  const bool all_ended = impl_->look_until(timeout, [&] {
    return std::ranges::none_of(impl_->places, [](const auto& at) { return at.running(); });
  });
  const std::string running = impl_->names_of([](const auto& at) { return at.running(); });
  if (!all_ended) terminate_all();
  impl_->collect_values();
  impl_->throw_failures();
  if (!all_ended) {
    fail(ErrorCode::kDeadlineExceeded, "MultiProcessRunner: timed out after ",
         std::chrono::duration<double>(timeout).count(), " s; still running: ", running);
  }
  return impl_->result;
}

const MultiProcessResult& MultiProcessRunner::result() const { return impl_->result; }

std::string MultiProcessRunner::wait_for_line(const std::string& type, int index,
                                              std::string_view part, Duration timeout) {
  Impl::Place& at = impl_->place(type, index);
  std::size_t seen = 0;
  const auto found = [&] {
    for (seen = std::min(seen, at.lines.size()); seen < at.lines.size(); ++seen) {
      if (at.lines[seen].find(part) != std::string::npos) return true;
    }
    return false;
  };
  const bool in_time = impl_->look_until(timeout, [&] { return found() || !at.running(); });
  if (found()) return at.lines[seen];
  if (at.ended_with_chief) throw *impl_->failure_of_chief();
  fail(in_time ? ErrorCode::kAborted : ErrorCode::kDeadlineExceeded,
       "MultiProcessRunner: ", at.task.name(), in_time ? " ended" : " is still running",
       "; expected a line that contains '", part, "'");
}

void MultiProcessRunner::terminate(const std::string& type, int index) {
  impl_->end(impl_->place(type, index));
}

void MultiProcessRunner::terminate_all() {
  for (Impl::Place& at : impl_->places) impl_->end(at);
}

void MultiProcessRunner::send(const std::string& type, int index, int signal_number) {
  Impl::Place& at = impl_->place(type, index);
  if (at.running()) at.process->send(signal_number);
}

bool MultiProcessRunner::process_exists(const std::string& type, int index) {
  impl_->look();
  return impl_->place(type, index).running();
}

pid_t MultiProcessRunner::process_id(const std::string& type, int index) {
  const Impl::Place& at = impl_->place(type, index);
  if (!at.process)
    fail(ErrorCode::kFailedPrecondition, "MultiProcessRunner: ", at.task.name(),
         " was not started");
  return at.process->pid();
}

launch::ExitStatus MultiProcessRunner::exit_status(const std::string& type, int index) {
  impl_->look();
  const Impl::Place& at = impl_->place(type, index);
  if (!at.status)
    fail(ErrorCode::kFailedPrecondition, "MultiProcessRunner: ", at.task.name(), " has not exited");
  return *at.status;
}

std::string MultiProcessRunner::address(const std::string& type, int index) const {
  return impl_->place(type, index).task.address;
}

}  // namespace tutti::testing
