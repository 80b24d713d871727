// The state of a commit, from worker to worker.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/multi_worker/peer_state.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "checkpoint/checkpoint_file.h"
#include "tutti/core/clock.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr const char* kStateOfCommit = "state of a commit";
/// Tensors up to this size go together: each message more costs the way there and back.
constexpr std::size_t kTogether = std::size_t{128} << 10;

bool goes_alone(std::size_t num_bytes) { return num_bytes > kTogether; }

Elements bytes_of(std::byte* data, std::size_t size) { return {data, size, DType::kUInt8}; }

Elements bytes_of(std::string& text) {
  return bytes_of(reinterpret_cast<std::byte*>(text.data()), text.size());
}

/// Bytes of the head, and of the whole.
using Sizes = std::array<std::uint64_t, 2>;

Elements bytes_of(Sizes& sizes) {
  return bytes_of(reinterpret_cast<std::byte*>(sizes.data()), sizeof sizes);
}

/// Every rank names its memory of the same tensors: what the root has in it comes into that of the
/// others.
void broadcast_all(Communicator& group, int root, std::span<const Elements> tensors) {
  std::string together;
  for (const Elements& tensor : tensors) {
    if (goes_alone(tensor.num_bytes())) continue;
    together.append(reinterpret_cast<const char*>(tensor.data), tensor.num_bytes());
  }
  group.broadcast(bytes_of(together), root, {.name = kStateOfCommit});
  const char* next = together.data();
  for (const Elements& tensor : tensors) {
    if (goes_alone(tensor.num_bytes())) {
      group.broadcast(tensor, root, {.name = kStateOfCommit});
    } else if (tensor.num_bytes() > 0 && group.rank() != root) {
      std::memcpy(tensor.data, next, tensor.num_bytes());
      next += tensor.num_bytes();
    }
  }
}

/// `own`: the root's.
std::optional<CheckpointSnapshot> share(Communicator& group, int root,
                                        const CheckpointSnapshot* own, const std::string& source,
                                        std::size_t& num_bytes) {
  SafetensorsLayout pieces;
  if (group.rank() == root) pieces = pieces_of(*own);
  Sizes sizes = {pieces.head.size(), pieces.num_bytes};
  group.broadcast(bytes_of(sizes), root, {.name = kStateOfCommit});
  pieces.head.resize(sizes[0]);
  group.broadcast(bytes_of(pieces.head), root, {.name = kStateOfCommit});
  num_bytes = sizes[1];
  std::vector<Elements> tensors;
  if (group.rank() == root) {
    for (const NamedTensor& tensor : pieces.tensors) {
      const auto bytes = tensor.value.bytes();
      // The root's memory is read alone.
      tensors.push_back(bytes_of(const_cast<std::byte*>(bytes.data()), bytes.size()));
    }
    broadcast_all(group, root, tensors);
    return std::nullopt;
  }
  ArrivingSnapshot arriving(pieces.head, num_bytes, source);
  for (const MutableTensor& tensor : arriving.tensors()) {
    tensors.push_back(bytes_of(tensor.data(), tensor.num_bytes()));
  }
  broadcast_all(group, root, tensors);
  return arriving.finish();
}

void say_rate(int worker, int giver, std::size_t bytes, Duration duration) {
  const double mb = static_cast<double>(bytes) / 1e6;
  const double seconds = std::max(std::chrono::duration<double>(duration).count(), 1e-6);
  char text[96];
  std::snprintf(text, sizeof text, "%.1f MB in %.3f s, %.0f MB/s", mb, seconds, mb / seconds);
  log_info(concat("worker ", worker, ": has the state of worker ", giver, ": ", text));
}

}  // namespace

std::optional<CheckpointSnapshot> hand_over_state(WorkerTeam& team, int giver,
                                                  const std::vector<int>& takers,
                                                  const CheckpointSnapshot* own) {
  if (takers.empty()) return std::nullopt;
  const TimePoint begin = Clock::system().now();
  std::vector<int> members = takers;
  members.insert(std::ranges::upper_bound(members, giver), giver);
  const bool is_member = std::ranges::count(members, team.worker()) > 0;
  const auto group = team.make_group(is_member ? members : std::vector<int>{}, kStateOfCommit);
  if (!is_member) return std::nullopt;
  const auto root = static_cast<int>(std::ranges::find(members, giver) - members.begin());
  std::size_t num_bytes = 0;
  auto taken = share(*group, root, own, concat("the state of worker ", giver), num_bytes);
  if (taken) say_rate(team.worker(), giver, num_bytes, Clock::system().now() - begin);
  return taken;
}

}  // namespace tutti::internal
