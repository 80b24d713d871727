// TCP groups of real processes: one is killed, one is stopped, one finds an earlier run's store.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/line_process.h"
#include "tutti/cluster/key_value_stores.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"

namespace tutti {
namespace tcp_processes_test {
class RankProcess : public testing::LineProcess {
 public:
  RankProcess(const std::string& folder, int rank, int size, int peer, int timeout_ms,
              const std::vector<std::string>& more = {})
      : LineProcess(words(folder, {rank, size, peer, timeout_ms}, more)) {}

 private:
  static std::vector<std::string> words(const std::string& folder, const std::vector<int>& numbers,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> all{TUTTI_TCP_RANK, folder};
    for (const int number : numbers) all.push_back(std::to_string(number));
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

std::string fresh_folder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/tutti_tcp_" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

void expect_code(const std::string& line, ErrorCode code, const std::string& part) {
  EXPECT_EQ(line.rfind(concat("error ", static_cast<int>(code), " "), 0), 0u) << line;
  EXPECT_NE(line.find(part), std::string::npos) << line;
}

TEST(TcpProcesses, EitherOfTwoMayStartFirst) {
  for (const int first : {0, 1}) {
    const std::string folder = fresh_folder(concat("first_", first));
    RankProcess early(folder, first, 2, 1 - first, 30000);
    Clock::system().sleep_for(std::chrono::milliseconds(400));
    RankProcess late(folder, 1 - first, 2, first, 30000);
    EXPECT_EQ(early.line(), concat("ready ", 1 - first));
    EXPECT_EQ(late.line(), concat("ready ", first));
  }
}

TEST(TcpProcesses, TheOthersNameARankThatWasKilled) {
  const std::string folder = fresh_folder("killed");
  RankProcess zero(folder, 0, 3, 2, 30000), one(folder, 1, 3, 2, 30000),
      two(folder, 2, 3, 0, 30000);
  EXPECT_EQ(zero.line(), "ready 2");
  EXPECT_EQ(one.line(), "ready 0");
  EXPECT_EQ(two.line(), "ready 1");
  two.signal(SIGKILL);
  for (RankProcess* rank : {&zero, &one}) {
    expect_code(rank->line(), ErrorCode::kUnavailable, "rank 2 (127.0.0.1:");
  }
}

// What a rank does when another one dies, and in which words it says so.
struct Death {
  const char* name;
  std::vector<std::string> more;
  const char* words;
};

class DyingProcesses : public ::testing::TestWithParam<Death> {};

INSTANTIATE_TEST_SUITE_P(
    All, DyingProcesses,
    ::testing::Values(Death{"tcp_wait", {"tcp", "wait"}, "rank 1 (127.0.0.1:"},
                      Death{"tcp_stream", {"tcp", "stream"}, "rank 1 (127.0.0.1:"},
                      Death{"tcp_reduce", {"tcp", "reduce", "100000"}, "rank 1 (127.0.0.1:"},
                      Death{"shm_wait", {"shm", "wait"}, "rank 1 (pid "},
                      Death{"shm_stream", {"shm", "stream"}, "rank 1 (pid "},
                      Death{"small_reduce", {"shm", "reduce", "64"}, "rank 1 (pid "},
                      Death{"staged_reduce", {"shm", "reduce", "1000000"}, "rank 1 (pid "},
                      Death{"shared_reduce", {"shm", "shared", "1000000"}, "rank 1 (pid "}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(DyingProcesses, ARankThatIsKilledAtWorkIsNamedAtOnce) {
  const std::string folder = fresh_folder(concat("dying_", GetParam().name));
  RankProcess zero(folder, 0, 2, 1, 30000, GetParam().more),
      one(folder, 1, 2, 0, 30000, GetParam().more);
  EXPECT_EQ(zero.line(), "ready 1");
  EXPECT_EQ(one.line(), "ready 0");
  Clock::system().sleep_for(std::chrono::milliseconds(150));
  const TimePoint begin = Clock::system().now();
  one.signal(SIGKILL);
  const std::string line = zero.line();
  RecordProperty("milliseconds",
                 static_cast<int>(1e3 * seconds_between(begin, Clock::system().now())));
  expect_code(line, ErrorCode::kUnavailable, GetParam().words);
  const std::string pid = concat("pid ", one.pid());
  const bool names_pid = GetParam().more[0] == "shm";
  EXPECT_EQ(line.find(pid) != std::string::npos, names_pid) << line;
}

TEST_P(DyingProcesses, ARankThatIsStoppedAtWorkIsNamedAtTheDeadline) {
  const std::string folder = fresh_folder(concat("stopped_", GetParam().name));
  RankProcess zero(folder, 0, 2, 1, 700, GetParam().more),
      one(folder, 1, 2, 0, 30000, GetParam().more);
  EXPECT_EQ(zero.line(), "ready 1");
  EXPECT_EQ(one.line(), "ready 0");
  one.signal(SIGSTOP);
  const std::string line = zero.line();
  EXPECT_EQ(line.rfind("error 4 ", 0), 0u) << line;
  EXPECT_NE(line.find("rank"), std::string::npos) << line;
}

TEST(TcpProcesses, AStoppedRankIsNamedAtTheDeadline) {
  const std::string folder = fresh_folder("stopped");
  RankProcess zero(folder, 0, 2, 1, 300), one(folder, 1, 2, 0, 30000);
  EXPECT_EQ(one.line(), "ready 0");
  one.signal(SIGSTOP);
  EXPECT_EQ(zero.line(), "ready 1");
  expect_code(zero.line(), ErrorCode::kDeadlineExceeded, "rank 1 (127.0.0.1:");
}

TEST(TcpProcesses, WhatAnEarlierRunLeftInTheStoreDoesNotConfuse) {
  const std::string folder = fresh_folder("stale");
  for (int run = 0; run < 3; ++run) {  // higher ranks first: they read the old addresses
    RankProcess two(folder, 2, 3, 0, 1), one(folder, 1, 3, 0, 1);
    Clock::system().sleep_for(std::chrono::milliseconds(30));
    RankProcess zero(folder, 0, 3, 1, 1);
    EXPECT_EQ(zero.line(), "ready 2");
    EXPECT_EQ(one.line(), "ready 0");
    EXPECT_EQ(two.line(), "ready 1");
  }
}

}  // namespace tcp_processes_test
}  // namespace tutti
