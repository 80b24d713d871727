// Certificates for tests of the wire grpc.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "cluster/control/control_client.h"
#include "tutti/core/error.h"

namespace tutti::testing {

/// A new key and a certificate that is its own authority, in a folder of this name.
inline TlsFiles make_certificate(const std::string& name) {
  // Other tests run at the same time, and members read the files again when they connect again.
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

}  // namespace tutti::testing
