// Orders of a coordinator to all servers: serve, freeze values, restore values.
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

/// All servers of a job, which may die and be started again. Orders name the generation that
/// close() began: a server of another one answers kAborted, for it was started again. Errors name
/// the server; kCancelled after interrupt(). Thread-safe; orders are given by one thread at a time.
class ServerGroup {
 public:
  /// Returns true if the server will be brought back; else calls of it end with an error.
  using OnLoss = std::function<bool(const std::string& why)>;

  /// `patience`: for a server that was lost to be back, and for its answer to an order.
  ServerGroup(std::shared_ptr<ParameterServers> servers, Duration patience);

  int count() const { return servers_->count(); }
  /// Random, of this object: servers obey one run, and refuse closures of another one.
  std::uint64_t run() const { return run_; }
  ParameterServers& servers() { return *servers_; }

  /// The program is being set up: servers accept it. Servers of a former run are waited for.
  void begin();
  /// Called by the job for a server that exited or was given up. Returns false if nothing brings it
  /// back.
  bool note_loss(const std::string& why);
  /// "ps 1: killed", once; nothing if none was lost since the last call.
  std::optional<std::string> take_loss();
  bool has_loss() const;
  /// `on_loss` is called by note_loss(), with a lock held; empty: not any more.
  void watch(OnLoss on_loss);
  /// Ends orders under way and later ones.
  void interrupt();

  /// Begins a generation: servers hold other batches until open().
  void close(std::uint64_t generation);
  /// Closures below `finished_below`, an id, are finished from now on.
  void open(std::uint64_t finished_below);
  /// Returns false if a server was started again.
  bool is_open();
  /// The shards that servers have, by server.
  std::vector<RemoteShard> shards();
  /// Servers keep the present values until release(); a later change copies the shard.
  void freeze();
  /// `shards` by server; `take` gets the value of each.
  void read_frozen(const std::vector<RemoteShard>& shards,
                   const std::function<void(const RemoteShard&, const Tensor&)>& take);
  void release();
  /// `shards` by server; values of their shapes. Between close() and open().
  void restore(const std::vector<RemoteShard>& shards,
               const std::function<Tensor(const RemoteShard&)>& value_of);

 private:
  using Answers = std::vector<OperationAnswer>;
  StoreOrder order(StoreOrder::Kind kind) const;
  std::vector<Answers> order_all(const StoreOrder& order);
  Answers await(int server, PendingAnswers& pending);
  /// Calls `send` with the shards of one message after the other.
  void for_each_message(const std::vector<RemoteShard>& shards,
                        const std::function<void(std::span<const RemoteShard>)>& send);

  const std::shared_ptr<ParameterServers> servers_;
  const Duration patience_;
  const std::uint64_t run_;
  std::uint64_t num_freezes_ = 0;             // of the thread that gives orders
  std::atomic<std::uint64_t> generation_{0};  // of the last close()
  mutable Mutex mutex_;
  CondVar changed_;
  OnLoss on_loss_ TUTTI_GUARDED_BY(mutex_);
  std::optional<std::string> loss_ TUTTI_GUARDED_BY(mutex_);
  bool is_interrupted_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti::internal
