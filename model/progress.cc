// Progress display of an epoch: one line, updated in place on a terminal and otherwise printed at
// the end of the epoch.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/progress.h"

#include <sys/ioctl.h>
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

/// Returns the number of columns of the terminal; 1000 if the terminal does not report it.
std::size_t columns_of(std::FILE* out) {
  winsize size = {};
  const bool is_known = ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 1000;
}

}  // namespace

std::string value_text(double value) {
  if (std::isnan(value)) return "nan";  // printf would print the sign of a NaN
  const double size = std::abs(value);
  return formatted(size == 0.0 || (size >= 1e-3 && size < 1e7) ? "%.4f" : "%.4g", value);
}

std::string duration_text(double seconds) {
  if (seconds < 60.0) return formatted("%.1f s", seconds);
  const auto whole = static_cast<long>(seconds + 0.5);
  if (whole < 3600) return formatted("%ld:%02ld", whole / 60, whole % 60);
  return formatted("%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
}

Progress::Progress(std::FILE* out, Clock& clock, Verbosity verbosity)
    : out_(out),
      clock_(clock),
      shows_split_(verbosity == Verbosity::kProgress),
      is_rewritten_(verbosity == Verbosity::kProgress && isatty(fileno(out)) != 0) {}

void Progress::begin_epoch(std::int64_t epoch, std::int64_t num_epochs,
                           std::optional<std::int64_t> num_steps) {
  num_steps_ = num_steps;
  begin_ = last_shown_ = last_step_time_ = clock_.now();
  last_step_ = examples_ = 0;
  title_ = concat("epoch ", epoch + 1, "/", num_epochs);
  if (is_rewritten_) std::fprintf(out_, "%s\n", title_.c_str());
  // Flush, because a pipe would otherwise hold back earlier output, such as the summary, for an
  // epoch.
  std::fflush(out_);
}

double Progress::examples_per_second() const {
  const double seconds = seconds_between(begin_, last_step_time_);
  return seconds > 0.0 ? static_cast<double>(examples_) / seconds : 0.0;
}

std::string Progress::fitted_line(std::int64_t step, LogValues values) const {
  const double seconds = seconds_between(begin_, clock_.now());
  std::string steps = num_steps_ ? concat("  ", step, "/", *num_steps_) : concat("  ", step);
  if (!is_rewritten_ || !num_steps_) steps += " steps";
  std::string shown;
  for (const auto& [name, value] : values) shown += concat("  ", name, " ", value_text(value));
  const std::string rate = formatted("  %.0f examples/s", examples_per_second());
  std::string time = "  " + duration_text(seconds);
  if (num_steps_ && step > 0 && step < *num_steps_) {
    time = "  ETA " + duration_text(seconds / static_cast<double>(step) *
                                    static_cast<double>(*num_steps_ - step));
  }
  if (!is_rewritten_) return title_ + steps + shown + rate + time;
  const std::string with_bar = num_steps_ ? "  " + bar(step, *num_steps_) + steps.substr(1) : steps;
  // Leave the last column empty: a full line would wrap and could not be rewritten.
  const std::size_t room = columns_of(out_) - 1;
  std::string text = with_bar + shown + rate + time;
  if (text.size() > room) text = with_bar + shown + time;
  if (text.size() > room) text = steps + shown + time;
  if (text.size() > room) text = steps + shown;
  if (text.size() > room) text.resize(room);
  return text;
}

std::string Progress::split_text(const TimeSplit& split) const {
  const double total = split.compute + split.communication + split.input_wait;
  if (!shows_split_ || total <= 0.0) return "";
  return formatted("  compute %.0f %%  communication %.0f %%  input wait %.0f %%",
                   100.0 * split.compute / total, 100.0 * split.communication / total,
                   100.0 * split.input_wait / total);
}

bool Progress::due() const {
  return is_rewritten_ && seconds_between(last_shown_, clock_.now()) >= kSecondsBetweenUpdates;
}

void Progress::step(std::int64_t step, std::int64_t examples, LogValues values) {
  examples_ += examples;
  last_step_time_ = clock_.now();
  last_step_ = step;
  if (!due()) return;
  std::fprintf(out_, "\r\x1b[K%s", fitted_line(step, values).c_str());
  std::fflush(out_);
  last_shown_ = clock_.now();
}

void Progress::end_epoch(LogValues values, const TimeSplit& split) {
  const std::string line = fitted_line(last_step_, values), shares = split_text(split);
  if (!is_rewritten_) {
    std::fprintf(out_, "%s%s\n", line.c_str(), shares.c_str());
  } else {
    std::fprintf(out_, "\r\x1b[K%s\n", line.c_str());
    if (!shares.empty()) std::fprintf(out_, "%s\n", shares.c_str());
  }
  std::fflush(out_);
}

}  // namespace tutti
