// Lines with names and colours, log files, and the launcher's own messages.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/run_reporter.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tools/launch/patient_writer.h"
#include "tutti/core/error.h"
#include "tutti/core/file_size_limit.h"

namespace tutti::launch {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

constexpr std::size_t kNamesInMessage = 8;
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

double seconds_of(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

struct RunReporter::Impl {
  struct Shown {
    std::string name, plain_prefix, color_prefix, log_path;
    File log;
  };

  void open_log(Shown& shown) {
    shown.log_path = concat(options.log_dir, "/", shown.name, ".log");
    shown.log.reset(std::fopen(shown.log_path.c_str(), "we"));
    if (shown.log) return;
    fail(ErrorCode::kUnavailable, "run: cannot write log ", shown.log_path, ": ",
         ::strerror(errno));
  }

  PatientWriter& writer(bool to_error) { return to_error && !is_one_file ? error : output; }

  /// Lines of both reach a terminal, or one file, in their order.
  void write(bool to_error, std::string_view text) {
    if (to_error != last_was_error) flush(writer(last_was_error));
    last_was_error = to_error;
    PatientWriter& own = writer(to_error);
    own.add(text);
    if (own.is_full()) flush(own);
  }

  /// Nobody reads any more: the job is asked to stop, once.
  void flush(PatientWriter& writer) {
    if (writer.write_some() || is_reader_gone) return;
    is_reader_gone = true;
    ::kill(::getpid(), SIGTERM);
  }

  void say(const std::string& message) { write(true, concat("tutti run: ", message, "\n")); }

  std::string names(const std::vector<int>& ranks) const {
    std::vector<std::string> all;
    for (const int rank : ranks) {
      if (all.size() == kNamesInMessage) {
        return concat(join(all), " and ", ranks.size() - all.size(), " more");
      }
      all.push_back(at(rank).name);
    }
    return join(all);
  }

  const Shown& at(int rank) const { return tasks[static_cast<std::size_t>(rank)]; }

  ReporterOptions options;
  std::vector<Shown> tasks;
  std::array<bool, 2> colors{};
  const bool is_one_file = same_file(STDOUT_FILENO, STDERR_FILENO);
  PatientWriter output{STDOUT_FILENO}, error{STDERR_FILENO};
  bool last_was_error = false, is_reader_gone = false;
};

RunReporter::RunReporter(const JobPlan& plan, ReporterOptions options)
    : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->colors = {wants_colors(STDOUT_FILENO), wants_colors(STDERR_FILENO)};
  if (!impl_->options.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(impl_->options.log_dir, error);
  }
  for (const ProcessPlan& process : plan.processes) {
    Impl::Shown& shown = impl_->tasks.emplace_back();
    const int color = kColors[(impl_->tasks.size() - 1) % kColors.size()];
    shown.name = process.task.name();
    shown.plain_prefix = concat("[", shown.name, "]: ");
    shown.color_prefix = concat("\033[", color, "m[", shown.name, "]:\033[0m ");
    if (!impl_->options.log_dir.empty()) impl_->open_log(shown);
  }
}

RunReporter::~RunReporter() { write_more(); }

bool RunReporter::takes_lines() const {
  return !impl_->output.is_full() && !impl_->error.is_full();
}

std::vector<int> RunReporter::waits_for_room() const {
  std::vector<int> waiting;
  for (const PatientWriter* const writer : {&impl_->output, &impl_->error}) {
    if (!writer->is_empty()) waiting.push_back(writer->fd());
  }
  return waiting;
}

void RunReporter::write_more() {
  impl_->flush(impl_->output);
  impl_->flush(impl_->error);
}

void RunReporter::on_start(int rank, pid_t, int restarts) {
  std::FILE* const log = impl_->at(rank).log.get();
  if (log && restarts > 0) std::fprintf(log, "--- started again, restart %d\n", restarts);
}

void RunReporter::on_line(int rank, Stream stream, std::string_view line) {
  const Impl::Shown& shown = impl_->at(rank);
  const bool to_error = stream == Stream::kError || impl_->options.output_to_error;
  const bool colored = impl_->colors[to_error ? 1 : 0];
  std::string text = colored ? shown.color_prefix : shown.plain_prefix;
  text.append(line).push_back('\n');
  impl_->write(to_error, text);
  if (!shown.log) return;
  const FileSizeLimitScope error_instead_of_signal;
  std::fwrite(line.data(), 1, line.size(), shown.log.get());
  std::fputc('\n', shown.log.get());
  std::fflush(shown.log.get());
}

void RunReporter::on_restart(int, const TaskOutcome& ended, Duration delay) {
  const std::string when =
      delay > Duration::zero() ? concat("in ", seconds_of(delay), " s") : "now";
  impl_->say(concat(ended.task, ": ", ended.describe(), "; is started again ", when, " (restart ",
                    ended.restarts + 1, " of ", impl_->options.max_restarts, ")"));
}

void RunReporter::on_waited_for(int rank, int waiting) {
  impl_->say(concat(impl_->at(rank).name, " had finished, but ", impl_->at(waiting).name,
                    ", which was started again, waits for it"));
}

void RunReporter::on_end(int rank, const TaskOutcome&) {
  if (std::FILE* const log = impl_->at(rank).log.get()) std::fflush(log);
}

void RunReporter::on_first_failure(int rank, const TaskOutcome& ended,
                                   const std::vector<std::string>& last_lines,
                                   const std::string& why_final) {
  const Impl::Shown& shown = impl_->at(rank);
  std::string text = concat(shown.name, " failed first: ", ended.describe(),
                            why_final.empty() ? "" : "; not started again: ", why_final);
  if (!shown.log_path.empty()) text += concat("\n    log: ", shown.log_path);
  text += last_lines.empty() ? "\n    it wrote nothing" : "\n    its last lines:";
  for (const std::string& line : last_lines) text += concat("\n    ", shown.plain_prefix, line);
  impl_->say(text);
}

void RunReporter::on_stop(StopReason reason, int signal_number, const std::vector<int>& ranks) {
  if (reason == StopReason::kFinished || ranks.empty()) return;
  const std::string signal = signal_name(signal_number);
  const std::string then =
      concat(" (", signal, "; SIGKILL after ", seconds_of(impl_->options.grace), " s)");
  switch (reason) {
    case StopReason::kSignal:
      impl_->say(concat(signal, ": asked ", impl_->names(ranks), " to stop; SIGKILL after ",
                        seconds_of(impl_->options.grace), " s, or at the next ", signal));
      return;
    case StopReason::kTimeout:
      impl_->say(concat("time is over; ending ", impl_->names(ranks), then));
      return;
    case StopReason::kTaskAsked:
      impl_->say(concat("a process has stopped on request; asking ", impl_->names(ranks), then));
      return;
    default:
      impl_->say(concat("ending ", impl_->names(ranks), then));
  }
}

void RunReporter::on_given_up(int rank, const std::string& why) {
  impl_->say(concat(impl_->at(rank).name, " is killed, for the job has given it up: ", why));
}

void RunReporter::on_kill(const std::vector<int>& ranks) {
  impl_->say(concat("killing ", impl_->names(ranks)));
}

void RunReporter::summarize(const JobOutcome& outcome) {
  const int code = outcome.exit_code();
  if (code == 0) return;
  std::string text = concat("exit code ", code);
  for (const TaskOutcome& task : outcome.tasks) {
    text += concat("\n    ", task.task, ": ", task.describe());
    if (task.restarts > 0) text += concat(", restarts: ", task.restarts);
  }
  impl_->say(text);
}

}  // namespace tutti::launch
