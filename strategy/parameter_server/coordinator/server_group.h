// Orders from a coordinator to all servers: open, freeze values, restore values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strategy/parameter_server/client/parameter_servers.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// The servers of a job, any of which may die and be restarted. Each order contains the generation
/// that close() began; a restarted server has another generation and replies with kAborted.
/// Functions that send orders throw errors that name the server, or throw kCancelled after
/// interrupt(). Thread-safe, but only one thread at a time may send orders.
class ServerGroup {
 public:
  /// Returns true if the server will be restored; otherwise calls to the server fail.
  using OnLoss = std::function<bool(const std::string& why)>;

  /// `patience` is the timeout for the restart of a lost server, and for the reply to a StoreOrder.
  ServerGroup(std::shared_ptr<ParameterServers> servers, Duration patience);

  int count() const { return servers_->count(); }
  /// Random id of the run that this object coordinates: servers accept orders from only one run,
  /// and refuse closures from other runs.
  std::uint64_t run() const { return run_; }
  ParameterServers& servers() { return *servers_; }

  /// Opens the servers so that the program can create its variables. Waits for servers of an
  /// earlier run to exit.
  void begin();
  /// Called by the job for a server that exited or that the job gave up on. Returns false if the
  /// server will not be restored.
  bool note_loss(const std::string& why);
  /// Returns and clears the reason passed to the last note_loss(), such as "ps 1: killed"; nullopt
  /// if there is none.
  std::optional<std::string> take_loss();
  bool has_loss() const;
  /// Sets the callback that note_loss() calls while it holds a lock; an empty function removes it.
  void watch(OnLoss on_loss);
  /// Makes pending and later orders fail with kCancelled.
  void interrupt();

  /// Begins a generation: until open(), servers hold back all batches except orders.
  void close(std::uint64_t generation);
  /// Opens the servers. Closures with ids below `finished_below` count as finished.
  void open(std::uint64_t finished_below);
  /// Returns false if a server was restarted.
  bool is_open();
  /// Returns the shards that the servers store, sorted by server.
  std::vector<RemoteShard> shards();
  /// Makes servers keep the current values until release(); a shard is copied before it is changed.
  void freeze();
  /// Calls `take` with the frozen value of each shard. `shards`: sorted by server.
  void read_frozen(const std::vector<RemoteShard>& shards,
                   const std::function<void(const RemoteShard&, const Tensor&)>& take);
  void release();
  /// Sets the shards' values. `shards` must be sorted by server. Must be called between close() and
  /// open().
  void restore(const std::vector<RemoteShard>& shards,
               const std::function<Tensor(const RemoteShard&)>& value_of);

 private:
  using Answers = std::vector<OperationAnswer>;
  StoreOrder order(StoreOrder::Kind kind) const;
  std::vector<Answers> order_all(const StoreOrder& order);
  Answers await(int server, PendingAnswers& pending);
  /// Calls `send` once per message, in order, with the shards of that message.
  void for_each_message(const std::vector<RemoteShard>& shards,
                        const std::function<void(std::span<const RemoteShard>)>& send);

  const std::shared_ptr<ParameterServers> servers_;
  const Duration patience_;
  const std::uint64_t run_;
  std::uint64_t num_freezes_ = 0;             // used only by the thread that sends orders
  std::atomic<std::uint64_t> generation_{0};  // generation of the last close()
  mutable Mutex mutex_;
  CondVar changed_;
  OnLoss on_loss_ TUTTI_GUARDED_BY(mutex_);
  std::optional<std::string> loss_ TUTTI_GUARDED_BY(mutex_);
  bool is_interrupted_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti::internal
