// When a request may be served; and the orders, one after the other.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/durable_handler.h"
#include "tutti/core/random.h"

#include <algorithm>
#include <set>
#include <utility>

namespace tutti::internal {

DurableHandler::DurableHandler(std::string name, int server, int num_servers)
    : name_(std::move(name)),
      server_(server),
      num_servers_(num_servers),
      life_(new_run_nonce()),
      store_(std::make_shared<VariableStore>(name_)) {
  thread_ = Executor::system().start("ps-orders", [this] { run(); });
}

DurableHandler::~DurableHandler() {
  {
    const MutexLock lock(mutex_);
    is_ended_ = true;
    changed_.notify_all();
  }
  thread_->join();
}

std::shared_ptr<VariableStore> DurableHandler::store() const {
  const MutexLock lock(mutex_);
  return store_;
}

void DurableHandler::OrderHandler::take(std::shared_ptr<RpcCall> call) {
  const MutexLock lock(of_.mutex_);
  of_.orders_.push_back(std::move(call));
  of_.changed_.notify_all();
}

void DurableHandler::take(std::shared_ptr<RpcCall> call) {
  OperationBatch batch = decode_batch(call->request());
  std::shared_ptr<VariableStore> store;
  {
    const MutexLock lock(mutex_);
    // Calls of one client stay in their order.
    const bool others_wait =
        serves_waiting_ || std::ranges::any_of(waiting_, [&](const Call& each) {
          return each.rpc->peer().client == call->peer().client;
        });
    if (others_wait || !may_serve(batch)) {
      return waiting_.push_back({std::move(call), std::move(batch)});
    }
    store = store_;
  }
  serve(*store, std::move(call), std::move(batch));
}

bool DurableHandler::may_serve(const OperationBatch& batch) const {
  if (phase_ == Phase::kSetUp) return batch.stream.kind != UpdateStream::Kind::kClosure;
  return phase_ == Phase::kActive;
}

/// The first that waits for nothing, not even for an earlier one of its client.
std::optional<DurableHandler::Call> DurableHandler::next_to_serve(
    std::shared_ptr<VariableStore>& store) {
  const MutexLock lock(mutex_);
  std::set<std::uint64_t> held;
  for (auto each = waiting_.begin(); each != waiting_.end(); ++each) {
    const std::uint64_t client = each->rpc->peer().client;
    if (held.contains(client)) continue;
    if (!may_serve(each->batch)) {
      held.insert(client);
      continue;
    }
    Call call = std::move(*each);
    waiting_.erase(each);
    store = store_;
    return call;
  }
  serves_waiting_ = false;
  return std::nullopt;
}

void DurableHandler::serve_those_that_wait() {
  std::shared_ptr<VariableStore> store;
  while (std::optional<Call> call = next_to_serve(store)) {
    serve(*store, std::move(call->rpc), std::move(call->batch));
  }
}

void DurableHandler::client_left(const RpcPeer& peer) {
  std::deque<Call> dropped;  // without the lock
  {
    const MutexLock lock(mutex_);
    std::erase_if(waiting_, [&](Call& each) {
      if (each.rpc->peer().client != peer.client) return false;
      dropped.push_back(std::move(each));
      return true;
    });
  }
  store()->owner_left(peer.client);
}

void DurableHandler::run() {
  for (;;) {
    std::shared_ptr<RpcCall> call;
    {
      const MutexLock lock(mutex_);
      changed_.wait_until(mutex_, TimePoint::max(), [this]() TUTTI_REQUIRES(mutex_) {
        return is_ended_ || !orders_.empty();
      });
      if (is_ended_) return;
      call = std::move(orders_.front());
      orders_.pop_front();
    }
    obey(*call);
  }
}

void DurableHandler::obey(RpcCall& call) {
  try {
    const ServerOrder order = decode_order(call.request());
    const bool meets = std::holds_alternative<orders::Meet>(order.what);
    if (order.life != life_ && !(meets && order.life == 0)) {
      fail(ErrorCode::kAborted, "this order was for a process that ended since; expected one for ",
           "the process that was started again");
    }
    std::visit([this](const auto& each) { on(each); }, order.what);
    call.reply(encode_life(life_));
  } catch (const Error& error) {
    // That the disk is not there does not mean that this server is not.
    const bool is_of_disk = error.code() == ErrorCode::kUnavailable;
    call.fail(is_of_disk ? Error(ErrorCode::kFailedPrecondition, error.message()) : error);
  } catch (const std::exception& error) {
    call.fail(Error(ErrorCode::kInternal, error.what()));
  }
}

void DurableHandler::on(const orders::Meet& order) {
  if (run_ != 0 && run_ != order.run) {
    fail(ErrorCode::kAborted, "this server belongs to a run whose chief is gone, and ends soon");
  }
  run_ = order.run;
  bool is_alone = false;
  {
    const MutexLock lock(mutex_);
    is_alone = phase_ == Phase::kAlone;
  }
  if (is_alone && order.sets_up) enter(Phase::kSetUp, nullptr);
}

void DurableHandler::on(const orders::KeepIn& order) {
  if (files_ && kept_in_ == order) return;  // its log goes on
  files_.emplace(order.folder, order.job_id, server_, num_servers_);
  kept_in_ = order;
}

ServerFiles& DurableHandler::files() {
  if (files_) return *files_;
  fail(ErrorCode::kFailedPrecondition, "expected to be told a folder for snapshots first");
}

void DurableHandler::on(const orders::SaveCut& order) {
  files().save(*store(), order.cut, order.term, order.keep);
}

void DurableHandler::on(const orders::Load& order) {
  if (order.term <= loaded_under_) return;  // a second time
  // Terms never come twice: neither do the versions that this state gives to its values.
  const auto loaded = std::make_shared<VariableStore>(name_, order.term);
  files().load(*loaded, *store(), order.cut, order.term);
  loaded_under_ = order.term;
  enter(Phase::kActive, loaded);
}

void DurableHandler::on(const orders::Fence& order) {
  store()->fence(order.term);
  enter(Phase::kActive, nullptr);
}

void DurableHandler::enter(Phase phase, std::shared_ptr<VariableStore> store) {
  std::shared_ptr<VariableStore> former;  // ended without the lock
  {
    const MutexLock lock(mutex_);
    phase_ = phase;
    if (store) former = std::exchange(store_, std::move(store));
    serves_waiting_ = true;
  }
  serve_those_that_wait();
}

}  // namespace tutti::internal
