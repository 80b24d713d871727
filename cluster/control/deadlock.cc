// Members that wait for each other, each in another collective.
// SPDX-License-Identifier: Apache-2.0
//
// Every member makes the same calls in the same order, in whichever groups. So of two that wait for
// each other one has left a call out, or made one that is none of the others': a correct program
// never looks like this, not even in reports of different times, as long as each report shows one
// moment.
#include <algorithm>
#include <map>
#include <string_view>

#include "cluster/control/health_rules.h"
#include "core/list_text.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

bool is_inside(const GroupProgress& group) { return group.entered > group.finished; }

/// A member, and the calls in which it has waited for long enough.
struct Waiter {
  MemberRecord* record = nullptr;
  std::vector<const GroupProgress*> calls;
};

Duration time_in(const GroupProgress& call, const MemberRecord& record, TimePoint now) {
  return call.since + (now - record.progress_at);
}

std::vector<Waiter> waiters_of(const std::vector<MemberRecord*>& records, TimePoint now) {
  std::vector<Waiter> waiters;
  for (MemberRecord* const record : records) {
    const bool counts = record->status == MemberRecord::Status::kHere && record->has_stood_still;
    if (!counts) continue;
    Waiter waiter{record, {}};
    for (const GroupProgress& group : record->progress.groups) {
      const bool waits =
          is_inside(group) && time_in(group, *record, now) >= durations::kAbortDeadlockAfter;
      if (waits) waiter.calls.push_back(&group);
    }
    if (!waiter.calls.empty()) waiters.push_back(std::move(waiter));
  }
  return waiters;
}

/// By group: how many calls the last of those have made who are in none of it.
std::map<std::string_view, std::uint64_t> last_outside(const std::vector<Waiter>& waiters) {
  std::map<std::string_view, std::uint64_t> last;
  for (const Waiter& waiter : waiters) {
    for (const GroupProgress& group : waiter.record->progress.groups) {
      if (is_inside(group)) continue;
      const auto [place, is_new] = last.emplace(group.group, group.entered);
      if (!is_new) place->second = std::min(place->second, group.entered);
    }
  }
  return last;
}

/// Leaves those who wait for one of them; their calls are the ones in which they do.
std::vector<Waiter> who_wait_for_each_other(std::vector<Waiter> waiters) {
  for (std::size_t before = 0; before != waiters.size();) {
    before = waiters.size();
    const auto last = last_outside(waiters);
    for (Waiter& waiter : waiters) {
      std::erase_if(waiter.calls, [&](const GroupProgress* call) {
        const auto place = last.find(call->group);
        return place == last.end() || place->second >= call->entered;
      });
    }
    std::erase_if(waiters, [](const Waiter& waiter) { return waiter.calls.empty(); });
  }
  return waiters;
}

std::vector<std::string> names_of(const std::vector<Waiter>& waiters) {
  std::vector<std::string> names;
  for (const Waiter& waiter : waiters) names.push_back(waiter.record->joined.who.task.to_string());
  return names;
}

/// "worker 0 waits in ... since 1.2 s for worker 1".
std::string describe(const GroupProgress& call, const std::vector<Waiter>& all, TimePoint now) {
  std::vector<Waiter> inside, missing;
  Duration longest{};
  for (const Waiter& waiter : all) {
    for (const GroupProgress& own : waiter.record->progress.groups) {
      if (own.group != call.group) continue;
      if (is_inside(own) && own.entered == call.entered) {
        inside.push_back(waiter);
        longest = std::max(longest, time_in(own, *waiter.record, now));
      }
      if (!is_inside(own) && own.entered < call.entered) missing.push_back(waiter);
    }
  }
  return concat(brief_list(names_of(inside)), inside.size() == 1 ? " waits" : " wait", " in ",
                call.call, " since ", seconds_text(longest), " s for ",
                brief_list(names_of(missing)));
}

}  // namespace

bool has_same_calls(const MemberProgress& a, const MemberProgress& b) {
  return std::ranges::equal(a.groups, b.groups, [](const GroupProgress& x, const GroupProgress& y) {
    return x.group == y.group && x.entered == y.entered && x.finished == y.finished;
  });
}

std::optional<Finding> find_deadlock(const std::vector<MemberRecord*>& records, TimePoint now) {
  std::vector<Waiter> waiters = who_wait_for_each_other(waiters_of(records, now));
  std::ranges::sort(waiters, {}, [](const Waiter& waiter) {
    const MemberTask& task = waiter.record->joined.who.task;
    return std::pair(task.job, task.index);
  });
  std::map<std::pair<std::string_view, std::uint64_t>, const GroupProgress*> calls;
  bool is_new = false;
  for (const Waiter& waiter : waiters) {
    for (const GroupProgress* call : waiter.calls) {
      calls.emplace(std::pair(std::string_view(call->group), call->entered), call);
      is_new |= waiter.record->aborted.emplace(call->group, call->entered).second;
    }
  }
  if (!is_new) return std::nullopt;
  std::vector<std::string> sentences;
  for (const auto& [place, call] : calls) sentences.push_back(describe(*call, waiters, now));
  return Finding{
      waiters.front().record->number, VerdictKind::kStuck, true, ErrorCode::kInvalidArgument,
      concat(brief_list(names_of(waiters)), " wait for each other: ", join(sentences, "; "),
             "; expected the same calls in the same order on every worker; try to make "
             "these on all of them, not only where is_chief() says so")};
}

}  // namespace tutti::internal
