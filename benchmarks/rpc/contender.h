// A client that sends bytes to a server and waits for answers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace tutti::rpc_bench {

/// Messages up to this size are echoed; longer ones are answered with one byte.
inline constexpr std::size_t kLongestEcho = 65536;

/// Connected client and server in this process.
class Contender {
 public:
  virtual ~Contender() = default;
  virtual std::string name() const = 0;
  /// Sends `count` messages of `bytes`, at most `at_once` without an answer; returns when all
  /// answers have arrived.
  virtual void exchange(std::size_t bytes, int count, int at_once) = 0;
};

/// Returns a bidirectional stream of raw messages without tutti; null in builds without gRPC.
std::unique_ptr<Contender> bare_grpc_stream();

}  // namespace tutti::rpc_bench
