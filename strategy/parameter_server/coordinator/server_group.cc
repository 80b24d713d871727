// Implements ServerGroup. An order is a batch that begins with a StoreOrder; interrupt() ends the
// wait for its reply.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/server_group.h"

#include <utility>

#include "core/names.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"
#include "tutti/core/random.h"

namespace tutti::internal {
namespace {

/// Message size, in bytes, for saving and restoring servers.
constexpr std::size_t kBytesPerMessage = std::size_t{16} << 20;

}  // namespace

ServerGroup::ServerGroup(std::shared_ptr<ParameterServers> servers, Duration patience)
    : servers_(std::move(servers)), patience_(patience), run_(new_run_nonce()) {}

bool ServerGroup::note_loss(const std::string& why) {
  const MutexLock lock(mutex_);
  loss_ = why;
  return on_loss_ && on_loss_(why);
}

std::optional<std::string> ServerGroup::take_loss() {
  const MutexLock lock(mutex_);
  return std::exchange(loss_, std::nullopt);
}

bool ServerGroup::has_loss() const {
  const MutexLock lock(mutex_);
  return loss_.has_value();
}

void ServerGroup::watch(OnLoss on_loss) {
  const MutexLock lock(mutex_);
  on_loss_ = std::move(on_loss);
  is_interrupted_ = false;
}

void ServerGroup::interrupt() {
  const MutexLock lock(mutex_);
  is_interrupted_ = true;
  changed_.notify_all();
}

StoreOrder ServerGroup::order(StoreOrder::Kind kind) const {
  return {.kind = kind, .run = run_, .generation = generation_.load()};
}

ServerGroup::Answers ServerGroup::await(int server, PendingAnswers& pending) {
  constexpr Duration kLook = std::chrono::milliseconds(1);
  const TimePoint end = deadline_after(Clock::system().now(), patience_);
  while (!pending.is_ready() && Clock::system().now() < end) {
    const MutexLock lock(mutex_);
    (void)changed_.wait_for(mutex_, kLook,
                            [this]() TUTTI_REQUIRES(mutex_) { return is_interrupted_; });
    if (is_interrupted_) {
      fail(ErrorCode::kCancelled, "ps ", server, ": the coordinator was stopped");
    }
  }
  return pending.wait(end);
}

std::vector<ServerGroup::Answers> ServerGroup::order_all(const StoreOrder& order) {
  std::vector<std::shared_ptr<PendingAnswers>> pending;
  for (int s = 0; s < count(); ++s) pending.push_back(servers_->link(s).read({order}));
  std::vector<Answers> answers;
  for (int s = 0; s < count(); ++s) {
    answers.push_back(await(s, *pending[static_cast<std::size_t>(s)]));
  }
  return answers;
}

void ServerGroup::begin() {
  const TimePoint begin = Clock::system().now(), end = deadline_after(begin, patience_);
  TimePoint say_at = deadline_after(begin, durations::kSayAgainEvery);
  for (;;) {
    try {
      order_all(order(StoreOrder::Kind::kOpen));
      return;
    } catch (const Error& error) {
      const TimePoint now = Clock::system().now();
      if (error.code() != ErrorCode::kAborted || now >= end) throw;
      if (now >= say_at) {
        log_warning(concat("coordinator: has been waiting ", seconds_text(now - begin),
                           " s for servers: ", error.message()));
        say_at = deadline_after(now, durations::kSayAgainEvery);
      }
    }
    Clock::system().sleep_for(durations::kTryAgain);
  }
}

void ServerGroup::close(std::uint64_t generation) {
  generation_.store(generation);
  StoreOrder close = order(StoreOrder::Kind::kClose);
  close.number = closure_id(generation, 0);
  order_all(close);
}

void ServerGroup::open(std::uint64_t finished_below) {
  StoreOrder open = order(StoreOrder::Kind::kOpen);
  open.number = finished_below;
  order_all(open);
}

bool ServerGroup::is_open() {
  try {
    order_all(order(StoreOrder::Kind::kOpen));
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kAborted) throw;
    return false;
  }
}

std::vector<RemoteShard> ServerGroup::shards() {
  std::vector<RemoteShard> shards;
  const auto answers = order_all(order(StoreOrder::Kind::kList));
  for (int s = 0; s < count(); ++s) {
    const Tensor specs = answers[static_cast<std::size_t>(s)].front().value.value_or(Tensor());
    for (ShardSpec& each : decode_specs(specs)) shards.emplace_back(s, std::move(each));
  }
  return shards;
}

void ServerGroup::freeze() {
  StoreOrder freeze = order(StoreOrder::Kind::kFreeze);
  freeze.number = ++num_freezes_;
  order_all(freeze);
}

void ServerGroup::release() { order_all(order(StoreOrder::Kind::kRelease)); }

void ServerGroup::for_each_message(const std::vector<RemoteShard>& shards,
                                   const std::function<void(std::span<const RemoteShard>)>& send) {
  for (auto first = shards.begin(); first != shards.end();) {
    std::size_t bytes = 0;
    auto last = first;
    for (; last != shards.end() && last->server == first->server && bytes < kBytesPerMessage;
         ++last) {
      bytes +=
          static_cast<std::size_t>(last->spec.shape().num_elements()) * size_of(last->spec.dtype);
    }
    send({first, last});
    first = last;
  }
}

void ServerGroup::read_frozen(const std::vector<RemoteShard>& shards,
                              const std::function<void(const RemoteShard&, const Tensor&)>& take) {
  for_each_message(shards, [&](std::span<const RemoteShard> message) {
    std::vector<Operation> operations = {order(StoreOrder::Kind::kReadFrozen)};
    for (const RemoteShard& each : message) operations.emplace_back(ReadShard{each.id});
    const int server = message.front().server;
    const Answers answers = await(server, *servers_->link(server).read(std::move(operations)));
    for (std::size_t i = 0; i < message.size(); ++i) take(message[i], *answers.at(i + 1).value);
  });
}

void ServerGroup::restore(const std::vector<RemoteShard>& shards,
                          const std::function<Tensor(const RemoteShard&)>& value_of) {
  for_each_message(shards, [&](std::span<const RemoteShard> message) {
    std::vector<Operation> operations = {order(StoreOrder::Kind::kRestore)};
    for (const RemoteShard& each : message) {
      operations.emplace_back(CreateShard{each.spec, value_of(each)});
    }
    const int server = message.front().server;
    (void)await(server, *servers_->link(server).read(std::move(operations)));
  });
}

}  // namespace tutti::internal
