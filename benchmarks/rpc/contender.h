// Client that sends bytes to a server and waits for replies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace tutti::rpc_bench {

/// Maximum length of an echoed message, in bytes. A longer message is answered with one byte.
inline constexpr std::size_t kLongestEcho = 65536;

/// A connected client and server, both in this process.
class Contender {
 public:
  virtual ~Contender() = default;
  virtual std::string name() const = 0;
  /// Sends `count` messages of `bytes` bytes each, with at most `at_once` unanswered at a time.
  /// Returns after all replies have arrived.
  virtual void exchange(std::size_t bytes, int count, int at_once) = 0;
};

/// Returns a bidirectional stream of raw messages that does not use tutti; null in builds without
/// gRPC.
std::unique_ptr<Contender> bare_grpc_stream();

}  // namespace tutti::rpc_bench
