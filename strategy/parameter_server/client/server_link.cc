// Gathering changes, handing batches over in order, waiting for answers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/client/server_link.h"

#include <exception>
#include <utility>

namespace tutti::internal {
namespace {

/// What is gathered before it is sent although nobody reads: the server applies it while more is
/// gathered.
constexpr std::size_t kMostGatheredBytes = std::size_t{1} << 20;
constexpr std::size_t kMostGathered = 1024;

std::size_t bytes_of(const Operation& operation) {
  const auto bytes = [](const Tensor& tensor) {
    return tensor.defined() ? static_cast<std::size_t>(tensor.num_bytes()) : std::size_t{0};
  };
  if (const auto* assign = std::get_if<AssignShard>(&operation)) return bytes(assign->value);
  if (const auto* scatter = std::get_if<ScatterShard>(&operation)) return bytes(scatter->values);
  if (const auto* update = std::get_if<UpdateShard>(&operation)) return bytes(update->gradient);
  return 0;
}

}  // namespace

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
  lane.gathered_bytes += bytes_of(operation);
  lane.gathered.push_back(std::move(operation));
  if (lane.gathered_bytes >= kMostGatheredBytes || lane.gathered.size() >= kMostGathered) {
    send(lane);
  }
}

void ServerLink::send(Lane& lane) {
  if (lane.gathered.empty()) return;
  OperationBatch batch;
  batch.term = lane.origin.term;
  batch.stream = lane.origin.stream;
  batch.finished_below = lane.origin.finished_below;
  batch.first_ordinal = lane.next_ordinal;
  for (const Operation& each : lane.gathered) lane.next_ordinal += changes_values(each) ? 1 : 0;
  const std::uint64_t first = batch.first_ordinal;
  batch.operations = std::exchange(lane.gathered, {});
  lane.gathered_bytes = 0;
  lane.under_way.push_back({service_->start(std::move(batch)), first});
}

void ServerLink::send_changes() {
  MutexLock lock(mutex_);
  for (auto& [key, lane] : lanes_) send(lane);
}

std::shared_ptr<PendingAnswers> ServerLink::read(std::vector<Operation> reads) {
  MutexLock lock(mutex_);
  for (auto& [key, lane] : lanes_) send(lane);
  const Lane& lane = lane_of_thread();
  OperationBatch batch;
  batch.term = lane.origin.term;
  batch.stream = lane.origin.stream;
  batch.finished_below = lane.origin.finished_below;
  batch.first_ordinal = lane.next_ordinal;
  batch.operations = std::move(reads);
  return service_->start(std::move(batch));
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
    for (const Message& each : messages) {
      try {
        (void)each.answers->wait(deadline);
      } catch (...) {
        if (!first) first = std::current_exception();
        if (!std::exchange(has_failed, true)) go_back(key, each.first_ordinal);
      }
    }
  }
  if (first) std::rethrow_exception(first);
}

/// A message that the server refused counts for nothing there, and so does what came after it.
void ServerLink::go_back(const std::pair<UpdateStream, int>& key, std::uint64_t ordinal) {
  MutexLock lock(mutex_);
  const auto lane = lanes_.find(key);
  if (lane != lanes_.end()) lane->second.next_ordinal = ordinal;
}

void ServerLink::begin_anew(std::uint64_t client) {
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
