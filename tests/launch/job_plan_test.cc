// Tests addresses, environments, cores and printed commands of a job.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/job_plan.h"

#include <gtest/gtest.h>

#include <set>

namespace tutti::launch::job_plan_test {

std::string value_of(const ProcessPlan& process, const std::string& name) {
  std::string value = "unset";
  int times = 0;
  for (const auto& [each, text] : process.environment) {
    if (each == name) value = text, ++times;
  }
  EXPECT_LE(times, 1) << name;
  return value;
}

TEST(Task, TfConfigNamesEveryTaskAndOnesOwn) {
  const std::vector<Task> tasks = make_tasks({1, 2, 1}, {"a:1", "b:2", "c:3", "d:4"});
  EXPECT_EQ(tasks[2].name(), "worker-1");
  EXPECT_EQ(tf_config(tasks, tasks[2]),
            R"({"cluster":{"chief":["a:1"],"worker":["b:2","c:3"],"ps":["d:4"]},)"
            R"("task":{"type":"worker","index":1}})");
  EXPECT_EQ(tf_config(make_tasks({0, 1, 0}, {"a:1"}), Task{"worker", 0, "a:1"}),
            R"({"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":0}})");
}

TEST(FreePorts, AreDifferentAndBelowThoseOfTheKernel) {
  const std::vector<int> ports = free_ports(50);
  EXPECT_EQ(std::set<int>(ports.begin(), ports.end()).size(), 50u);
  for (const int port : ports) {
    EXPECT_GE(port, 10'000);
    EXPECT_LT(port, 61'000);
  }
}

TEST(FreePorts, AreNotGivenToASecondJob) {
  std::set<int> seen;
  for (int i = 0; i < 10;
       ++i) {  // by chance alone, two of 500 ports would be the same in 99 % of runs
    for (const int port : free_ports(50)) EXPECT_TRUE(seen.insert(port).second) << port;
  }
}

TEST(JobPlan, CoresAreSharedInEqualParts) {
  using Cores = std::vector<int>;
  const Cores four{0, 1, 4, 5};
  EXPECT_EQ(cores_of_rank(four, 0, 2), (Cores{0, 1}));
  EXPECT_EQ(cores_of_rank(four, 1, 2), (Cores{4, 5}));
  EXPECT_EQ(cores_of_rank(four, 0, 3), (Cores{0}));
  EXPECT_EQ(cores_of_rank(four, 1, 3), (Cores{1}));
  EXPECT_EQ(cores_of_rank(four, 2, 3), (Cores{4, 5}));
  EXPECT_EQ(cores_of_rank(four, 5, 6), (Cores{1}));
}

TEST(JobPlan, TheUsersVariablesWin) {
  JobRequest request;
  request.counts.workers = 2;
  request.environment = {{"TUTTI_JOB_ID", "mine"}, {"A", "1"}, {"A", "2"}};
  request.cores = {0, 1, 2, 3};
  JobPlan plan = make_plan(request);
  plan.add_variable("A", "3");
  plan.add_variable("B", "4");
  for (const ProcessPlan& process : plan.processes) {
    EXPECT_EQ(value_of(process, "TUTTI_JOB_ID"), "mine");
    EXPECT_EQ(value_of(process, "A"), "2");
    EXPECT_EQ(value_of(process, "B"), "4");
    EXPECT_EQ(value_of(process, "TUTTI_RESTART"), "0");
    EXPECT_TRUE(process.cores.empty());
  }
}

TEST(JobPlan, HostsGetEqualRunsOfTasksAndTheirOwnPorts) {
  JobRequest request;
  request.counts = {0, 5, 0};
  request.hosts = {"a", "b"};
  request.first_port = 7000;
  std::vector<std::string> addresses;
  for (const ProcessPlan& process : make_plan(request).processes) {
    addresses.push_back(process.task.address);
    EXPECT_EQ(process.task.address.substr(0, 1), process.host);
  }
  EXPECT_EQ(addresses,
            (std::vector<std::string>{"a:7000", "a:7001", "a:7002", "b:7000", "b:7001"}));
}

TEST(JobPlan, IdsDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 20; ++i) ids.insert(make_job_id());
  EXPECT_EQ(ids.size(), 20u);
}

TEST(ShellQuote, LeavesPlainWordsAndQuotesTheRest) {
  EXPECT_EQ(shell_quote("--rate=0.1,x/y"), "--rate=0.1,x/y");
  EXPECT_EQ(shell_quote(""), "''");
  EXPECT_EQ(shell_quote("a b"), "'a b'");
  EXPECT_EQ(shell_quote("it's $HOME"), R"('it'\''s $HOME')");
  EXPECT_EQ(shell_quote("~"), "'~'");
}

TEST(DryRun, PrintsOneCommandPerProcess) {
  JobPlan plan;
  plan.job_id = "j";
  plan.arguments = {"./train", "a b"};
  plan.processes.push_back({{"worker", 0, "h:1"}, "h", {{"TF_CONFIG", "{}"}}, {2, 3}});
  EXPECT_EQ(
      dry_run_text(plan),
      "# Job j, processes: 1. First make its secret; other machines need a copy of the file, "
      "mode 0600.\n"
      "(umask 077; mkdir -p ~/.tutti; head -c 48 /dev/urandom | base64 > ~/.tutti/j.secret)\n"
      "# worker-0 on h\n"
      "TF_CONFIG='{}' TUTTI_JOB_SECRET_FILE=~/.tutti/j.secret taskset -c 2,3 ./train 'a b'\n");
}

}  // namespace tutti::launch::job_plan_test
