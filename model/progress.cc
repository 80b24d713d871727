// Progress display of an epoch: one line that is rewritten on a terminal, a line per tenth of the
// epoch elsewhere, or one line at its end.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "tutti/core/text.h"

namespace tutti {
namespace {

constexpr std::int64_t kBarWidth = 24;
constexpr double kSecondsBetweenUpdates = 0.1;

template <class... Arguments>
std::string formatted(const char* format, Arguments... arguments) {
  char text[128];
  std::snprintf(text, sizeof text, format, arguments...);
  return text;
}

std::string bar(std::int64_t step, std::int64_t num_steps) {
  const std::int64_t full = num_steps > 0 ? std::min(kBarWidth, kBarWidth * step / num_steps) : 0;
  return "[" + std::string(static_cast<std::size_t>(full), '#') +
         std::string(static_cast<std::size_t>(kBarWidth - full), '.') + "]";
}

}  // namespace

std::string duration_text(double seconds) {
  if (seconds < 60.0) return formatted("%.1f s", seconds);
  const auto whole = static_cast<long>(seconds + 0.5);
  if (whole < 3600) return formatted("%ld:%02ld", whole / 60, whole % 60);
  return formatted("%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
}

Progress::Progress(std::FILE* out, Clock& clock, Verbosity verbosity)
    : out_(out),
      clock_(clock),
      terminal_(isatty(fileno(out)) != 0),
      line_per_epoch_(verbosity == Verbosity::kLinePerEpoch) {}

void Progress::begin_epoch(std::int64_t epoch, std::int64_t num_epochs,
                           std::optional<std::int64_t> num_steps) {
  num_steps_ = num_steps;
  begin_ = last_shown_ = last_step_time_ = clock_.now();
  last_step_ = examples_ = 0;
  title_ = concat("epoch ", epoch + 1, "/", num_epochs);
  if (line_per_epoch_) return;
  std::fprintf(out_, "%s\n", title_.c_str());
  std::fflush(out_);
}

double Progress::examples_per_second() const {
  const double seconds = seconds_between(begin_, last_step_time_);
  return seconds > 0.0 ? static_cast<double>(examples_) / seconds : 0.0;
}

std::string Progress::line(std::int64_t step, LogValues values) const {
  const double seconds = seconds_between(begin_, clock_.now());
  std::string text = "  ";
  if (num_steps_) {
    text += concat(line_per_epoch_ ? "" : bar(step, *num_steps_) + " ", step, "/", *num_steps_);
    if (line_per_epoch_) text += " steps";
  } else {
    text += concat(step, " steps");
  }
  for (const auto& [name, value] : values) {
    // printf would print the sign of a NaN.
    text += concat("  ", name, std::isnan(value) ? " nan" : formatted(" %.4f", value));
  }
  text += formatted("  %.0f examples/s", examples_per_second());
  if (num_steps_ && step > 0 && step < *num_steps_) {
    const double left =
        seconds / static_cast<double>(step) * static_cast<double>(*num_steps_ - step);
    text += "  ETA " + duration_text(left);
  } else {
    text += "  " + duration_text(seconds);
  }
  return text;
}

bool Progress::due(std::int64_t step) const {
  if (line_per_epoch_) return false;
  if (terminal_) return seconds_between(last_shown_, clock_.now()) >= kSecondsBetweenUpdates;
  // A log file gets a line per tenth of the epoch, or per 100 steps when its length is unknown.
  const std::int64_t stride = num_steps_ ? std::max<std::int64_t>(1, *num_steps_ / 10) : 100;
  return step / stride != last_step_ / stride && (!num_steps_ || step < *num_steps_);
}

void Progress::step(std::int64_t step, std::int64_t examples, LogValues values) {
  examples_ += examples;
  last_step_time_ = clock_.now();
  if (due(step)) {
    std::fprintf(out_, terminal_ ? "\r\x1b[K%s" : "%s\n", line(step, values).c_str());
    std::fflush(out_);
    last_shown_ = clock_.now();
  }
  last_step_ = step;
}

void Progress::end_epoch(LogValues values, const TimeSplit& split) {
  if (line_per_epoch_) {
    std::fprintf(out_, "%s%s\n", title_.c_str(), line(last_step_, values).c_str());
    std::fflush(out_);
    return;
  }
  std::fprintf(out_, terminal_ ? "\r\x1b[K%s\n" : "%s\n", line(last_step_, values).c_str());
  const double total = split.compute + split.communication + split.input_wait;
  if (total > 0.0) {
    std::fprintf(out_, "  compute %.0f %%  communication %.0f %%  input wait %.0f %%\n",
                 100.0 * split.compute / total, 100.0 * split.communication / total,
                 100.0 * split.input_wait / total);
  }
  std::fflush(out_);
}

}  // namespace tutti
