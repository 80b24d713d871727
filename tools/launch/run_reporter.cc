// Implements RunReporter, which writes a job's output without waiting for a reader.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/run_reporter.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

namespace tutti::launch {
namespace {

constexpr std::size_t kNamesInMessage = 8;
constexpr std::size_t kVisibleLines = 12;
constexpr std::array kColors{36, 33, 32, 35, 34, 96, 93, 92, 95, 94};

bool wants_colors(int fd) {
  const char* const terminal = std::getenv("TERM");
  return ::isatty(fd) && !std::getenv("NO_COLOR") && terminal && std::string(terminal) != "dumb";
}

bool same_file(int a, int b) {
  struct stat of_a = {}, of_b = {};
  return ::fstat(a, &of_a) == 0 && ::fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

}  // namespace

bool BufferedPipeWriter::write_some() {
  if (is_empty()) return !is_gone_;
  const FileSizeLimitScope error_instead_of_signal;
  while (!is_empty() && !is_gone_) {
    pollfd room{fd_, POLLOUT, 0};
    const int ready = ::poll(&room, 1, 0);
    if (ready == 0) break;
    if (ready < 0 && errno == EINTR) continue;
    const std::size_t size = std::min<std::size_t>(text_.size() - begin_, PIPE_BUF);
    const ssize_t written = ::write(fd_, text_.data() + begin_, size);
    if (written >= 0) {
      begin_ += static_cast<std::size_t>(written);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
      begin_ = text_.size();  // the disk is full: drops the output, so that the job continues
    } else if (errno != EINTR) {
      is_gone_ = true;
      begin_ = text_.size();
    }
  }
  if (is_empty() || begin_ >= kFull) {
    text_.erase(0, begin_);
    begin_ = 0;
  }
  return !is_gone_;
}

RunReporter::RunReporter(const JobPlan& plan, const SupervisorOptions& options)
    : options_(options),
      colors_{wants_colors(STDOUT_FILENO), wants_colors(STDERR_FILENO)},
      is_one_file_(same_file(STDOUT_FILENO, STDERR_FILENO)),
      output_(STDOUT_FILENO),
      error_(STDERR_FILENO) {
  if (!options_.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options_.log_dir, error);
  }
  for (const ProcessPlan& process : plan.processes) {
    Shown& shown = tasks_.emplace_back();
    const int color = kColors[(tasks_.size() - 1) % kColors.size()];
    shown.name = process.task.name();
    shown.plain_prefix = concat("[", shown.name, "]: ");
    shown.color_prefix = concat("\033[", color, "m[", shown.name, "]:\033[0m ");
    if (!options_.log_dir.empty()) open_log(shown);
  }
}

void RunReporter::on_line(int rank, Stream stream, std::string_view line) {
  Shown& shown = tasks_[static_cast<std::size_t>(rank)];
  shown.last_line = ++num_lines_;
  const bool to_error = stream == Stream::kError;
  std::string text = colors_[to_error ? 1 : 0] ? shown.color_prefix : shown.plain_prefix;
  text.append(line).push_back('\n');
  write(to_error, text);
  if (!shown.log) return;
  const FileSizeLimitScope error_instead_of_signal;
  std::fwrite(line.data(), 1, line.size(), shown.log.get());
  std::fputc('\n', shown.log.get());
  std::fflush(shown.log.get());
}

void RunReporter::on_start(int rank, int restarts) {
  std::FILE* const log = at(rank).log.get();
  if (log && restarts > 0) std::fprintf(log, "--- restart %d\n", restarts);
}

void RunReporter::on_restart(const TaskOutcome& ended) {
  say(concat(ended.task, ": ", ended.describe(), "; restarting it (restart ", ended.restarts + 1,
             " of ", options_.max_restarts, ")"));
}

void RunReporter::on_waited_for(int rank, int waiting) {
  say(concat(at(rank).name, " has finished, but ", at(waiting).name,
             ", which was restarted, is waiting for it"));
}

void RunReporter::on_first_failure(int rank, const TaskOutcome& ended,
                                   const std::deque<std::string>& last_lines,
                                   const std::string& why_final) {
  const Shown& shown = at(rank);
  std::string text = concat(shown.name, " failed first: ", ended.describe(),
                            why_final.empty() ? "" : "; not restarted: ", why_final);
  if (!shown.log_path.empty()) text += concat("\n    log: ", shown.log_path);
  if (last_lines.empty()) {
    text += "\n    it wrote no output";
  } else if (!are_visible(shown)) {
    text += "\n    its last lines:";
    for (const std::string& line : last_lines) text += concat("\n    ", shown.plain_prefix, line);
  }
  say(text);
}

bool RunReporter::are_visible(const Shown& shown) const {
  return is_one_file_ && num_lines_ - shown.last_line < kVisibleLines;
}

void RunReporter::on_stop(StopReason reason, int signal_number, const std::vector<int>& ranks) {
  if (reason == StopReason::kFinished || ranks.empty()) return;
  const std::string signal = signal_name(signal_number), who = names(ranks);
  const double grace = std::chrono::duration<double>(options_.grace).count();
  const std::string then = concat(" (", signal, "; SIGKILL after ", grace, " s)");
  switch (reason) {
    case StopReason::kSignal:
      return say(concat(signal, ": requested ", who, " to stop; SIGKILL after ", grace,
                        " s, or at the next ", signal));
    case StopReason::kTimeout:
      return say(concat("timed out; ending ", who, then));
    case StopReason::kTaskAsked:
      return say(concat("a process has stopped on request; ending ", who, then));
    default:
      return say(concat("ending ", who, then));
  }
}

void RunReporter::on_given_up(int rank, const std::string& why) {
  say(concat(at(rank).name, " was killed because the job gave up on it: ", why));
}

void RunReporter::summarize(const JobOutcome& outcome) {
  const int code = outcome.exit_code();
  if (code == 0) return;
  std::string text = concat("exit code ", code);
  for (const TaskOutcome& task : outcome.tasks) {
    text += concat("\n    ", task.task, ": ", task.describe());
    if (task.restarts > 0) text += concat(", restarts: ", task.restarts);
  }
  say(text);
}

std::vector<int> RunReporter::waits_for_room() const {
  std::vector<int> waiting;
  for (const BufferedPipeWriter* const writer : {&output_, &error_}) {
    if (!writer->is_empty()) waiting.push_back(writer->fd());
  }
  return waiting;
}

void RunReporter::open_log(Shown& shown) {
  shown.log_path = concat(options_.log_dir, "/", shown.name, ".log");
  shown.log.reset(std::fopen(shown.log_path.c_str(), "we"));
  if (shown.log) return;
  fail(ErrorCode::kUnavailable, "run: cannot write log ", shown.log_path, ": ", ::strerror(errno));
}

void RunReporter::write(bool to_error, std::string_view text) {
  if (to_error != last_was_error_) flush(writer(last_was_error_));
  last_was_error_ = to_error;
  BufferedPipeWriter& own = writer(to_error);
  own.add(text);
  if (own.is_full()) flush(own);
}

void RunReporter::flush(BufferedPipeWriter& writer) {
  if (writer.write_some() || is_reader_gone_) return;
  is_reader_gone_ = true;
  ::kill(::getpid(), SIGTERM);
}

std::string RunReporter::names(const std::vector<int>& ranks) const {
  std::vector<std::string> all;
  for (const int rank : ranks) {
    if (all.size() == kNamesInMessage) {
      return concat(join(all), " and ", ranks.size() - all.size(), " more");
    }
    all.push_back(at(rank).name);
  }
  return join(all);
}

}  // namespace tutti::launch
