// What a rank publishes in the store of its group.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cluster/net/socket.h"
#include "job.pb.h"

namespace tutti::internal {

/// RankAnnouncement of job.proto, its addresses parsed.
struct Announcement {
  std::uint64_t run = 0;
  std::string machine = {};
  Endpoint endpoint = {};  // no host: there is none
  Endpoint local = {};     // the same
  int group_size = 0;
  v1::Build build = {};

  /// Where others reach it, for messages.
  std::string address() const;
};
std::string to_text(const Announcement& announcement);
/// Nothing: no such text, or no address in it.
std::optional<Announcement> parse_announcement(const std::string& text);

/// Why these two ranks of a group cannot work together; "": they can.
std::string misfit_of(const Announcement& mine, int rank, const Announcement& theirs, int other);

}  // namespace tutti::internal
