// Tests key-value stores in files, the rendezvous of ranks and of jobs, and errors of
// WorkerGroup::join().
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <fstream>

#include "cluster/control/join_job.h"
#include "cluster/worker_group.h"
#include "tests/cluster/control_job.h"
#include "tests/cluster/proxied_ranks.h"
#include "tests/support/scopes.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/key_value_stores.h"
#include "tutti/cluster/resolvers/kubernetes_resolver.h"
#include "tutti/cluster/resolvers/tf_config_resolver.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::key_value_store_test {
using namespace std::chrono_literals;
using test_scopes::EnvironmentScope;
using testing::in;
using testing::late;

std::string new_folder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/tutti_store_" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

TEST(FileKeyValueStore, StoresBinaryValuesInSharedFolder) {
  const std::string folder = new_folder("values");
  FileKeyValueStore store(folder), other(folder);
  EXPECT_EQ(store.get("a"), std::nullopt);
  const std::string large(1 << 20, '\xfe');
  for (const std::string& value : {std::string(), std::string("\0\n\xff", 3), large}) {
    store.set("a", value);
    EXPECT_EQ(other.get("a"), value);
    EXPECT_EQ(other.wait("a", in(0ms)), value);
  }
  store.set("b", "2");
  const std::vector<std::string> keys = {"b", "none", "a"};
  EXPECT_EQ(other.get_all(keys),
            (std::vector<std::optional<std::string>>{"2", std::nullopt, large}));
}

TEST(FileKeyValueStore, KeysAreNotInterpretedAsPaths) {
  const std::string folder = new_folder("keys");
  FileKeyValueStore store(folder + "/inner");
  const std::vector<std::string> keys{
      ".", "..", "/", "../x", "a/b", "a", "a.b", "/a/b", std::string(200, 'k')};
  for (const std::string& key : keys) store.set(key, "value of " + key);
  for (const std::string& key : keys) EXPECT_EQ(store.get(key), "value of " + key);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  for (const std::string& key : {std::string(), std::string(201, 'k'), std::string("a~b")}) {
    EXPECT_INVALID(store.set(key, "x"), "file store", "the key '");
  }
  EXPECT_INVALID(store.set("k", std::string((1 << 20) + 1, 'x')), "1048577");
}

TEST(FileKeyValueStore, ConcurrentReadersSeeCompleteValues) {
  FileKeyValueStore store(new_folder("writers"));
  store.set("k", std::string(5000, 'a'));
  std::atomic<bool> done{false};
  std::atomic<int> num_writes[2] = {};
  std::vector<std::unique_ptr<Thread>> writers;
  for (const int writer : {0, 1}) {
    writers.push_back(Executor::system().start("writer", [&, writer] {
      while (!done) {
        store.set("k", std::string(5000, writer == 0 ? 'a' : 'b'));
        ++num_writes[writer];
      }
    }));
  }
  // Reads at least 200 times, and continues until both concurrent writers have written 50 times.
  bool all_whole = true;
  for (int i = 0; all_whole && (i < 200 || num_writes[0] < 50 || num_writes[1] < 50); ++i) {
    const std::string value = store.get("k").value();
    all_whole = value == std::string(5000, value.at(0));
  }
  done = true;
  EXPECT_TRUE(all_whole);
}

TEST(FileKeyValueStore, WaitReturnsValueOrTimesOut) {
  const std::string folder = new_folder("waits");
  FileKeyValueStore store(folder);
  const auto setter = Executor::system().start("setter", [&] {
    Clock::system().sleep_for(std::chrono::milliseconds(10));
    FileKeyValueStore(folder).set("address", "x");
  });
  EXPECT_EQ(store.wait("address", late()), "x");
  EXPECT_ERROR(store.wait("missing", in(5ms)), kDeadlineExceeded, folder, "'missing'");
}

TEST(FileKeyValueStore, SystemErrorNamesFolderAndOperation) {
  const std::string file = ::testing::TempDir() + "/tutti_store_file";
  std::ofstream(file) << "no folder";
  EXPECT_ERROR(FileKeyValueStore s(file), kUnavailable, file, "expected a folder");
  const std::string folder = new_folder("removed");
  FileKeyValueStore store(folder);
  std::filesystem::remove_all(folder);
  EXPECT_ERROR(store.set("k", "x"), kUnavailable, folder, "writing the value of 'k'");
}

/// Checks the connections by exchanging a byte with every other rank.
void expect_connected(Transport& mine) {
  std::array<std::byte, 1> byte{}, got{};
  for (int peer = 0; peer < mine.size(); ++peer) {
    if (peer == mine.rank()) continue;
    const auto recv = mine.recv(peer, 5, {}, got);
    const auto send = mine.send(peer, 5, {}, byte);
    recv->wait(late());
    send->wait(late());
  }
}

TEST(Rendezvous, TimeoutIsMeasuredFromLastConnection) {
  InProcessStore store;
  // The ranks arrive one second apart, so the last rank arrives after 3 s.
  expect_on_ranks(4, [&](int rank) {
    Clock::system().sleep_for(rank * 1s);
    expect_connected(*connect_by_tcp(rank, 4, store, {.timeout = 2500ms}));
  });
}

TEST(Rendezvous, ReconnectsLostConnectionAndKeepsRemainingConnections) {
  proxied_ranks::ProxiedStore store({});
  // Size of both hellos, both proofs and the verdict.
  constexpr std::uint64_t kHandshakeBytes = 2 * (36 + 32) + 1;
  expect_on_ranks(3, [&](int rank) {
    if (rank == 0) {  // cuts the connection of ranks 1 and 2 while they wait for rank 0
      store.wait("ranks/1", late());
      while (store.proxy(1).num_passed() < kHandshakeBytes) {
        Clock::system().sleep_for(1ms);
      }
      store.proxy(1).cut_all();
    }
    expect_connected(*connect_by_tcp(rank, 3, store, {.timeout = 60s}));
  });
  EXPECT_GE(store.proxy(1).num_accepted(), 2);
}

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;
constexpr int kTasks = 3;

struct Met {
  ~Met() {
    while (!planes.empty()) planes.pop_back();  // the member that hosts the server leaves last
  }
  std::vector<ControlPlane> planes = std::vector<ControlPlane>(kTasks);
  std::vector<std::string> errors;
  std::string first_target() const { return planes[0].server ? planes[0].server->target() : ""; }
};

std::unique_ptr<Met> meet(bool on_one_machine) {
  std::vector<MemberTask> tasks;
  for (int task = 0; task < kTasks; ++task) tasks.push_back({"worker", task, ""});
  auto communicators = in_process_communicators(kTasks, {.timeout = std::chrono::seconds(60)});
  auto met = std::make_unique<Met>();
  met->errors = errors_of_ranks(kTasks, [&](int rank) {
    const auto self = static_cast<std::size_t>(rank);
    const auto communicator = std::move(communicators[self]);
    JoinOptions options;
    options.client.timeout = std::chrono::seconds(60);
    met->planes[self] =
        on_one_machine ? connect_job(tasks, *communicator, options)
                       : internal::connect_job(tasks, *communicator, options, /*machine=*/rank);
  });
  return met;
}

TEST(JobRendezvous, SingleMachineJobGeneratesSecretForServer) {
  const auto met = meet(true);
  EXPECT_THAT(met->errors, Each(""));
  EXPECT_THAT(met->first_target(), StartsWith("grpc://127.0.0.1:"));
  const auto secret = met->planes[0].secret.bytes();
  EXPECT_EQ(secret.size(), 32u);
  for (const ControlPlane& plane : met->planes) {
    ASSERT_TRUE(plane.client);
    EXPECT_EQ(plane.client->members().size(), 3u);
    EXPECT_TRUE(std::ranges::equal(plane.secret.bytes(), secret));
  }
  EXPECT_FALSE(met->planes[1].server || met->planes[2].server);
}

TEST(JobRendezvous, RequiresAddressAcrossMachines) {
  const thrown::LogLines lines;
  const auto without = meet(false);
  EXPECT_THAT(without->errors, Each(""));
  for (const ControlPlane& plane : without->planes) EXPECT_FALSE(plane.client || plane.server);
  EXPECT_THAT(lines.text(), AllOf(HasSubstr("spans 3 machines, but has no control server"),
                                  HasSubstr("TUTTI_CONTROL=grpc://")));
  const std::string free = ControlServer::start()->target();
  const EnvironmentScope where("TUTTI_CONTROL", free);
  const auto met = meet(false);
  EXPECT_THAT(met->errors, Each(""));
  EXPECT_EQ(met->first_target(), free);
  for (const ControlPlane& plane : met->planes) EXPECT_TRUE(plane.client);
}

TEST(JobRendezvous, FailureToHostServerIsReportedByAllTasks) {
  const auto other = ControlServer::start();
  const EnvironmentScope where("TUTTI_CONTROL", other->target());
  const auto met = meet(true);
  EXPECT_THAT(met->errors, Each(AllOf(HasSubstr("worker 0 cannot host"), HasSubstr("127.0.0.1:"))));
}

/// Covers every resolver whose cluster may lack this process's task.
TEST(WorkerGroup, RequiresTaskEvenInClusterOfOne) {
  const auto tf_config =
      TfConfigResolver::from_text(R"({"cluster": {"worker": ["127.0.0.1:4000"]}})");
  const StaticResolver fixed({{"worker", {"127.0.0.1:4000"}}});
  const StaticResolver half({{"worker", {"127.0.0.1:4000"}}}, {.task_type = "worker"});
  const UnionResolver both({&tf_config});
  const KubernetesPodsResolver pods(
      {{"pod", "Running", "127.0.0.1", {{"job-name", "tensorflow"}}}});
  const std::vector<const ClusterResolver*> all{&tf_config, &fixed, &half, &both, &pods};
  for (const ClusterResolver* const resolver : all) {
    ASSERT_EQ(resolver->cluster_spec().total_tasks(), 1) << resolver->name();
    EXPECT_INVALID((void)WorkerGroup::join(*resolver),
                   concat(resolver->name(),
                          ".task: expected the task of this process, got "
                          "nothing; add {\"type\": \"worker\", \"index\": 0}"));
  }
}

TEST(WorkerGroup, RefusesListenAddressOfAnotherMachineAtOnce) {
  // 192.0.2.7 belongs to a network reserved for documentation (RFC 5737).
  const StaticResolver elsewhere({{"worker", {"127.0.0.1:4000", "192.0.2.7:4000"}}},
                                 {.task_type = "worker", .task_id = 1});
  const StaticResolver here({{"worker", {"127.0.0.1:4000", "127.0.0.1:4001"}}},
                            {.task_type = "worker", .task_id = 1});
  const WorkerGroupOptions open{.join = {.allow_insecure_network = true}};
  EXPECT_INVALID(
      (void)WorkerGroup::join(elsewhere, open),
      "this task's address in the cluster (or TUTTI_DATA_LISTEN): expected an address of "
      "this machine that this process may listen on, got '192.0.2.7:0': Cannot assign requested "
      "address");
  WorkerGroupOptions listening = open;
  listening.listen_at = "192.0.2.7:5000";
  EXPECT_INVALID((void)WorkerGroup::join(here, listening),
                 "TUTTI_DATA_LISTEN: expected an address of this machine", "'192.0.2.7:5000': ");
  listening.listen_at = "10.0.0.300:5000";
  EXPECT_INVALID((void)WorkerGroup::join(here, listening), "TUTTI_DATA_LISTEN: expected host:port",
                 "10.0.0.300");
  WorkerGroupOptions reached = open;
  reached.reached_at = "10.0.0.300:5000";
  EXPECT_INVALID((void)WorkerGroup::join(here, reached), "TUTTI_DATA_ADDRESS: expected host:port",
                 "10.0.0.300");
}

}  // namespace tutti::key_value_store_test
