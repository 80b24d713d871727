// Transport of bytes between ranks, independent of tensors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"

namespace tutti {

class HostMemory;

/// A send or receive in progress. The destructor cancels it if it has not completed; the buffer is
/// not accessed afterwards. Not thread-safe.
class Work {
 public:
  virtual ~Work() = default;
  /// Makes progress without blocking; returns true if the operation has ended. Throws as wait()
  /// does.
  virtual bool test() = 0;
  /// Waits until this work has ended. Throws kDeadlineExceeded, naming the peer; kAborted with the
  /// reason passed to Transport::abort(); kUnavailable if the peer exited; and, after receiving the
  /// head, kInvalidArgument, naming both lengths, if the body's length is not the one passed to
  /// recv().
  virtual void wait(TimePoint deadline) = 0;
};

/// Totals of the messages that a rank has sent: heads and bodies, without the transport's own
/// framing.
struct TransportStats {
  std::uint64_t messages_sent = 0;
  std::uint64_t bytes_sent = 0;
};

/// The n ranks of a group and the connections between them. A message consists of a small *head*,
/// whose length (0 to 256 bytes) sender and receiver both know, and a *body*. Messages with the
/// same (sender, receiver, tag) arrive in the order in which they were sent; each is held until its
/// recv(). Memory passed to send() and recv() must stay valid until their Work has ended or is
/// destroyed. Thread-safe. Implementations: in_process/ (threads), mpi/, cluster/net (processes).
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns a name such as "tcp", "shm" or "in_process".
  virtual std::string_view name() const = 0;
  /// Returns true if ranks are processes, so that bytes are copied; false if ranks are threads.
  virtual bool spans_processes() const { return true; }

  /// Start sending a message to a rank, or receiving one from it. Throw kInvalidArgument unless 0
  /// <= peer < size() and peer != rank().
  virtual std::unique_ptr<Work> send(int peer, std::uint64_t tag, std::span<const std::byte> head,
                                     std::span<const std::byte> body) = 0;
  virtual std::unique_ptr<Work> recv(int peer, std::uint64_t tag, std::span<std::byte> head,
                                     std::span<std::byte> body) = 0;

  /// Wakes all waiting threads of this rank and its peers. Pending and later Work on all of these
  /// ranks fails with kAborted and this reason's message. Only the first reason counts.
  virtual void abort(const Error& reason) noexcept = 0;
  /// Returns the first peer whose connection ended before this transport was aborted; nullopt until
  /// the lost connection has made a call fail.
  virtual std::optional<int> lost_peer() const { return std::nullopt; }

  virtual TransportStats stats() const = 0;

  /// Returns the memory that the ranks share (shared/host_memory.h); nullptr unless all ranks are
  /// on one host.
  virtual std::shared_ptr<HostMemory> host_memory() { return nullptr; }
};

}  // namespace tutti
