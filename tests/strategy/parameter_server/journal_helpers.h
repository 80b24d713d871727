// Events of some closures, and the ledgers that they lead to, for tests of the journal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "strategy/parameter_server/coordinator/journal_file.h"
#include "tests/strategy/parameter_server/durable_helpers.h"

namespace tutti::durable_tests {

using internal::ClosureEvent;
using internal::ClosureLedger;
using internal::JournalFile;
using internal::LedgerRules;
namespace events = internal::events;

inline constexpr LedgerRules kJournalRules{4, 2};
/// Nothing is put on the disk but by sync().
inline constexpr Duration kNever = std::chrono::hours(1);

/// 38 events: closures, cuts, a server that was lost, a failure.
inline std::vector<ClosureEvent> journal_story() {
  std::vector<ClosureEvent> story{events::TookOver{1}};
  for (std::uint64_t n = 0; n < 6; ++n) {
    story.push_back(events::Scheduled{n, std::string(10 * n, static_cast<char>('a' + n))});
  }
  const auto run = [&](std::uint64_t number, int attempt) {
    story.push_back(events::Started{number, attempt, 1});
    story.push_back(events::Finished{number, attempt});
  };
  run(0, 1), run(1, 1), run(3, 1);
  story.push_back(events::CutBegan{1});
  run(2, 1);
  story.push_back(events::CutTaken{1});
  story.push_back(events::Started{4, 1, 0});
  story.push_back(events::PutBack{4, 1, {.worker = 0, .text = "ps 1: gone"}});
  story.push_back(events::TookOver{2});
  run(4, 2);
  story.push_back(events::CutBegan{2});
  story.push_back(events::CutTaken{2});
  story.push_back(events::Started{5, 1, 0});
  story.push_back(events::Failed{{5, 1, 0, ErrorOrigin::kUser, ErrorCode::kInternal, "boom"}});
  story.push_back(events::ErrorRaised{});
  story.push_back(events::Scheduled{6, "last"});
  run(6, 1);
  return story;
}

/// The ledgers after none, one, two, ... of the events.
inline std::vector<ClosureLedger> ledgers_of(const std::vector<ClosureEvent>& story) {
  std::vector<ClosureLedger> ledgers{ClosureLedger(kJournalRules)};
  for (const ClosureEvent& event : story) {
    ledgers.push_back(ledgers.back());
    ledgers.back().apply(event);
  }
  return ledgers;
}

inline void append_story(JournalFile& journal, const std::vector<ClosureEvent>& story) {
  for (const ClosureEvent& event : story) journal.append(event);
}

/// What a new coordinator would go on from.
inline ClosureLedger ledger_in(const std::string& folder) {
  return JournalFile(folder, kJournalRules, kNever).ledger();
}

}  // namespace tutti::durable_tests
