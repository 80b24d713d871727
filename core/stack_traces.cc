// A signal makes each thread write down its own frames; names are looked up outside the handler.
// SPDX-License-Identifier: Apache-2.0
#include "core/stack_traces.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "core/file.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"
#include "tutti/core/text.h"

namespace tutti {
namespace {

constexpr int kMostFrames = 64;

/// What the handler writes to. A thread that answers too late must not write over the answer of the
/// next one: it takes the question's number along.
struct Answer {
  std::atomic<int> asked_thread{0};
  std::array<void*, kMostFrames> frames;
  int num_frames = 0;
  std::atomic<int> answered_thread{0};
};
Answer answer;

void write_down_frames(int) {
  const int saved_errno = errno;
  int self = static_cast<int>(syscall(SYS_gettid));
  const int wanted = self;
  // A thread no longer asked changes nothing.
  if (answer.asked_thread.compare_exchange_strong(self, 0)) {
    answer.num_frames = backtrace(answer.frames.data(), kMostFrames);
    answer.answered_thread.store(wanted, std::memory_order_release);
  }
  errno = saved_errno;
}

int stack_signal() { return SIGRTMIN + 3; }

void install_handler() {
  // The first backtrace loads a library, which a signal handler must not do.
  void* frame[1];
  backtrace(frame, 1);
  struct sigaction action = {};
  action.sa_handler = write_down_frames;
  action.sa_flags = SA_RESTART;
  sigaction(stack_signal(), &action, nullptr);
}

std::string frames_as_text() {
  const std::unique_ptr<char*, void (*)(void*)> lines(
      backtrace_symbols(answer.frames.data(), answer.num_frames), std::free);
  std::string text;
  for (int i = 0; lines != nullptr && i < answer.num_frames; ++i) {
    text += concat("    ", lines.get()[i], "\n");
  }
  return text;
}

std::string stack_of(int thread) {
  const std::string name = read_file_if_any(concat("/proc/self/task/", thread, "/comm"));
  if (name.empty()) return "";  // ended in the meantime
  std::string text = concat("  thread ", thread, " ", name);
  answer.answered_thread.store(0);
  answer.asked_thread.store(thread);
  if (syscall(SYS_tgkill, getpid(), thread, stack_signal()) != 0) return text;
  Clock& clock = Clock::system();
  const TimePoint deadline = deadline_after(clock.now(), std::chrono::seconds(1));
  while (answer.answered_thread.load(std::memory_order_acquire) != thread) {
    int still_asked = thread;
    if (clock.now() > deadline && answer.asked_thread.compare_exchange_strong(still_asked, 0)) {
      return text + "    (did not answer)\n";
    }
    clock.sleep_for(std::chrono::milliseconds(1));
  }
  return text + frames_as_text();
}

}  // namespace

std::string stacks_of_all_threads() {
  static Mutex turns;
  MutexLock lock(turns);
  install_handler();
  std::string text;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    text += stack_of(std::stoi(task.path().filename().string()));
  }
  return text;
}

}  // namespace tutti
