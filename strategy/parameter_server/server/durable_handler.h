// A server process whose variables outlive it: it obeys a coordinator, and lets others wait.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/server/server_files.h"
#include "strategy/parameter_server/server/server_order.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Batches wait, unanswered, until a coordinator has said what this process is: while its program
/// is being set up, closures wait and all else is served; a server that was started again in a job
/// that goes on serves nobody before it has the state that it is told to load. What it serves then
/// is a store of its own; calls that the former one still works on count for nothing (snapshot
/// files, terms and numbers of changes see to that). Orders are obeyed in their order, by a thread.
/// Threads: as RpcHandler.
class DurableHandler final : public RpcHandler {
 public:
  /// `name`: "ps 1", of `num_servers`.
  DurableHandler(std::string name, int server, int num_servers);
  ~DurableHandler() override;

  void take(std::shared_ptr<RpcCall> call) override;
  void client_left(const RpcPeer& peer) override;
  /// Takes the coordinator's orders.
  RpcHandler& orders() { return order_handler_; }

  /// What it serves now.
  std::shared_ptr<VariableStore> store() const;

 private:
  enum class Phase : std::uint8_t { kAlone, kSetUp, kActive };
  struct Call {
    std::shared_ptr<RpcCall> rpc;
    OperationBatch batch;
  };
  class OrderHandler final : public RpcHandler {
   public:
    explicit OrderHandler(DurableHandler& of) : of_(of) {}
    void take(std::shared_ptr<RpcCall> call) override;

   private:
    DurableHandler& of_;
  };
  bool may_serve(const OperationBatch& batch) const TUTTI_REQUIRES(mutex_);
  void serve_those_that_wait();
  std::optional<Call> next_to_serve(std::shared_ptr<VariableStore>& store);
  void run();
  void obey(RpcCall& call);
  void on(const orders::Meet& order);
  void on(const orders::KeepIn& order);
  void on(const orders::SaveCut& order);
  void on(const orders::Load& order);
  void on(const orders::Fence& order);
  ServerFiles& files();
  void enter(Phase phase, std::shared_ptr<VariableStore> store);

  const std::string name_;
  const int server_, num_servers_;
  const std::uint64_t life_;
  OrderHandler order_handler_{*this};
  // Of the thread that obeys.
  std::uint64_t run_ = 0;
  orders::KeepIn kept_in_;
  std::optional<ServerFiles> files_;
  std::uint64_t loaded_under_ = 0;  // the term

  mutable Mutex mutex_;
  CondVar changed_;
  Phase phase_ TUTTI_GUARDED_BY(mutex_) = Phase::kAlone;
  /// One state after another: what a cut is loaded into is a new one.
  std::shared_ptr<VariableStore> store_ TUTTI_GUARDED_BY(mutex_);
  std::deque<Call> waiting_ TUTTI_GUARDED_BY(mutex_);  // batches
  bool serves_waiting_ TUTTI_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<RpcCall>> orders_ TUTTI_GUARDED_BY(mutex_);
  bool is_ended_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
