// A server that is lost while it saves, before anybody has told of it.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <optional>
#include <string>

#include "strategy/parameter_server/coordinator/server_recovery.h"
#include "tests/strategy/parameter_server/durable_helpers.h"
#include "tests/strategy/strategy_helpers.h"

namespace tutti::loss_while_saving_tests {

using durable_tests::KeptWarnings;
using durable_tests::OwnFolder;
using internal::ClosureQueue;
using internal::ServerRecovery;
using testing::HangWatchdog;

/// One server, which dies in the second cut; watch() is told nothing. Says whether closures could
/// be given out while it came back.
class ServerThatDiesSaving final : public internal::ServerGroup {
 public:
  void keep_in(const std::string&, const std::string&) override {}
  void save(std::uint64_t cut, std::uint64_t, std::uint64_t) override {
    if (cut == 1) return;
    if (!was_back.load()) is_lost_.store(true);
    if (is_lost_.load()) fail(ErrorCode::kUnavailable, "ps 0: killed");
  }
  void come_back(std::uint64_t, std::uint64_t) override {
    gave_out_meanwhile.store(recovery->may_give_out());
    was_back.store(true);
    is_lost_.store(false);
  }
  void fence(std::uint64_t) override {}
  std::optional<std::string> lost() const override {
    return is_lost_.load() ? std::optional<std::string>("ps 0: killed") : std::nullopt;
  }

  ServerRecovery* recovery = nullptr;
  std::atomic<bool> gave_out_meanwhile = false, was_back = false;

 private:
  std::atomic<bool> is_lost_ = false;
};

/// A closure that is done again must not come to a server that is not back yet.
TEST(LossWhileSaving, NothingIsGivenOutUntilServersAreBack) {
  const HangWatchdog watchdog("a server that dies while it saves");
  const KeptWarnings quiet;
  const OwnFolder folder("loss_while_saving");
  internal::JournalFile journal(folder.path(), {});
  ClosureQueue queue(
      {.journal = [&](const internal::ClosureEvent& event) { journal.append(event); }});
  ServerThatDiesSaving servers;
  ServerRecovery recovery(queue, servers, journal, {.folder = folder.path()});
  servers.recovery = &recovery;
  (void)queue.put(std::make_shared<const internal::ScheduledWork>("step", Nest(Nest::List())));
  const auto first = queue.get([] { return std::vector<int>{0}; });

  recovery.save_now(TimePoint::max());

  EXPECT_TRUE(servers.was_back.load());
  EXPECT_FALSE(servers.gave_out_meanwhile.load());
  EXPECT_TRUE(recovery.may_give_out());
  EXPECT_FALSE(queue.mark_finished(*first));  // of the term before
  const auto again = queue.get([] { return std::vector<int>{0}; });
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->number, first->number);
  EXPECT_GT(again->term, first->term);
}

}  // namespace tutti::loss_while_saving_tests
