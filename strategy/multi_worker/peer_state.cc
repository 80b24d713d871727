// The state of a commit, from worker to worker: the bytes of a checkpoint, without a disk.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/multi_worker/peer_state.h"

#include <algorithm>
#include <cstdio>

#include "tutti/core/clock.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr const char* kName = "state of a commit";

void broadcast(Communicator& group, int root, void* data, std::size_t size) {
  group.broadcast(Elements{static_cast<std::byte*>(data), size, DType::kUInt8}, root,
                  {.name = kName});
}

void say_rate(int worker, int giver, std::size_t bytes, Duration duration) {
  const double mb = static_cast<double>(bytes) / 1e6;
  const double seconds = std::max(std::chrono::duration<double>(duration).count(), 1e-6);
  char text[96];
  std::snprintf(text, sizeof text, "%.1f MB in %.3f s, %.0f MB/s", mb, seconds, mb / seconds);
  log_info(concat("worker ", worker, ": has the state of worker ", giver, ": ", text));
}

}  // namespace

std::optional<std::string> hand_over_state(WorkerTeam& team, int giver,
                                           const std::vector<int>& takers,
                                           const CheckpointSnapshot* own) {
  if (takers.empty()) return std::nullopt;
  const TimePoint begin = Clock::system().now();
  std::vector<int> members = takers;
  members.insert(std::ranges::upper_bound(members, giver), giver);
  const bool is_member = std::ranges::count(members, team.worker()) > 0;
  const auto group = team.make_group(is_member ? members : std::vector<int>{}, kName);
  if (!is_member) return std::nullopt;
  const auto root = static_cast<int>(std::ranges::find(members, giver) - members.begin());
  std::string state = team.worker() == giver ? Checkpoint::to_bytes(*own) : std::string();
  std::uint64_t size = state.size();
  broadcast(*group, root, &size, sizeof size);
  state.resize(size);
  broadcast(*group, root, state.data(), state.size());
  if (team.worker() == giver) return std::nullopt;
  say_rate(team.worker(), giver, state.size(), Clock::system().now() - begin);
  return state;
}

}  // namespace tutti::internal
