// Helpers for tests of the control plane: servers, in-process members, waits, certificates.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cluster/control/control_client.h"
#include "cluster/control/control_server.h"
#include "tests/support/waiting.h"
#include "tests/support/warnings.h"
#include "tutti/core/error.h"

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

/// Creates a key and a self-signed certificate in a folder that depends on `name`.
inline TlsFiles make_certificate(const std::string& name) {
  // A separate folder, because tests run concurrently and members read the files again when they
  // reconnect.
  const std::string folder = concat(::testing::TempDir(), "/tutti_tls_", name, "_", ::getpid());
  std::filesystem::create_directories(folder);
  const TlsFiles files{folder + "/cert.pem", folder + "/key.pem", folder + "/cert.pem"};
  const std::string command =
      concat("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 ",
             "-subj /CN=tutti -addext subjectAltName=IP:127.0.0.1,IP:::1 -keyout ",
             files.private_key, " -out ", files.certificate, " 2> ", folder, "/log");
  EXPECT_EQ(std::system(command.c_str()), 0) << std::ifstream(folder + "/log").rdbuf();
  return files;
}

}  // namespace tutti::control_job
