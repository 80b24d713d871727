// What the tests of the control plane share: servers, members in this process, waiting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/control/control_client.h"
#include "cluster/control/control_server.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"

namespace tutti::control_job {

using namespace std::chrono_literals;

inline TimePoint after(Duration duration) {
  return deadline_after(Clock::system().now(), duration);
}

inline std::vector<MemberTask> tasks_of(int n) {
  std::vector<MemberTask> tasks;
  for (int i = 0; i < n; ++i) tasks.push_back({"worker", i, concat("127.0.0.1:90", 10 + i)});
  return tasks;
}

inline ControlServerOptions server_options() {
  ControlServerOptions options;
  options.linger = 0s;
  return options;
}

inline std::unique_ptr<ControlClient> join(const ControlServer& server, int index,
                                           ControlOptions options = {}) {
  options.timeout = 60s;
  return connect_control(server.target(), tasks_of(index + 1).back(), options);
}

/// Collects log lines while it lives.
class Lines {
 public:
  Lines() {
    previous_ = set_log_sink([this](LogLevel, std::string_view line) { add(line); });
  }
  ~Lines() { set_log_sink(previous_); }
  std::string all() {
    MutexLock lock(mutex_);
    return text_;
  }

 private:
  void add(std::string_view line) {
    MutexLock lock(mutex_);
    text_ += concat(line, "\n");
  }
  Mutex mutex_;
  std::string text_ TUTTI_GUARDED_BY(mutex_);
  LogSink previous_;
};

inline bool comes_true(const std::function<bool()>& condition) {
  const TimePoint end = after(60s);
  while (!condition()) {
    if (Clock::system().now() > end) return false;
    Clock::system().sleep_for(2ms);
  }
  return true;
}

}  // namespace tutti::control_job
