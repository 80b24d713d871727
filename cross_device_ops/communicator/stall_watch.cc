// Looking at the last call, and asking the others where they are.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/communicator/stall_watch.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "tutti/core/logging.h"

namespace tutti::internal {

StallWatch::StallWatch(CollectiveEngine& engine, const CallRecorder& recorder, Duration stall_after,
                       std::function<void()> tend)
    : engine_(engine), recorder_(recorder), stall_after_(stall_after), tend_(std::move(tend)) {
  thread_ = Executor::system().start(concat("stall-watch-", engine.rank()), [this] { watch(); });
}

StallWatch::~StallWatch() {
  stop_.set();
  thread_->join();
}

std::string StallWatch::state_of(const CallRecorder& recorder) {
  const std::optional<RecordedCall> last = recorder.last();
  if (!last) return "is in no collective and was in none before";
  const TimePoint now = Clock::system().now();
  if (last->state != CallState::kWaiting) {
    return concat("is in no collective; its last one was ", last->to_string(now));
  }
  std::ostringstream out;
  out << "waits in " << last->header.describe() << " since " << std::fixed << std::setprecision(1)
      << seconds_between(last->begin, now) << " s";
  return out.str();
}

std::string StallWatch::states_of_others(CollectiveEngine& engine) {
  const TimePoint end = deadline_after(Clock::system().now(), std::chrono::seconds(1));
  const std::vector<std::string> states = engine.whereabouts(end);
  std::string text;
  for (std::size_t r = 0; r < states.size(); ++r) {
    if (static_cast<int>(r) == engine.rank()) continue;
    text += concat(text.empty() ? "" : "; ", "rank ", r, " ", states[r]);
  }
  return text;
}

void StallWatch::watch() {
  const Duration tick = std::clamp<Duration>(stall_after_ / 4, std::chrono::milliseconds(10),
                                             std::chrono::milliseconds(100));
  do {
    engine_.tend([this] { return state_of(recorder_); });
    tend_();
    look();
  } while (!stop_.wait_until(deadline_after(Clock::system().now(), tick)));
}

void StallWatch::look() {
  const std::optional<RecordedCall> last = recorder_.last();
  if (!last || last->state != CallState::kWaiting || reported_ == last->header.sequence) return;
  if (Clock::system().now() - last->begin < stall_after_) return;
  reported_ = last->header.sequence;
  log_warning(concat("stalled: rank ", engine_.rank(), " ", state_of(recorder_), "; ",
                     states_of_others(engine_)));
}

}  // namespace tutti::internal
