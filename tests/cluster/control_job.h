// What the tests of the control plane share: servers, members in this process, waiting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/control/control_client.h"
#include "cluster/control/control_server.h"
#include "tests/support/waiting.h"
#include "tests/support/warnings.h"

namespace tutti::control_job {

using namespace std::chrono_literals;

using testing::comes_true;
using testing::in;
using testing::late;

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

}  // namespace tutti::control_job
