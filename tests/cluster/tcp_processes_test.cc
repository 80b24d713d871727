// TCP groups of real processes: one is killed, one is stopped, one finds an earlier run's store.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/hang_watchdog.h"
#include "tutti/cluster/file_key_value_store.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"

namespace tutti {
namespace tcp_processes_test {

/// A process with a pipe from its standard output. Killed when destroyed.
class RankProcess {
 public:
  RankProcess(const std::string& folder, int rank, int size, int peer, int timeout_ms,
              const std::vector<std::string>& more = {}) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw Error(ErrorCode::kUnavailable, "no pipe");
    std::vector<std::string> words{TUTTI_TCP_RANK,       folder,
                                   std::to_string(rank), std::to_string(size),
                                   std::to_string(peer), std::to_string(timeout_ms)};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_addclose(&actions, ends[0]);
    ::posix_spawn_file_actions_addclose(&actions, ends[1]);
    const int error =
        ::posix_spawn(&pid_, TUTTI_TCP_RANK, &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    output_ = ::fdopen(ends[0], "r");
    if (error != 0) throw Error(ErrorCode::kUnavailable, "cannot start " TUTTI_TCP_RANK);
  }
  ~RankProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    std::fclose(output_);
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  void signal(int number) { ::kill(pid_, number); }
  int pid() const { return pid_; }
  std::string line() {
    std::array<char, 1024> text{};
    return std::fgets(text.data(), text.size(), output_) ? text.data() : "end";
  }

 private:
  pid_t pid_ = 0;
  std::FILE* output_ = nullptr;
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
  const testing::HangWatchdog watchdog("two processes", std::chrono::seconds(60));
  for (const int first : {0, 1}) {
    const std::string folder = fresh_folder(concat("first_", first));
    RankProcess early(folder, first, 2, 1 - first, 30000);
    Clock::system().sleep_for(std::chrono::milliseconds(400));
    RankProcess late(folder, 1 - first, 2, first, 30000);
    EXPECT_EQ(early.line(), concat("ready ", 1 - first, "\n"));
    EXPECT_EQ(late.line(), concat("ready ", first, "\n"));
  }
}

TEST(TcpProcesses, TheOthersNameARankThatWasKilled) {
  const testing::HangWatchdog watchdog("killed rank", std::chrono::seconds(60));
  const std::string folder = fresh_folder("killed");
  RankProcess zero(folder, 0, 3, 2, 30000), one(folder, 1, 3, 2, 30000),
      two(folder, 2, 3, 0, 30000);
  EXPECT_EQ(zero.line(), "ready 2\n");
  EXPECT_EQ(one.line(), "ready 0\n");
  EXPECT_EQ(two.line(), "ready 1\n");
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
  const testing::HangWatchdog watchdog(std::string("killed in ") + GetParam().name,
                                       std::chrono::seconds(60));
  const std::string folder = fresh_folder(concat("dying_", GetParam().name));
  RankProcess zero(folder, 0, 2, 1, 30000, GetParam().more),
      one(folder, 1, 2, 0, 30000, GetParam().more);
  EXPECT_EQ(zero.line(), "ready 1\n");
  EXPECT_EQ(one.line(), "ready 0\n");
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
  const testing::HangWatchdog watchdog(std::string("stopped in ") + GetParam().name,
                                       std::chrono::seconds(60));
  const std::string folder = fresh_folder(concat("stopped_", GetParam().name));
  RankProcess zero(folder, 0, 2, 1, 700, GetParam().more),
      one(folder, 1, 2, 0, 30000, GetParam().more);
  EXPECT_EQ(zero.line(), "ready 1\n");
  EXPECT_EQ(one.line(), "ready 0\n");
  one.signal(SIGSTOP);
  const std::string line = zero.line();
  EXPECT_EQ(line.rfind("error 4 ", 0), 0u) << line;
  EXPECT_NE(line.find("rank"), std::string::npos) << line;
}

TEST(TcpProcesses, AStoppedRankIsNamedAtTheDeadline) {
  const testing::HangWatchdog watchdog("stopped rank", std::chrono::seconds(60));
  const std::string folder = fresh_folder("stopped");
  RankProcess zero(folder, 0, 2, 1, 300), one(folder, 1, 2, 0, 30000);
  EXPECT_EQ(one.line(), "ready 0\n");
  one.signal(SIGSTOP);
  EXPECT_EQ(zero.line(), "ready 1\n");
  expect_code(zero.line(), ErrorCode::kDeadlineExceeded, "rank 1 (127.0.0.1:");
}

TEST(TcpProcesses, WhatAnEarlierRunLeftInTheStoreDoesNotConfuse) {
  const testing::HangWatchdog watchdog("stale store", std::chrono::seconds(60));
  const std::string folder = fresh_folder("stale");
  for (int run = 0; run < 3; ++run) {  // higher ranks first: they read the old addresses
    RankProcess two(folder, 2, 3, 0, 1), one(folder, 1, 3, 0, 1);
    Clock::system().sleep_for(std::chrono::milliseconds(30));
    RankProcess zero(folder, 0, 3, 1, 1);
    EXPECT_EQ(zero.line(), "ready 2\n");
    EXPECT_EQ(one.line(), "ready 0\n");
    EXPECT_EQ(two.line(), "ready 1\n");
  }
}

}  // namespace tcp_processes_test
}  // namespace tutti
