// Moves bytes between ranks; knows nothing of tensors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  /// The same for who is in no hurry: nothing is done to bring the end about. A send may then go on
  /// until the peer has said that it has the message, which saves a copy of it.
  virtual bool ended_by_now() { return test(); }
  /// Whether this is a send that still needs its body, but not where it is now.
  virtual bool can_move_body() const { return false; }
  /// Only then. Calls `move`, which puts the body to `to` (of the same length) and may change the
  /// memory where it was; nothing is read meanwhile.
  virtual void move_body(std::span<const std::byte> /*to*/, const std::function<void()>& move) {
    move();
  }
  /// Throws kDeadlineExceeded naming the peer, kAborted (the reason of Transport::abort),
  /// kUnavailable when the peer is gone, kInvalidArgument naming both lengths when the peer's body
  /// has another length than the one given to recv(); its head has arrived nevertheless.
  virtual void wait(TimePoint deadline) = 0;
};

/// What a rank has sent so far: bodies and heads of messages, without the transport's own framing;
/// and what went wrong below messages and was repaired.
struct TransportStats {
  std::uint64_t messages_sent = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t reconnects = 0;
  std::uint64_t damaged_chunks = 0;  // whose checksum was wrong; they were sent again
};

/// The n ranks of a group and the ways between them. A message is a small *head* of a length that
/// sender and receiver know (0 to 256 bytes), and a *body*. Messages of one (sender, receiver, tag)
/// arrive in the order in which they were sent; a message waits for its recv(), which may come
/// later. Memory given to send() and recv() stays valid until their Work ended or was destroyed.
/// Threads: every function, any thread, at once. Implementations: in_process/ (threads),
/// cluster/ (processes: shared memory, TCP, and both at once).
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
  /// The first peer whose connection ended although nothing had been aborted here: there once a
  /// Work failed for that reason, and still after the abort() to which this may lead. The peer need
  /// not be dead. Nothing for transports that cannot tell.
  virtual std::optional<int> lost_peer() const { return std::nullopt; }

  virtual TransportStats stats() const = 0;

  /// Memory that all ranks map (shared/host_memory.h); nullptr where not all are on one host.
  virtual std::shared_ptr<HostMemory> host_memory() { return nullptr; }
};

}  // namespace tutti
