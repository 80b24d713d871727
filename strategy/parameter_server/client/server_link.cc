// Implements RemoteService and ServerLink: collects changes, sends batches in order, awaits
// replies.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/client/server_link.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "core/names.h"
#include "strategy/replicas/local_replica.h"
#include "strategy/replicas/strategy_mode.h"
#include "tutti/core/logging.h"
#include "tutti/core/random.h"

namespace tutti::internal {
namespace {

/// Number of collected bytes at which changes are sent even if no thread waits for a read, so that
/// the server applies them while more are collected. Replies are also split into messages of this
/// size.
constexpr std::size_t kMostGatheredBytes = std::size_t{1} << 20;
constexpr std::size_t kMostGathered = 1024;

class RemoteAnswers final : public PendingAnswers {
 public:
  RemoteAnswers(RpcClient& client, const OperationBatch& batch)
      : server_(client.server_name()), num_operations_(batch.operations.size()) {
    try {
      reply_ = client.start(encode(batch));
    } catch (const Error& error) {
      never_sent_ = error.with_context(server_);
    }
  }

  bool is_ready() const override { return never_sent_ || reply_->is_ready(); }

  std::vector<OperationAnswer> wait(TimePoint deadline) override {
    if (never_sent_) throw *never_sent_;
    if (!answers_) answers_ = decoded(reply_->wait(deadline));
    return *answers_;
  }

 private:
  std::vector<OperationAnswer> decoded(const Packet& packet) const {
    std::vector<OperationAnswer> answers;
    try {
      answers = decode_answers(packet);
    } catch (const Error& error) {
      throw error.with_context(server_);
    }
    if (answers.size() == num_operations_) return answers;
    fail(ErrorCode::kDataLoss, server_, ": expected ", num_operations_, " answers, got ",
         answers.size());
  }

  const std::string server_;
  std::shared_ptr<RpcReply> reply_;
  std::optional<Error> never_sent_;
  const std::size_t num_operations_;
  std::optional<std::vector<OperationAnswer>> answers_;
};

/// Replies that arrive in several messages.
class ChunkedAnswers final : public PendingAnswers {
 public:
  void add(std::shared_ptr<PendingAnswers> part) { parts_.push_back(std::move(part)); }
  bool is_ready() const override {
    return std::ranges::all_of(parts_, [](const auto& part) { return part->is_ready(); });
  }
  std::vector<OperationAnswer> wait(TimePoint deadline) override {
    std::vector<OperationAnswer> all;
    for (const auto& part : parts_) {
      std::vector<OperationAnswer> answers = part->wait(deadline);
      std::ranges::move(answers, std::back_inserter(all));
    }
    return all;
  }

 private:
  std::vector<std::shared_ptr<PendingAnswers>> parts_;
};

/// Returns, for each message, one past the index of the last read request in it. Also limits the
/// number of reads in a message: replies for unchanged values are short, so a limit in bytes would
/// allow too many.
std::vector<std::size_t> ends_of_parts(std::size_t num_reads, std::span<const std::size_t> bytes) {
  constexpr std::size_t kMostParts = 32;
  const std::size_t total = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
  const std::size_t most = std::max(kMostGatheredBytes, total / kMostParts);
  std::vector<std::size_t> ends;
  std::size_t gathered = 0, begin = 0;
  for (std::size_t i = 0; i < num_reads; ++i) {
    gathered += bytes.empty() ? 0 : bytes[i];
    if (gathered < most && i + 1 - begin < kMostGathered && i + 1 < num_reads) continue;
    ends.push_back(i + 1);
    begin = i + 1;
    gathered = 0;
  }
  return ends;
}

std::size_t bytes_of(const Operation& operation) {
  const auto bytes = [](const Tensor& tensor) {
    return tensor.defined() ? static_cast<std::size_t>(tensor.num_bytes()) : std::size_t{0};
  };
  if (const auto* assign = std::get_if<AssignShard>(&operation)) return bytes(assign->value);
  if (const auto* scatter = std::get_if<ScatterShard>(&operation)) return bytes(scatter->values);
  if (const auto* update = std::get_if<UpdateShard>(&operation)) return bytes(update->gradient);
  return 0;
}

/// Returns the number of the replica on this thread, from 1; 0 outside replicas.
std::uint32_t replica_of_thread() {
  const StrategyMode* mode = current_mode();
  const auto* replica = mode ? dynamic_cast<const LocalReplicaContext*>(mode->replica) : nullptr;
  return replica ? static_cast<std::uint32_t>(replica->local_replica()) + 1 : 0;
}

}  // namespace

RemoteService::RemoteService(Options options)
    : options_([&] {
        options.client.keeps_calls = true;
        options.client.client = new_run_nonce();
        return std::move(options);
      }()),
      client_(RpcClient::connect(options_.target, RpcMethod::kApply, options_.client)),
      thread_(Executor::system().start("ps-connection", [this] { run(); })) {}

RemoteService::~RemoteService() {
  const Error ended(ErrorCode::kCancelled, concat(name(), ": the client was destroyed"));
  end(ended)->end_calls(ended);
  thread_->join();
}

std::shared_ptr<RpcClient> RemoteService::client() const {
  const MutexLock lock(mutex_);
  return client_;
}

std::string RemoteService::name() const { return client()->server_name(); }

std::shared_ptr<PendingAnswers> RemoteService::start(OperationBatch batch) {
  const MutexLock lock(mutex_);
  return std::make_shared<RemoteAnswers>(*client_, batch);
}

void RemoteService::fail_all(const Error& error) { end(error)->fail_all(error); }

/// Marks the service as ended, and returns the client whose calls must be ended.
std::shared_ptr<RpcClient> RemoteService::end(const Error& error) {
  std::shared_ptr<RpcClient> client;
  {
    const MutexLock lock(mutex_);
    if (!ended_) ended_ = error;
    client = client_;
  }
  interruption_->raise(error);
  return client;
}

void RemoteService::run() {
  for (;;) {
    const std::shared_ptr<RpcClient> broken = client();
    (void)broken->wait_for_end();
    if (!replace(broken)) return;
  }
}

/// Replaces a broken connection. Returns false if this service has ended.
bool RemoteService::replace(const std::shared_ptr<RpcClient>& broken) {
  {
    const MutexLock lock(mutex_);
    if (ended_) return false;
  }
  RpcClientOptions options = options_.client;
  options.interruption = interruption_;
  options.connect_timeout = options_.patience;
  const TimePoint begin = Clock::system().now();
  std::shared_ptr<RpcClient> next;
  while (next == nullptr) {
    try {
      next = RpcClient::connect(options_.target, RpcMethod::kApply, options);
    } catch (const Error& error) {
      {
        const MutexLock lock(mutex_);
        if (ended_) return false;
      }
      const bool is_refused = error.code() == ErrorCode::kFailedPrecondition;
      broken->fail_all(is_refused ? error : Error(ErrorCode::kUnavailable, error.message()));
      Clock::system().sleep_for(durations::kTryAgain);
    }
  }
  const std::string why = broken->why_broken().value_or("");
  log_info(concat("rpc: ", options.self, " reconnected to ", next->server_name(), " after ",
                  seconds_text(Clock::system().now() - begin), " s (", why, ")"));
  // Without a call, the server would only see a disconnection, and might exit (Server::join()).
  (void)next->start(encode(OperationBatch{}));
  const MutexLock lock(mutex_);
  if (!options_.outlives_restarts && !next->is_same_process(*broken)) {
    // The lock is held until client_ is replaced: a call that follows this error must reach the new
    // process.
    broken->fail_all(Error(
        ErrorCode::kAborted,
        concat(next->server_name(), " was started again (incarnation ", next->server_incarnation(),
               ") before it replied; the call's changes may be lost, so read the server's state "
               "again")));
  }
  next->take_over(*broken);
  client_ = next;
  if (ended_) next->fail_all(*ended_);
  return !ended_;
}

UpdateOrigin current_update_origin(std::uint64_t client) {
  if (const ClosureContext* const closure = ClosureContext::current()) {
    return {{UpdateStream::Kind::kClosure, closure->id(), replica_of_thread()},
            closure->attempt(),
            closure->finished_below(),
            closure->run()};
  }
  return {{UpdateStream::Kind::kClient, client, replica_of_thread()}};
}

ServerLink::ServerLink(std::shared_ptr<VariableService> service, std::uint64_t client)
    : service_(std::move(service)), client_(client) {}

ServerLink::Lane& ServerLink::lane_of_thread() {
  const UpdateOrigin origin = current_update_origin(client_);
  Lane& lane = lanes_[{origin.stream, origin.attempt}];
  lane.origin = origin;
  return lane;
}

void ServerLink::change(Operation operation) {
  MutexLock lock(mutex_);
  Lane& lane = lane_of_thread();
  if (lane.gathered.empty()) lane.gathered.reserve(lane.num_sent_last);
  lane.gathered_bytes += bytes_of(operation);
  lane.gathered.push_back(std::move(operation));
  if (lane.gathered_bytes >= kMostGatheredBytes || lane.gathered.size() >= kMostGathered) {
    send(lane);
  }
}

void ServerLink::send(Lane& lane) {
  if (lane.gathered.empty()) return;
  OperationBatch batch = batch_of(lane);
  for (const Operation& each : lane.gathered) lane.next_ordinal += changes_values(each) ? 1 : 0;
  const std::uint64_t first = batch.first_ordinal;
  lane.num_sent_last = lane.gathered.size();
  batch.operations = std::exchange(lane.gathered, {});
  lane.gathered_bytes = 0;
  lane.under_way.push_back({service_->start(std::move(batch)), first});
}

void ServerLink::send_changes() {
  MutexLock lock(mutex_);
  for (auto& [key, lane] : lanes_) send(lane);
}

OperationBatch ServerLink::batch_of(const Lane& lane) {
  OperationBatch batch;
  batch.stream = lane.origin.stream;
  batch.finished_below = lane.origin.finished_below;
  batch.run = lane.origin.run;
  batch.first_ordinal = lane.next_ordinal;
  return batch;
}

std::shared_ptr<PendingAnswers> ServerLink::read(std::vector<Operation> reads,
                                                 std::span<const std::size_t> answer_bytes) {
  MutexLock lock(mutex_);
  for (auto& [key, lane] : lanes_) send(lane);
  const Lane& lane = lane_of_thread();
  const auto start = [&](std::vector<Operation> part) {
    OperationBatch batch = batch_of(lane);
    batch.operations = std::move(part);
    return service_->start(std::move(batch));
  };
  const std::vector<std::size_t> ends = ends_of_parts(reads.size(), answer_bytes);
  if (ends.size() <= 1) return start(std::move(reads));
  auto parts = std::make_shared<ChunkedAnswers>();
  auto first = std::move_iterator(reads.begin());
  for (const std::size_t end : ends) {
    const auto last = std::move_iterator(reads.begin() + static_cast<std::ptrdiff_t>(end));
    parts->add(start({first, last}));
    first = last;
  }
  return parts;
}

/// Waits for the reply to the last message first. Replies arrive in order, so the thread wakes only
/// once.
void ServerLink::wait_for_last(const std::deque<Message>& messages, TimePoint deadline) {
  if (messages.size() < 2) return;
  try {
    (void)messages.back().answers->wait(deadline);
  } catch (...) {  // the message's own wait() throws it again
  }
}

void ServerLink::settle(TimePoint deadline) {
  std::vector<std::pair<std::pair<UpdateStream, int>, std::deque<Message>>> under_way;
  {
    MutexLock lock(mutex_);
    const UpdateOrigin origin = current_update_origin(client_);
    for (auto& [key, lane] : lanes_) {
      if (!lane.origin.is_with(origin)) continue;
      send(lane);
      under_way.emplace_back(key, std::exchange(lane.under_way, {}));
    }
  }
  std::exception_ptr first;
  for (const auto& [key, messages] : under_way) {
    bool has_failed = false;
    wait_for_last(messages, deadline);
    for (const Message& each : messages) {
      try {
        (void)each.answers->wait(deadline);
      } catch (const Error& error) {
        if (!first) first = std::current_exception();
        // Without a reply, the server may have applied the message, so its number must not be
        // reused.
        const bool is_refused = !is_of_infrastructure(error.code());
        if (!std::exchange(has_failed, true) && is_refused) rewind(key, each.first_ordinal);
      }
    }
  }
  if (first) std::rethrow_exception(first);
}

/// Resets the next ordinal, because the server has counted neither the message that it refused nor
/// later ones.
void ServerLink::rewind(const std::pair<UpdateStream, int>& key, std::uint64_t ordinal) {
  MutexLock lock(mutex_);
  const auto lane = lanes_.find(key);
  if (lane != lanes_.end()) lane->second.next_ordinal = ordinal;
}

void ServerLink::restart(std::uint64_t client) {
  MutexLock lock(mutex_);
  std::erase_if(lanes_, [](const auto& each) {
    return each.second.origin.stream.kind == UpdateStream::Kind::kClient;
  });
  client_ = client;
}

void ServerLink::end_stream() {
  MutexLock lock(mutex_);
  const UpdateOrigin origin = current_update_origin(client_);
  std::erase_if(lanes_, [&](const auto& each) { return each.second.origin.is_with(origin); });
}

}  // namespace tutti::internal
