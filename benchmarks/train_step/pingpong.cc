// Prints, in nanoseconds, the round-trip time of a cache line between CPU 0 and CPU 1, which
// distinguishes near cores from distant ones.
// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <new>

#include "tutti/core/clock.h"

namespace {

constexpr int kRoundTrips = 100'000;

struct Lines {
  alignas(64) std::atomic<int> ball{0};
  alignas(64) std::atomic<int> answer{0};
};

bool pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

void answer_all(Lines& lines) {
  for (int i = 1; i <= kRoundTrips; ++i) {
    while (lines.ball.load(std::memory_order_acquire) != i) {
    }
    lines.answer.store(i, std::memory_order_release);
  }
}

double serve_all(Lines& lines) {
  const tutti::Clock& clock = tutti::Clock::system();
  const tutti::TimePoint begin = clock.now();
  for (int i = 1; i <= kRoundTrips; ++i) {
    lines.ball.store(i, std::memory_order_release);
    while (lines.answer.load(std::memory_order_acquire) != i) {
    }
  }
  return 1e9 * tutti::seconds_between(begin, clock.now()) / kRoundTrips;
}

}  // namespace

int main() {
  void* memory =
      mmap(nullptr, sizeof(Lines), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  // Constructs the lines in the shared memory, without an allocation.
  Lines& lines = *::new (memory) Lines;
  const pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    pin_to(1);
    answer_all(lines);
    _exit(0);
  }
  const bool pinned = pin_to(0);
  const double nanoseconds = serve_all(lines);
  waitpid(child, nullptr, 0);
  if (!pinned) std::fprintf(stderr, "pingpong: cannot pin the process to CPU 0\n");
  std::printf("%.0f\n", nanoseconds);
  return pinned ? 0 : 1;
}
