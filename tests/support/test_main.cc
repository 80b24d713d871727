// Main function of every test program.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "tests/support/hang_watchdog.h"
#include "tests/support/process_function.h"
#include "tests/support/sanitizers.h"

namespace {

/// Listener that ends a program whose test hangs, and prints the stacks of all threads. Uses an
/// alarm instead of a thread, because some tests count threads, and some call fork().
class TestLimit : public testing::EmptyTestEventListener {
 public:
  // Shorter than ctest's limit, so that the stacks are printed.
  static constexpr unsigned kSeconds = (tutti::testing::kIsSanitized ? 2 : 1) * 600;

  TestLimit() {
    struct sigaction action = {};
    action.sa_handler = &end;
    action.sa_flags = SA_NODEFER;  // end() sets a second alarm, which must interrupt end()
    ::sigaction(SIGALRM, &action, nullptr);
  }
  void OnTestStart(const testing::TestInfo&) override { ::alarm(kSeconds); }
  void OnTestEnd(const testing::TestInfo&) override { ::alarm(0); }

 private:
  static void end(int) {
    ::signal(SIGALRM, SIG_DFL);
    ::alarm(10);  // ends the program if a lock prevents printing the stacks
    std::fprintf(stderr, "HANG: a test did not finish within %u s\n", kSeconds);
    tutti::testing::print_all_stacks();
    std::fflush(stderr);
    std::_Exit(1);
  }
};

/// Folder for this process and its child processes. testing::TempDir() and
/// std::filesystem::temp_directory_path() return it, so concurrent runs never share a file. The
/// destructor removes the folder in the process that created it.
class TestFolder {
 public:
  TestFolder() {
    if (std::getenv(kOwner)) return;  // a test, which has a folder, started this program
    const char* const parent = std::getenv("TEST_TMPDIR");
    path_ = parent ? std::string(parent) : std::filesystem::temp_directory_path().string();
    path_ += "/tutti_test_XXXXXX";
    if (!::mkdtemp(path_.data())) {
      std::perror(path_.c_str());
      std::exit(1);
    }
    for (const char* const name : {"TEST_TMPDIR", "TMPDIR", kOwner}) {
      ::setenv(name, path_.c_str(), /*overwrite=*/1);
    }
  }
  ~TestFolder() {
    std::error_code ignored;
    if (!path_.empty() && ::getpid() == owner_) std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

 private:
  static constexpr const char* kOwner = "TUTTI_TEST_FOLDER";
  std::string path_;
  const pid_t owner_ = ::getpid();  // a forked child must not remove the folder
};

}  // namespace

int main(int argc, char** argv) {
  // Many tests compare log lines of this level, including lines of programs that they start.
  ::setenv("TUTTI_LOG_LEVEL", "info", /*overwrite=*/0);
  // One of this program's tests may have started this process.
  if (const std::optional<int> code = tutti::testing::run_process_function()) return *code;
  const TestFolder folder;
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new TestLimit);  // takes ownership
  return RUN_ALL_TESTS();
}
