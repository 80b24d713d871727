// Implements HangWatchdog with a thread that waits until the test ends or the time limit passes.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/hang_watchdog.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "core/process_probe.h"
#include "tests/support/sanitizers.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::testing {
namespace {

constexpr int kLimitFactor = kIsSanitized ? 6 : 1;

}  // namespace

void print_all_stacks() { std::fputs(stacks_of_all_threads().c_str(), stderr); }

struct HangWatchdog::Impl {
  Event finished;
  std::unique_ptr<Thread> thread;
};

HangWatchdog::HangWatchdog(std::string what, std::chrono::seconds limit)
    : impl_(std::make_unique<Impl>()) {
  limit *= kLimitFactor;
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
