// A control plane of tasks that know no addresses, as ranks of an MPI job.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/join_job.h"
#include "tutti/cross_device_ops/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/cluster/control_job.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/ranks.h"

namespace tutti {
namespace meet_for_job_test {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;
constexpr int kTasks = 3;

/// TUTTI_CONTROL while it lives.
class ControlVariable {
 public:
  explicit ControlVariable(const std::string& value) {
    ::setenv("TUTTI_CONTROL", value.c_str(), 1);
  }
  ~ControlVariable() { ::unsetenv("TUTTI_CONTROL"); }
  ControlVariable(const ControlVariable&) = delete;
  ControlVariable& operator=(const ControlVariable&) = delete;
};

struct Met {
  ~Met() {
    while (!planes.empty()) planes.pop_back();  // who hosts leaves last
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
        on_one_machine ? meet_for_job(tasks, *communicator, options)
                       : internal::meet_for_job(tasks, *communicator, options, /*machine=*/rank);
  });
  return met;
}

TEST(MeetForJob, OnOneMachineTheFirstTaskHostsWithASecretOfItsOwn) {
  const testing::HangWatchdog watchdog("meeting on one machine", std::chrono::seconds(60));
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

TEST(MeetForJob, OverMachinesNobodyHostsUnlessTheUserSaysWhere) {
  const testing::HangWatchdog watchdog("meeting over machines", std::chrono::seconds(60));
  control_job::Lines lines;
  const auto without = meet(false);
  EXPECT_THAT(without->errors, Each(""));
  for (const ControlPlane& plane : without->planes) EXPECT_FALSE(plane.client || plane.server);
  EXPECT_THAT(lines.all(), AllOf(HasSubstr("on 3 machines"), HasSubstr("TUTTI_CONTROL=grpc://")));
  const std::string free = ControlServer::start()->target();
  const ControlVariable where(free);
  const auto met = meet(false);
  EXPECT_THAT(met->errors, Each(""));
  EXPECT_EQ(met->first_target(), free);
  for (const ControlPlane& plane : met->planes) EXPECT_TRUE(plane.client);
}

TEST(MeetForJob, AllTasksHearWhyTheFirstOneCannotHost) {
  const testing::HangWatchdog watchdog("a port that is taken", std::chrono::seconds(60));
  const auto other = ControlServer::start();
  const ControlVariable where(other->target());
  const auto met = meet(true);
  EXPECT_THAT(met->errors, Each(AllOf(HasSubstr("worker 0 cannot host"), HasSubstr("127.0.0.1:"))));
}

}  // namespace meet_for_job_test
}  // namespace tutti
