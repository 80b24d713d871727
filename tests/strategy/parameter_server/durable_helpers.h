// What tests of snapshots and journals share: folders, damage, processes that end at any call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "strategy/parameter_server/server/server_files.h"
#include "tests/strategy/parameter_server/store_helpers.h"
#include "tests/support/file_faults.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::durable_tests {

using internal::SavedSnapshot;
using internal::ShardSnapshot;
using internal::SnapshotFolder;
using internal::StoreSnapshot;

/// A folder of its own, in memory where there is such: thousands of saves shall not wait for a
/// disk.
class OwnFolder {
 public:
  explicit OwnFolder(const std::string& name)
      : path_(concat(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ::testing::TempDir(), "/tutti_",
                     name, "_", static_cast<int>(::getpid()))) {
    clear();
  }
  ~OwnFolder() { clear(); }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;
  void clear() const { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string path_;
};

/// Keeps the warnings while it lives.
class KeptWarnings {
 public:
  KeptWarnings()
      : previous_(set_log_sink([this](LogLevel level, std::string_view line) {
          if (level >= LogLevel::kWarning) lines.emplace_back(line);
        })) {}
  ~KeptWarnings() { set_log_sink(previous_); }
  KeptWarnings(const KeptWarnings&) = delete;
  KeptWarnings& operator=(const KeptWarnings&) = delete;
  std::vector<std::string> lines;

 private:
  LogSink previous_;
};

inline std::string file_of(const SavedSnapshot& saved) {
  std::string bytes;
  internal::write_snapshot(saved, [&](std::span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return bytes;
}

inline SavedSnapshot read_bytes(const std::string& bytes) {
  return internal::read_snapshot("/some/ps_0", bytes.size(),
                                 internal::source_of(std::as_bytes(std::span(bytes))));
}

/// A server whose every value is `number`, and whose table says that closure `number` was applied.
inline StoreSnapshot all_values(std::int64_t number) {
  internal::VariableStore store("ps 0");
  store_tests::Client client(store, static_cast<std::uint64_t>(number),
                             internal::UpdateStream::Kind::kClosure);
  const auto spec = store_tests::whole("w", {300}, DType::kInt64);
  const Tensor values = Tensor::full({300}, static_cast<double>(number), DType::kInt64);
  client.call({internal::CreateShard{spec, Tensor::zeros({300}, DType::kInt64)},
               internal::AssignShard{spec.id(), AssignOp::kAssign, values}});
  return store.snapshot();
}

/// The number, if all values and the table agree on one; -1 for a mixture.
inline std::int64_t number_of(const StoreSnapshot& snapshot) {
  const Tensor value = snapshot.shards.at(0).value;
  const std::int64_t number = value.host_span<std::int64_t>()[0];
  const bool is_whole = snapshot.table == all_values(number).table &&
                        std::ranges::count(value.host_span<std::int64_t>(), number) == 300;
  return is_whole ? number : -1;
}

struct Crash {
  bool finished = false;  // the call was never reached
  int num_done = 0;       // how often `body` said that something was done
};

/// Runs `body` in a process of its own that ends at the `call`-th call that changes `folder`.
inline Crash crash_at(int call, file_faults::Action action, const std::string& folder,
                      const std::function<void(const std::function<void()>& done)>& body) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) {
    file_faults::arm(folder, action, call);
    body([&] {
      if (::write(pipe_ends[1], "x", 1) != 1) std::abort();
    });
    ::_exit(0);
  }
  ::close(pipe_ends[1]);
  Crash crash;
  for (char byte; ::read(pipe_ends[0], &byte, 1) == 1;) ++crash.num_done;
  ::close(pipe_ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  crash.finished = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  EXPECT_TRUE(crash.finished || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) << status;
  return crash;
}

}  // namespace tutti::durable_tests
