// Server processes that die: who waits, who is refused, and every change counts once.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/remote_servers.h"
#include "strategy/parameter_server/coordinator/coordinator_core.h"

#include <array>

#include "tests/strategy/parameter_server/counting_servers.h"
#include "tutti/strategy/parameter_server/protocol/parameter_server_modes.h"

namespace tutti::remote_servers_tests {

using durable_tests::begin_with_w;
using durable_tests::DurableJob;
using durable_tests::KeptWarnings;
using durable_tests::make_w;
using durable_tests::OwnFolder;
using durable_tests::ServerProcesses;
using durable_tests::spec_of_w;
using durable_tests::wait_until_lost;
using internal::ServerOrder;
using store_tests::AssignShard;
using store_tests::Client;
using store_tests::CreateShard;
using store_tests::OperationBatch;
using store_tests::ReadShard;
using store_tests::soon;
using store_tests::UpdateStream;
using store_tests::VariableService;
using ::testing::Contains;
using testing::expect_error;
using testing::HangWatchdog;
using ::testing::HasSubstr;
using namespace std::chrono_literals;
namespace orders = internal::orders;

/// A change of a closure, given out under a term.
std::shared_ptr<internal::PendingAnswers> add_one(VariableService& service, std::uint64_t closure,
                                                  std::uint64_t term) {
  OperationBatch batch;
  batch.term = term;
  batch.stream = {UpdateStream::Kind::kClosure, closure, 0};
  batch.operations = {
      AssignShard{spec_of_w().id(), AssignOp::kAdd, Tensor::scalar(1, DType::kInt64)}};
  return service.start(std::move(batch));
}

std::int64_t value_of_w(VariableService& service) {
  return Client(service, 2).read(spec_of_w().id()).item_int();
}

void expect_waits(internal::PendingAnswers& answers) {
  Clock::system().sleep_for(20ms);
  EXPECT_FALSE(answers.is_ready());
}

TEST(ServerOrder, IsTheSameAfterwardsAndNothingElse) {
  const std::vector<ServerOrder> all = {{0, orders::Meet{7, true}},
                                        {3, orders::KeepIn{"/some/folder", "job"}},
                                        {3, orders::SaveCut{4, 5, 3}},
                                        {3, orders::Load{4, 6}},
                                        {~std::uint64_t{0}, orders::Fence{9}}};
  for (const ServerOrder& order : all) {
    const Packet packet = internal::encode(order);
    EXPECT_EQ(internal::decode_order(packet), order);
    for (std::size_t length = 0; length < packet.head.size(); ++length) {
      Packet cut = packet;
      cut.head.resize(length);
      expect_error(ErrorCode::kDataLoss, {"an order of a coordinator"},
                   [&] { (void)internal::decode_order(cut); });
    }
    Packet longer = packet;
    longer.head.push_back(std::byte{0});
    expect_error(ErrorCode::kDataLoss, {"an order"}, [&] { (void)internal::decode_order(longer); });
  }
  EXPECT_EQ(internal::decode_life(internal::encode_life(12)), 12U);
  expect_error(ErrorCode::kDataLoss, {"the life of a server"},
               [] { (void)internal::decode_life(internal::encode(OperationBatch())); });
}

TEST(RemoteServers, ServersAnswerWhenTheyKnowWhatTheyAre) {
  const HangWatchdog watchdog("who may be served");
  const OwnFolder folder("phases");
  ServerProcesses processes(1);
  const auto service = processes.services().front();
  Client client(*service, 1);
  const auto made = client.start({CreateShard{spec_of_w(), Tensor::scalar(0, DType::kInt64)}});
  expect_waits(*made);  // nobody has said that a program is being set up
  const auto group = processes.group();
  group->wait_for_all(soon());
  (void)made->wait(soon());
  const auto late = add_one(*service, 5, 1);  // of a former run
  const auto added = add_one(*processes.services().front(), 7, 3);
  expect_waits(*added);  // closures come later
  EXPECT_EQ(value_of_w(*processes.services().front()), 0);
  group->keep_in(folder.path(), "job");
  group->save(1, 3, 0);
  EXPECT_FALSE(added->is_ready());
  group->fence(3);
  (void)added->wait(soon());
  expect_error(ErrorCode::kAborted, {"ps 0", "term 1", "term 3"},
               [&] { (void)late->wait(soon()); });
  EXPECT_EQ(value_of_w(*service), 1);
}

TEST(RemoteServers, RestartedServerHasAllConfirmedUpdates) {
  const HangWatchdog watchdog("a server that is back");
  const OwnFolder folder("back");
  ServerProcesses processes(2);
  auto group = processes.group();
  const auto services = begin_with_w(processes, *group, folder);
  for (const auto& each : services) (void)add_one(*each, 0, 1)->wait(soon());
  group->save(2, 1, 1);
  for (const auto& each : services) (void)add_one(*each, 1, 1)->wait(soon());
  Event lost;
  group->watch([&] { lost.set(); });
  processes.kill(1);
  EXPECT_TRUE(lost.wait_until(soon()));
  EXPECT_THAT(group->lost().value_or(""), HasSubstr("ps 1"));
  // What comes meanwhile waits, and is of a term that nobody works under any more.
  const auto late = add_one(*services[1], 2, 1);
  processes.start(1);
  const auto of_new_term = add_one(*processes.services()[1], 2, 2);
  const auto early_read = Client(*services[1], 3).start({ReadShard{spec_of_w().id()}});
  expect_waits(*early_read);
  group->come_back(2, 2);
  EXPECT_EQ(group->lost(), std::nullopt);
  expect_error(ErrorCode::kAborted, {"ps 1", "term 1 was replaced"},
               [&] { (void)late->wait(soon()); });
  (void)of_new_term->wait(soon());
  (void)early_read->wait(soon());
  EXPECT_EQ(value_of_w(*services[0]), 2);
  EXPECT_EQ(value_of_w(*services[1]), 3);
  // Closure 0 is in the cut, closure 1 in the log.
  for (const auto& each : services) {
    EXPECT_TRUE(add_one(*each, 0, 2)->wait(soon()).front().was_applied_before);
    EXPECT_TRUE(add_one(*each, 1, 2)->wait(soon()).front().was_applied_before);
  }
  group->watch({});
}

TEST(RemoteServers, AServerThatDiesBeforeStartEndsStart) {
  const HangWatchdog watchdog("set-up");
  const OwnFolder folder("set_up");
  ServerProcesses processes(2);
  const auto group = processes.group();
  group->wait_for_all(soon());
  processes.restart(1);
  wait_until_lost(*group);
  expect_error(ErrorCode::kUnavailable,
               {"ClusterCoordinator::start", "ps 1", "variables were made"},
               [&] { group->keep_in(folder.path(), "job"); });
}

/// The connection finds out before the link does, which looks now and then.
TEST(RemoteServers, OrderToAReplacedProcessNamesTheLostServer) {
  const HangWatchdog watchdog("found out by an order");
  const OwnFolder folder("found_out");
  const KeptWarnings quiet;
  ServerProcesses processes(2);
  const auto group = processes.group(1, 60s, /*look_every=*/1h);
  const auto services = begin_with_w(processes, *group, folder);
  for (const auto& each : services) (void)add_one(*each, 0, 1)->wait(soon());
  processes.restart(0);
  EXPECT_THROW(group->save(2, 1, 1), Error);
  EXPECT_THAT(group->lost().value_or(""), HasSubstr("ps 0"));
  group->come_back(1, 2);
  EXPECT_EQ(group->lost(), std::nullopt);
  processes.restart(1);
  group->keep_in(folder.path(), "job");  // the next coordinator of this process
  group->come_back(1, 3);
  EXPECT_EQ(group->lost(), std::nullopt);
  for (const auto& each : services) EXPECT_EQ(value_of_w(*each), 1);
}

TEST(RemoteServers, AServerOfAnotherRunIsNotUsed) {
  const HangWatchdog watchdog("another run");
  const KeptWarnings warnings;
  ServerProcesses processes(1);
  const auto first = processes.group(1);
  first->wait_for_all(soon());
  const auto second = processes.group(2);
  expect_error(ErrorCode::kDeadlineExceeded, {"ps 0", "a run whose chief is gone"},
               [&] { second->wait_for_all(deadline_after(Clock::system().now(), 2s)); });
}

TEST(RemoteServers, AServerThatDoesNotComeBackIsNamed) {
  const HangWatchdog watchdog("not back");
  const OwnFolder folder("not_back");
  ServerProcesses processes(2);
  const auto group = processes.group(1, 200ms);
  group->wait_for_all(soon());
  group->keep_in(folder.path(), "job");
  group->save(1, 1, 0);
  group->fence(1);
  processes.kill(1);
  wait_until_lost(*group);
  expect_error(ErrorCode::kDeadlineExceeded,
               {"bringing servers back", "servers are missing", "ps 1"},
               [&] { group->come_back(1, 2); });
  EXPECT_TRUE(group->lost());
}

TEST(RemoteServers, ADamagedSnapshotIsNamedAndTheOthersStayAsTheyAre) {
  const HangWatchdog watchdog("a damaged snapshot");
  const OwnFolder folder("damaged");
  ServerProcesses processes(2);
  const auto group = processes.group();
  const auto services = begin_with_w(processes, *group, folder);
  for (const auto& each : services) (void)add_one(*each, 0, 1)->wait(soon());
  std::filesystem::resize_file(folder.path() + "/ps_1_of_2.cut_1", 100);
  processes.restart(1);
  wait_until_lost(*group);
  expect_error(ErrorCode::kDataLoss, {"ps 1", "ps_1_of_2.cut_1"}, [&] { group->come_back(1, 2); });
  EXPECT_EQ(value_of_w(*services[0]), 1);
}

TEST(RemoteServers, DeathsOfServersLoseNothing) {
  const HangWatchdog watchdog("servers die", 120s);
  const OwnFolder folder("die");
  const KeptWarnings warnings;
  constexpr int kClosures = 400;
  ServerProcesses processes(3);
  DurableJob job(processes);
  ClusterCoordinator coordinator = job.begin(folder.path(), 60);
  std::vector<RemoteValue> results;
  for (int i = 0; i < kClosures; ++i) {
    results.push_back(DurableJob::schedule(coordinator));
    if (i % 80 == 40) job.replace(i / 80 % 3);
  }
  coordinator.join();
  job.expect_counted(kClosures);
  for (std::int64_t i = 0; i < kClosures; ++i) {
    EXPECT_EQ(results[static_cast<std::size_t>(i)].fetch<std::int64_t>(), i * i);
  }
  EXPECT_THAT(warnings.lines, Contains(HasSubstr("it comes back with cut ")));
}

/// What is changed outside steps is confirmed, too; it is not in the cut.
TEST(RemoteServers, ChangesOutsideStepsSurviveDeaths) {
  const HangWatchdog watchdog("what was confirmed");
  const OwnFolder folder("confirmed");
  const KeptWarnings quiet;
  ServerProcesses processes(2);
  auto group = processes.group();
  const auto services = begin_with_w(processes, *group, folder);
  std::array<Client, 2> outside = {Client(*services[0], 9), Client(*services[1], 9)};
  const auto id = spec_of_w().id();
  for (std::uint64_t life = 0; life < 4; ++life) {
    const std::size_t dies = life % 2;
    for (Client& each : outside) {
      each.call({AssignShard{id, AssignOp::kAdd, Tensor::scalar(100, DType::kInt64)}});
    }
    for (const auto& each : services) (void)add_one(*each, life, life + 1)->wait(soon());
    processes.restart(static_cast<int>(dies));
    wait_until_lost(*group);
    const auto late = add_one(*services[dies], 50, life + 1);
    group->come_back(1, life + 2);
    EXPECT_EQ(group->lost(), std::nullopt);
    expect_error(ErrorCode::kAborted, {concat("ps ", dies), "was replaced"},
                 [&] { (void)late->wait(soon()); });
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(value_of_w(*services[i]), static_cast<std::int64_t>(101 * (life + 1))) << i;
      EXPECT_TRUE(add_one(*services[i], life, life + 2)->wait(soon()).front().was_applied_before);
      EXPECT_EQ(processes.handler(static_cast<int>(i)).store()->snapshot().table.term(), life + 2);
    }
  }
}

TEST(RemoteServers, DurabilitiesHaveNames) {
  for (const auto each : {Durability::kNone, Durability::kLogged}) {
    EXPECT_EQ(parse_durability(to_string(each)), each);
  }
  for (const std::string gone : {"snapshot", "replicated", "eternal"}) {
    expect_error(ErrorCode::kInvalidArgument, {concat("'", gone, "'"), "one of none, logged"},
                 [&] { (void)parse_durability(gone); });
  }
}

/// Some calls come twice, and everybody dies now and then.
TEST(RemoteServers, CountsAreExactAfterAnyDeath) {
  const HangWatchdog watchdog("everybody dies", 300s);
  const OwnFolder folder("everybody_remote");
  const KeptWarnings quiet;
  constexpr std::int64_t kClosures = 2000, kKills = 20;
  const RandomStream random({.seed = 21});
  ServerProcesses processes(3);
  DurableJob job(processes, /*repeated=*/0.05);
  std::optional<ClusterCoordinator> coordinator = job.begin(folder.path(), 150);
  std::int64_t next_kill = kClosures / kKills;
  for (std::int64_t i = 0; i < kClosures; ++i) {
    (void)DurableJob::schedule(*coordinator);
    if (i + 1 != next_kill) continue;
    next_kill += kClosures / kKills;
    const auto place = static_cast<std::uint64_t>(i);
    const auto victim = static_cast<int>(random.below(2 * place + 1, 3));
    switch (random.below(2 * place, 4)) {
      case 0: {
        testing::MortalWorker& worker = testing::mortal_worker(*coordinator, victim);
        worker.kill();
        worker.restart();
        break;
      }
      case 1:
        coordinator.reset();
        coordinator = job.begin(folder.path(), 150);
        break;
      case 2:  // two at once
        processes.kill(victim);
        processes.kill((victim + 1) % 3);
        processes.start((victim + 1) % 3);
        processes.start(victim);
        break;
      default:
        processes.restart(victim);
    }
  }
  coordinator->join();
  job.expect_counted(kClosures);
}

}  // namespace tutti::remote_servers_tests
