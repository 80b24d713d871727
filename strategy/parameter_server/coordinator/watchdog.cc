// A thread that counts and waits.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/watchdog.h"

#include <utility>

#include "core/process_probe.h"
#include "tutti/core/logging.h"
#include "tutti/core/text.h"

namespace tutti {

Watchdog::Watchdog(WatchdogOptions options, std::function<std::uint64_t()> count)
    : options_(std::move(options)), count_(std::move(count)) {
  if (options_.timeout <= Duration::zero()) return;
  thread_ = Executor::system().start("ps-watchdog", [this] { run(); });
}

Watchdog::~Watchdog() { stop_.set(); }

void Watchdog::run() {
  Clock& clock = Clock::system();
  std::uint64_t last_count = count_();
  TimePoint since = clock.now();
  while (!stop_.wait_until(deadline_after(clock.now(), options_.timeout / 10))) {
    const std::uint64_t count = count_();
    if (count != last_count) {
      last_count = count;
      since = clock.now();
    } else if (clock.now() - since >= options_.timeout) {
      log(LogLevel::kError,
          concat("coordinator: no closure finished for ", seconds_between(since, clock.now()),
                 " s; ", options_.describe ? options_.describe() : std::string("under way: ?"),
                 "\nstacks of all threads:\n", stacks_of_all_threads()));
      if (options_.on_timeout) options_.on_timeout();
      since = clock.now();
    }
  }
}

}  // namespace tutti
