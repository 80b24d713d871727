// Moves bytes between ranks; knows nothing of tensors.
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

/// A send or receive under way. Destroyed before it ended it is cancelled first: its memory is not
/// touched afterwards. Threads: one at a time.
class Work {
 public:
  virtual ~Work() = default;
  /// Makes progress without blocking; returns whether it ended. Throws as wait() does.
  virtual bool test() = 0;
  /// Throws kDeadlineExceeded naming the peer, kAborted (the reason of Transport::abort),
  /// kUnavailable when the peer is gone, kInvalidArgument naming both lengths when the peer's body
  /// has another length than the one given to recv(); its head has arrived nevertheless.
  virtual void wait(TimePoint deadline) = 0;
};

/// What a rank has sent so far: bodies and heads of messages, without the transport's own framing.
struct TransportStats {
  std::uint64_t messages_sent = 0;
  std::uint64_t bytes_sent = 0;
};

/// The n ranks of a group and the ways between them. A message is a small *head* of a length that
/// sender and receiver know (0 to 256 bytes), and a *body*. Messages of one (sender, receiver, tag)
/// arrive in the order in which they were sent; a message waits for its recv(). Memory given to
/// send() and recv() stays valid until their Work ended or was destroyed. Thread-safe.
/// Implementations: in_process/ (threads), mpi/, cluster/net (processes).
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "tcp", "shm", "in_process".
  virtual std::string_view name() const = 0;
  /// Whether ranks are processes, so that bytes are copied between them; else threads of this one.
  virtual bool spans_processes() const { return true; }

  /// To another rank, 0 <= peer < size(), peer != rank(); else kInvalidArgument.
  virtual std::unique_ptr<Work> send(int peer, std::uint64_t tag, std::span<const std::byte> head,
                                     std::span<const std::byte> body) = 0;
  virtual std::unique_ptr<Work> recv(int peer, std::uint64_t tag, std::span<std::byte> head,
                                     std::span<std::byte> body) = 0;

  /// Wakes every waiter, here and at the peers: their Work, running and later, fails with kAborted
  /// and this reason's message. The first reason counts.
  virtual void abort(const Error& reason) noexcept = 0;
  /// The first peer whose connection ended although nothing was aborted here: a value once a call
  /// has failed because of it.
  virtual std::optional<int> lost_peer() const { return std::nullopt; }

  virtual TransportStats stats() const = 0;

  /// Memory that all ranks reach (shared/host_memory.h); nullptr where not all are on one host.
  virtual std::shared_ptr<HostMemory> host_memory() { return nullptr; }
};

}  // namespace tutti
