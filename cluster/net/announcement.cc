// A rank's announcement as a message, and what makes two ranks unfit for one group.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/net/announcement.h"

#include "cluster/net/build.h"
#include "tutti/core/error.h"

namespace tutti::internal {

std::string Announcement::address() const {
  return (endpoint.host.empty() ? local : endpoint).to_string();
}

std::string to_text(const Announcement& announcement) {
  v1::RankAnnouncement message;
  message.set_run(announcement.run);
  message.set_machine(announcement.machine);
  if (!announcement.endpoint.host.empty()) message.set_address(announcement.endpoint.to_string());
  message.set_local(announcement.local.host);
  message.set_group_size(static_cast<std::uint32_t>(announcement.group_size));
  *message.mutable_build() = announcement.build;
  return message.SerializeAsString();
}

std::optional<Announcement> parse_announcement(const std::string& text) {
  v1::RankAnnouncement message;
  if (!message.ParseFromString(text) || !message.has_build()) return std::nullopt;
  Announcement announcement{
      message.run(),  message.machine(), {}, {}, static_cast<int>(message.group_size()),
      message.build()};
  const auto read = [](const std::string& address, bool is_local, Endpoint& endpoint) {
    if (address.empty()) return true;
    const auto parsed = parse_endpoint(address);
    if (parsed) endpoint = *parsed;
    return parsed && parsed->is_local() == is_local;
  };
  const bool is_good = read(message.address(), false, announcement.endpoint) &&
                       read(message.local(), true, announcement.local) &&
                       (!message.address().empty() || !message.local().empty());
  return is_good ? std::optional(announcement) : std::nullopt;
}

std::string misfit_of(const Announcement& mine, int rank, const Announcement& theirs, int other) {
  const std::string who = concat("rank ", rank), whose = concat("rank ", other);
  const std::string reason = refusal_of(mine.build, who, theirs.build, whose);
  if (!reason.empty() || mine.group_size == theirs.group_size) return reason;
  return concat("groups of different size met: ", who, " has ", mine.group_size, " ranks, ", whose,
                " has ", theirs.group_size,
                "; give all ranks one size, and each group a key prefix of its own");
}

}  // namespace tutti::internal
