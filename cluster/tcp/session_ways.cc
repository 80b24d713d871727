// All connections of a session.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/session_ways.h"

#include <utility>

#include "tutti/core/error.h"

namespace tutti::internal {

SessionWays::SessionWays(SessionParts parts)
    : endpoint_(parts.endpoint), sockets_(parts.hub->num_connections()) {
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    ways_.emplace_back(parts, i, i == 0 ? std::move(parts.socket) : FileDescriptor(), signs_);
  }
}

const std::string& SessionWays::reason() const {
  const auto found = std::ranges::find_if(ways_, &SessionWay::is_gone);
  TUTTI_CHECK(found != ways_.end(), "the peer is not gone");
  return found->reason();
}

std::size_t SessionWays::first_up() const {
  const auto found = std::ranges::find_if(ways_, &SessionWay::is_up);
  return found == ways_.end() ? 0 : static_cast<std::size_t>(found - ways_.begin());
}

Sockets SessionWays::sockets() {
  for (std::size_t i = 0; i < ways_.size(); ++i) sockets_[i] = &ways_[i].socket();
  return sockets_;
}

std::optional<SessionWays::News> SessionWays::step(std::uint64_t received) {
  if (is_gone()) return std::nullopt;
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    const bool is_first = ways_[i].is_new();
    if (const auto peers = ways_[i].step(received)) return News{i, *peers, is_first};
  }
  return std::nullopt;
}

TimePoint SessionWays::wake_at() const {
  TimePoint first = TimePoint::max();
  if (is_gone()) return first;
  for (const SessionWay& way : ways_) first = std::min(first, way.wake_at());
  return first;
}

void SessionWays::close() noexcept {
  for (SessionWay& way : ways_) way.close();
}

}  // namespace tutti::internal
