// One rank of a group of ranks that talk by MPI: which message is for which receiver.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cross_device_ops/mpi/mpi_hub.h"
#include "tutti/core/error.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti::internal {

/// A send or receive. Guarded by the hub's mutex. After its end no memory of the caller is touched.
struct MpiOperation {
  bool is_send = false;
  int peer = 0;
  std::uint64_t tag = 0;
  std::span<std::byte> head;    // of a receive
  std::span<std::byte> body;    // of a send: only read
  std::uint64_t id = 0;         // of its offer; 0: none
  std::size_t bytes_moved = 0;  // of the body, in chunks
  int chunks_in_flight = 0;
  std::atomic<bool> ended{false};
  std::optional<Error> error;

  void end(std::optional<Error> reason = std::nullopt) {
    if (ended) return;
    error = std::move(reason);
    ended = true;  // who reads it without the mutex reads the error then
  }
};

/// Works keep it alive; close() ends it as a transport.
class MpiEndpoint final : public Transport, public std::enable_shared_from_this<MpiEndpoint> {
 public:
  using Operation = std::shared_ptr<MpiOperation>;

  MpiEndpoint(std::shared_ptr<MpiHub> hub, std::vector<int> processes, int rank,
              std::uint64_t group);
  /// Says hello, and waits for that of all others.
  void connect(Duration timeout);
  /// Says goodbye.
  void close() noexcept;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(processes_.size()); }
  std::string_view name() const override { return "mpi"; }
  std::unique_ptr<Work> send(int peer, std::uint64_t tag, std::span<const std::byte> head,
                             std::span<const std::byte> body) override;
  std::unique_ptr<Work> recv(int peer, std::uint64_t tag, std::span<std::byte> head,
                             std::span<std::byte> body) override;
  void abort(const Error& reason) noexcept override;
  TransportStats stats() const override;

  // Of a Work.
  /// Whether it ended well; throws its error.
  bool test(const MpiOperation& operation);
  void wait(const MpiOperation& operation, TimePoint deadline);
  void cancel(const Operation& operation) noexcept;

 private:
  /// What has to do with one other rank.
  struct Peer {
    bool is_here = false;
    std::optional<Error> gone;
    std::map<std::uint64_t, std::deque<MpiFrame>> arrived;   // by tag: messages and offers
    std::map<std::uint64_t, std::deque<Operation>> waiting;  // by tag: receives
    std::map<std::uint64_t, Operation> receiving;            // by id: accepted offers
  };

  void check(int peer, std::size_t head_bytes) const;
  void begin_send(const Operation& operation, std::span<const std::byte> head);
  void begin_recv(const Operation& operation);

  // All with the hub's mutex held.
  void take(MpiFrame frame);
  void take_message(Peer& peer, MpiFrame frame);
  void take_chunk(Peer& peer, const MpiFrame& frame);
  void take_answer(const MpiFrame::Header& header);
  void take_cancel(Peer& peer, const MpiFrame::Header& header);
  void take_goodbye(int rank, Peer& peer);
  void match(Peer& peer, std::uint64_t tag);
  void deliver(Peer& peer, const Operation& receive, const MpiFrame& frame);
  void send_chunks(const Operation& operation);
  void post(int peer, MpiFrame::Header header, std::span<const std::byte> head = {},
            std::span<const std::byte> body = {}, std::function<void()> done = {});
  void end_all(const Error& reason);
  void abort_locked(const Error& reason);
  std::string missing_ranks() const;
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  const std::shared_ptr<MpiHub> hub_;
  const std::vector<int> processes_;
  const int rank_;
  MpiHub::Address address_;
  std::vector<Peer> peers_;                     // by rank
  std::map<std::uint64_t, Operation> offered_;  // by id: sends whose body is not all sent
  std::map<const MpiOperation*, Operation> short_sends_;
  std::uint64_t last_id_ = 0;
  int frames_in_flight_ = 0;
  std::optional<Error> closed_;
  TransportStats stats_;
};

}  // namespace tutti::internal
