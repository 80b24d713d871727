// Groups of some of the ranks of a communicator.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cross_device_ops/communicator/communicator_state.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti {
namespace {

// The groups: row r has a 1 for each member of the group that rank r named.
class Memberships {
 public:
  Memberships(Communicator& communicator, const std::vector<int>& members,
              const CallOptions& options, const SourceLocation& where)
      : size_(static_cast<std::size_t>(communicator.size())), table_(size_ * size_) {
    const int rank = communicator.rank();
    std::vector<std::uint8_t> own(size_);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const int member = members[i];
      if (member < 0 || member >= communicator.size() || (i > 0 && member <= members[i - 1])) {
        mistake_ = concat("rank ", rank, ": group: expected increasing ranks from 0 to ", size_ - 1,
                          ", got ", join(members));
        break;
      }
      own[static_cast<std::size_t>(member)] = 1;
    }
    if (mistake_.empty() && !members.empty() && own[static_cast<std::size_t>(rank)] == 0) {
      mistake_ = concat("rank ", rank, ": group: expected a group with this rank in it, got ",
                        join(members));
    }
    // The others wait for what this rank names.
    if (!mistake_.empty()) std::ranges::fill(own, kNoGroup);
    communicator.all_gather(std::span(own), std::span(table_), {}, options, where);
  }

  // All ranks throw, or none.
  void require_consistent() const {
    if (!mistake_.empty()) throw Error(ErrorCode::kInvalidArgument, mistake_);
    for (std::size_t r = 0; r < size_; ++r) {
      if (row(r).front() == kNoGroup) {
        fail(ErrorCode::kInvalidArgument, "collective mismatch (group): rank ", r,
             " names no group; expected increasing ranks from 0 to ", size_ - 1,
             ", its own among them; its own error says what it named");
      }
    }
    for (std::size_t r = 0; r < size_; ++r) {
      for (std::size_t s = 0; s < size_; ++s) {
        if (row(r)[s] == 0 || std::ranges::equal(row(r), row(s))) continue;
        fail(ErrorCode::kInvalidArgument, "collective mismatch (group): rank ", r,
             " names the group of ranks ", join(members_of(r)), "; rank ", s, " names ",
             members_of(s).empty() ? "none" : join(members_of(s)),
             "; expected the same group on all its ranks");
      }
    }
  }

 private:
  std::span<const std::uint8_t> row(std::size_t rank) const {
    return std::span(table_).subspan(rank * size_, size_);
  }
  std::vector<std::size_t> members_of(std::size_t rank) const {
    std::vector<std::size_t> members;
    for (std::size_t s = 0; s < size_; ++s) {
      if (row(rank)[s] != 0) members.push_back(s);
    }
    return members;
  }

  static constexpr std::uint8_t kNoGroup = 2;
  const std::size_t size_;
  std::vector<std::uint8_t> table_;
  std::string mistake_;  // of this rank
};

}  // namespace

std::unique_ptr<Communicator> Communicator::group(const std::vector<int>& members,
                                                  const CallOptions& options,
                                                  const SourceLocation& where) {
  const Memberships memberships(*this, members, options, where);
  memberships.require_consistent();
  const std::uint32_t number = state_->next_group();
  if (members.empty()) return nullptr;
  return std::make_unique<Communicator>(state_->engine().subgroup(members, number),
                                        state_->options());
}

}  // namespace tutti
