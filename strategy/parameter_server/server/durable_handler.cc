// Who may be served when; and the orders, one after the other.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/durable_handler.h"

#include <algorithm>
#include <utility>

#include "tutti/cluster/tcp/opening.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/parameter_server/protocol/encoding.h"
#include "tutti/strategy/parameter_server/server/backup_keeper.h"
#include "tutti/strategy/parameter_server/server/backup_message.h"

namespace tutti::internal {
namespace {

/// For a state of many gigabytes.
constexpr Duration kCopyTimeout = std::chrono::seconds(120);

/// What cannot be read is served: it is refused there.
bool is_of_closure(const RpcCall& call) {
  try {
    return decode_batch(call.request()).stream.kind == UpdateStream::Kind::kClosure;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

DurableHandler::DurableHandler(std::string name, int server, int num_servers,
                               ConnectBackup connect_backup)
    : name_(std::move(name)),
      server_(server),
      num_servers_(num_servers),
      life_(new_run_nonce()),
      connect_backup_(std::move(connect_backup)),
      variables_(std::make_shared<Variables>(name_, 0)) {
  thread_ = Executor::system().start("ps-orders", [this] { run(); });
}

DurableHandler::~DurableHandler() {
  std::shared_ptr<RpcClient> to_backup;
  {
    const MutexLock lock(mutex_);
    is_ended_ = true;
    to_backup = to_backup_.lock();
    changed_.notify_all();
  }
  // Whoever waits there for the state of a copy waits no longer.
  if (to_backup) to_backup->fail_all(Error(ErrorCode::kCancelled, name_ + ": the server ends"));
  thread_->join();
}

std::shared_ptr<VariableStore> DurableHandler::store() const {
  const MutexLock lock(mutex_);
  return {variables_, &variables_->store};
}

void DurableHandler::take(std::shared_ptr<RpcCall> call) {
  if (is_backup_message(call->request())) return copies_.take(*call);
  std::shared_ptr<Variables> variables;
  {
    const MutexLock lock(mutex_);
    if (is_order(call->request())) {
      orders_.push_back(std::move(call));
      return changed_.notify_all();
    }
    // Calls of one client stay in their order.
    const bool others_wait =
        serves_waiting_ || std::ranges::any_of(waiting_, [&](const Call& each) {
          return each->peer().client == call->peer().client;
        });
    if (others_wait || !may_serve(*call)) return waiting_.push_back(std::move(call));
    variables = variables_;
  }
  variables->handler.take(std::move(call));
}

bool DurableHandler::may_serve(const RpcCall& call) const {
  if (phase_ == Phase::kSetUp) return !is_of_closure(call);
  return phase_ == Phase::kActive;
}

/// The first that waits for nothing, not even for an earlier one of its client.
DurableHandler::Call DurableHandler::next_to_serve(std::shared_ptr<Variables>& variables) {
  const MutexLock lock(mutex_);
  std::set<std::uint64_t> held;
  for (auto each = waiting_.begin(); each != waiting_.end(); ++each) {
    const std::uint64_t client = (*each)->peer().client;
    if (held.contains(client)) continue;
    if (!may_serve(**each)) {
      held.insert(client);
      continue;
    }
    Call call = std::move(*each);
    waiting_.erase(each);
    variables = variables_;
    return call;
  }
  serves_waiting_ = false;
  return nullptr;
}

void DurableHandler::serve_those_that_wait() {
  std::shared_ptr<Variables> variables;
  while (const Call call = next_to_serve(variables)) {
    try {
      variables->handler.take(call);
    } catch (const Error& error) {
      call->fail(error);
    }
  }
}

void DurableHandler::client_left(const RpcPeer& peer) {
  std::shared_ptr<Variables> variables;
  std::deque<Call> dropped;  // without the lock
  {
    const MutexLock lock(mutex_);
    const auto is_its = [&](const Call& each) { return each->peer().client == peer.client; };
    for (Call& each : waiting_) {
      if (is_its(each)) dropped.push_back(each);
    }
    std::erase_if(waiting_, is_its);
    variables = variables_;
  }
  variables->handler.client_left(peer);
}

void DurableHandler::run() {
  for (;;) {
    Call call;
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
    const auto trouble = backups_.empty() ? std::nullopt : backups_.back()->trouble();
    call.reply(encode_life({life_, trouble.value_or("")}));
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
  folder_.emplace(order.folder, order.job_id, server_, num_servers_);
  const bool is_logged = order.durability == Durability::kLogged;
  if (is_logged && log_ && kept_in_ == order) return;
  kept_in_ = order;
  log_.reset();
  auto log = std::make_shared<ChangeLog>(order.folder, order.job_id, server_, num_servers_);
  if (is_logged) {
    log_ = std::move(log);
  } else {
    // A later run that logs must not go on with the log of a time before this one.
    log->forget_before(~std::uint64_t{0});
  }
}

const SnapshotFolder& DurableHandler::folder() const {
  if (folder_) return *folder_;
  fail(ErrorCode::kFailedPrecondition, "expected to be told a folder for snapshots first");
}

void DurableHandler::on(const orders::SaveCut& order) {
  const auto variables = store();
  if (log_) log_->prepare(order.cut);
  const StoreSnapshot state = variables->snapshot([&](const StoreSnapshot&) {
    if (!log_) return;
    log_->switch_over();
    variables->set_keeper(log_);
  });
  folder().save(order.cut, order.term, state, order.keep);
  if (log_) log_->forget_before(order.keep);
}

void DurableHandler::on(const orders::PrepareCut& order) {
  prepare(order.cut, order.term, folder().load(order.cut).snapshot);
}

void DurableHandler::prepare(std::uint64_t cut, std::uint64_t term, const StoreSnapshot& state) {
  check_has_all(name_, *store(), state);
  // Terms never come twice: neither do the versions that this state gives to its values.
  auto variables = std::make_shared<Variables>(name_, term);
  variables->store.restore(state);
  if (log_) {
    replay_log(variables->store, cut);
    log_->prepare(cut);
  }
  variables->store.fence(term);
  prepared_ = Prepared{cut, term, std::move(variables)};
}

std::shared_ptr<RpcClient> DurableHandler::connect_backup() {
  if (!connect_backup_) {
    fail(ErrorCode::kFailedPrecondition, "no other server keeps a copy of this one");
  }
  std::shared_ptr<RpcClient> backup = connect_backup_();
  const MutexLock lock(mutex_);
  if (is_ended_) fail(ErrorCode::kCancelled, name_, ": the server ends");
  to_backup_ = backup;
  return backup;
}

/// What goes wrong on the way to the backup is its loss: the coordinator looks who is there.
void DurableHandler::on(const orders::PrepareCopy& order) {
  Packet answer;
  try {
    answer = connect_backup()->call(encode({BackupMessage::Kind::kFetch, server_, order.term}),
                                    deadline_after(Clock::system().now(), kCopyTimeout));
  } catch (const Error& error) {
    fail(ErrorCode::kAborted, "cannot get its copy: ", error.message());
  }
  prepare(order.cut, order.term, state_in(answer, concat("the copy of ", name_)));
}

void DurableHandler::on(const orders::BeginCopy& order) {
  const auto variables = store();
  try {
    const auto keeper = std::make_shared<BackupKeeper>(connect_backup(), server_, order.term);
    (void)variables->snapshot([&](const StoreSnapshot& state) {
      keeper->begin_with(state);
      variables->set_keeper(keeper);
    });
    backups_.push_back(keeper);
    keeper->wait_for_state();
  } catch (const Error& error) {
    fail(ErrorCode::kAborted, "cannot have its copy kept: ", error.message());
  }
  // The state that it began with has all that came before.
  while (backups_.size() > 1) {
    backups_.front()->supersede();
    backups_.erase(backups_.begin());
  }
}

void DurableHandler::replay_log(VariableStore& store, std::uint64_t cut) const {
  std::uint64_t number = 0;
  (void)log_->replay(cut, [&](OperationBatch batch) {
    ++number;
    if (const auto problem = apply_again(store, std::move(batch))) {
      fail(ErrorCode::kDataLoss, "log of changes since cut ", cut, ": expected batch ", number,
           " to be what was applied before, but it was refused: ", problem->message());
    }
  });
  log_info(concat(name_, ": has applied ", number, " batches since cut ", cut, " again"));
}

void DurableHandler::on(const orders::GoBack& order) {
  if (!prepared_ || prepared_->cut != order.cut || prepared_->term != order.term) {
    // A second time: it has gone back already.
    if (store()->term() == order.term) return;
    fail(ErrorCode::kFailedPrecondition, "expected to have prepared cut ", order.cut, " for term ",
         order.term, " first");
  }
  const auto variables = std::exchange(prepared_, std::nullopt)->variables;
  if (log_) {
    log_->switch_over();
    variables->store.set_keeper(log_);
  }
  enter(Phase::kActive, variables);
  backups_.clear();  // of what is undone
  log_info(concat(name_, ": is at cut ", order.cut, ", term ", order.term));
}

void DurableHandler::on(const orders::Fence& order) {
  store()->fence(order.term);
  enter(Phase::kActive, nullptr);
}

void DurableHandler::enter(Phase phase, std::shared_ptr<Variables> variables) {
  std::shared_ptr<Variables> former;  // ended without the lock
  {
    const MutexLock lock(mutex_);
    phase_ = phase;
    if (variables) former = std::exchange(variables_, std::move(variables));
    serves_waiting_ = true;
  }
  serve_those_that_wait();
}

}  // namespace tutti::internal
