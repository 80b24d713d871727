// A client that sends a server bytes and hears back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace tutti::rpc_bench {

/// Messages up to this come back as they are; of longer ones one byte is the answer.
inline constexpr std::size_t kLongestEcho = 65536;

/// Client and server in this process, connected.
class Contender {
 public:
  virtual ~Contender() = default;
  virtual std::string name() const = 0;
  /// Sends `count` messages of `bytes`, at most `at_once` without an answer; returns when all
  /// answers are there.
  virtual void exchange(std::size_t bytes, int count, int at_once) = 0;
};

/// A bidirectional stream of raw messages with nothing of tutti in it; null in builds without gRPC.
std::unique_ptr<Contender> bare_grpc_stream();

}  // namespace tutti::rpc_bench
