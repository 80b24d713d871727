// The watchdog asks each thread, one after the other, by a signal to print its own stack.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/hang_watchdog.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "tutti/core/executor.h"
#include "tutti/core/file.h"
#include "tutti/core/sync.h"

namespace tutti::testing {
namespace {

std::atomic<int> stacks_printed{0};

void print_own_stack(int) {
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  stacks_printed.fetch_add(1);
}

int stack_signal() { return SIGRTMIN + 3; }

void install_handler() {
  // The first backtrace loads a library, which a signal handler must not do.
  void* frame[1];
  backtrace(frame, 1);
  struct sigaction action = {};
  action.sa_handler = print_own_stack;
  action.sa_flags = SA_RESTART;
  sigaction(stack_signal(), &action, nullptr);
}

void print_stack_of(int thread_id) {
  std::string name = "?";
  try {
    name = read_file(concat("/proc/self/task/", thread_id, "/comm"));
  } catch (const Error&) {
    return;  // ended in the meantime
  }
  std::fprintf(stderr, "--- thread %d: %s", thread_id, name.c_str());
  const int before = stacks_printed.load();
  if (syscall(SYS_tgkill, getpid(), thread_id, stack_signal()) != 0) return;
  const TimePoint deadline = deadline_after(Clock::system().now(), std::chrono::seconds(1));
  while (stacks_printed.load() == before) {
    if (Clock::system().now() > deadline) {
      std::fprintf(stderr, "(did not answer: busy outside of system calls)\n");
      return;
    }
    Clock::system().sleep_for(std::chrono::milliseconds(1));
  }
}

constexpr int limit_factor() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return 6;
#else
  return 1;
#endif
}

}  // namespace

void print_all_stacks() {
  install_handler();
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    print_stack_of(std::stoi(task.path().filename().string()));
  }
}

struct HangWatchdog::Impl {
  Event finished;
  std::unique_ptr<Thread> thread;
};

HangWatchdog::HangWatchdog(std::string what, std::chrono::seconds limit)
    : impl_(std::make_unique<Impl>()) {
  limit *= limit_factor();
  Event& finished = impl_->finished;
  auto watch = [what = std::move(what), limit, &finished] {
    if (finished.wait_until(deadline_after(Clock::system().now(), limit))) return;
    std::fprintf(stderr, "HANG: %s: not finished after %lld s\n", what.c_str(),
                 static_cast<long long>(limit.count()));
    print_all_stacks();
    std::fflush(stderr);
    std::_Exit(1);
  };
  impl_->thread = Executor::system().start("hang-watchdog", std::move(watch));
}

HangWatchdog::~HangWatchdog() { impl_->finished.set(); }

}  // namespace tutti::testing
