// Subgroups of a communicator's ranks.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cross_device_ops/communicator/communicator_state.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti {
namespace {

constexpr std::uint8_t kNoGroup = 2;

/// Returns a description of the mistake in `members`; empty if there is none.
std::string mistake_in(const Communicator& communicator, const std::vector<int>& members) {
  const int rank = communicator.rank(), size = communicator.size();
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] >= 0 && members[i] < size && (i == 0 || members[i] > members[i - 1])) continue;
    return concat("rank ", rank, ": group: expected increasing ranks from 0 to ", size - 1,
                  ", got ", join(members));
  }
  if (members.empty() || std::ranges::find(members, rank) != members.end()) return "";
  return concat("rank ", rank, ": group: expected a group that includes this rank, got ",
                join(members));
}

/// Throws, on all ranks or on none, if ranks name different groups. Row r of `table` has a 1 for
/// each member of the group that rank r named.
void require_consistent(std::span<const std::uint8_t> table, std::size_t size) {
  const auto row = [&](std::size_t rank) { return table.subspan(rank * size, size); };
  const auto members_of = [&](std::size_t rank) {
    std::vector<std::size_t> members;
    for (std::size_t s = 0; s < size; ++s) {
      if (row(rank)[s] != 0) members.push_back(s);
    }
    return members.empty() ? "none" : join(members);
  };
  for (std::size_t r = 0; r < size; ++r) {
    if (row(r).front() != kNoGroup) continue;
    fail(ErrorCode::kInvalidArgument, "collective mismatch (group): rank ", r,
         " did not name a valid group; expected increasing ranks from 0 to ", size - 1,
         " that include ", r, "; the error of rank ", r, " lists the ranks that it named");
  }
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t s = 0; s < size; ++s) {
      if (row(r)[s] == 0 || std::ranges::equal(row(r), row(s))) continue;
      fail(ErrorCode::kInvalidArgument, "collective mismatch (group): rank ", r,
           " names the group of ranks ", members_of(r), "; rank ", s, " names ", members_of(s),
           "; expected the same group on all ranks of a group");
    }
  }
}

}  // namespace

std::unique_ptr<Communicator> Communicator::group(const std::vector<int>& members,
                                                  const CallOptions& options,
                                                  const SourceLocation& where) {
  const std::string mistake = mistake_in(*this, members);
  const auto n = static_cast<std::size_t>(size());
  // This rank takes part even if `members` is wrong, because the other ranks wait for its row.
  std::vector<std::uint8_t> own(n, mistake.empty() ? 0 : kNoGroup), table(n * n);
  for (const int member : members) {
    if (mistake.empty()) own[static_cast<std::size_t>(member)] = 1;
  }
  all_gather(std::span(own), std::span(table), {}, options, where);
  if (!mistake.empty()) throw Error(ErrorCode::kInvalidArgument, mistake);
  require_consistent(table, n);
  const std::uint32_t number = state_->next_group();
  if (members.empty()) return nullptr;
  return std::make_unique<Communicator>(state_->engine().subgroup(members, number),
                                        state_->options());
}

}  // namespace tutti
