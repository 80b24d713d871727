// `tutti conform`: checks a cross-device operation against the conformance kit.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>

#include "tools/commands.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::tools {
namespace {

using conformance::GroupShape;

conformance::Plan plan_of(const ConformOptions& options) {
  if (options.seed < 0 || options.sample < 0 || options.budget < 0 || options.limit < 0) {
    fail(ErrorCode::kInvalidArgument,
         "conform: expected a seed, sample, budget and limit of 0 or more, got ", options.seed,
         ", ", options.sample, ", ", options.budget, " and ", options.limit);
  }
  conformance::Plan plan;
  plan.seed = static_cast<std::uint64_t>(options.seed);
  plan.sample = static_cast<std::size_t>(options.sample);
  if (options.shape != "all") {
    std::erase_if(plan.shapes, [&](GroupShape shape) { return to_string(shape) != options.shape; });
  }
  return plan;
}

/// Loads the plugin; the name to test.
std::string find_name(const ConformOptions& options) {
  std::string name = options.name;
  if (!options.plugin.empty()) {
    const std::string loaded = load_cross_device_ops_plugin(options.plugin);
    if (name.empty()) name = loaded;
  }
  if (name.empty()) {
    fail(ErrorCode::kInvalidArgument, "conform: expected a name or --plugin; try one of ",
         join(registered_cross_device_ops()));
  }
  make_cross_device_ops(name);
  return name;
}

/// How the operation is tested again: "tutti conform NAME --plugin FILE --devices gpu:0-1".
std::string repeat(const conformance::Subject& subject, const ConformOptions& options) {
  const std::string plugin = options.plugin.empty() ? "" : " --plugin " + options.plugin;
  const std::string devices = options.devices.empty() ? "" : " --devices " + options.devices;
  return "tutti conform " + subject.name() + plugin + devices;
}

// An operation that crashes or hangs ends this program, as a user who has waited enough does. What
// it was doing then is written down before each case, where the handler of the signal can read it.
char running_case[1024] = "";

void begin_case(const std::string& command, const conformance::Case& c, std::int64_t limit) {
  std::snprintf(running_case, sizeof(running_case), "%s --case %s", command.c_str(),
                c.id().c_str());
  ::alarm(static_cast<unsigned>(limit));
}

/// A sign of life every ten seconds: a whole plan takes minutes.
class Progress {
 public:
  void begin_case(const conformance::Case& c) {
    const TimePoint now = coarse_now();
    if (now - told_ >= std::chrono::seconds(10)) {
      std::fprintf(stderr, "conform: %zu cases done, now %s\n", num_done_, c.id().c_str());
      told_ = now;
    }
    ++num_done_;
  }

 private:
  TimePoint told_ = coarse_now();
  std::size_t num_done_ = 0;
};

/// A signal handler: says which case ran; the signal then ends the program as it would have.
void tell_case(int signal) {
  const auto say = [](std::string_view text) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  };
  const char digits[] = {static_cast<char>('0' + signal / 10),
                         static_cast<char>('0' + signal % 10)};
  const bool is_asked = signal == SIGINT || signal == SIGTERM;
  say(is_asked            ? "tutti: stopped (signal "
      : signal == SIGALRM ? "tutti: the operation hangs: a case took longer than --limit (signal "
                          : "tutti: the operation crashed (signal ");
  say(std::string_view(signal < 10 ? digits + 1 : digits, signal < 10 ? 1 : 2));
  say("); to repeat its case: ");
  say(running_case);
  say("\n");
  ::raise(signal);
}

void tell_cases_of_signals() {
  struct sigaction action {};
  action.sa_handler = tell_case;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM, SIGINT, SIGTERM}) {
    ::sigaction(signal, &action, nullptr);
  }
}

int run_one(const conformance::Case& c, conformance::Subject& subject, OutputFormat format) {
  conformance::Report report;
  report.name = subject.name();
  report.seed = c.seed;
  const conformance::Result result = conformance::run(c, subject);
  report.add(c, result);
  if (format == OutputFormat::kJson) {
    std::printf("%s\n", report.json().dump(2).c_str());
  } else {
    std::printf("%s %s%s%s\n", concat(conformance::to_string(result.verdict)).c_str(),
                c.id().c_str(), result.message.empty() ? "" : ": ", result.message.c_str());
  }
  return result.verdict == conformance::Verdict::kFailed ? 1 : 0;
}

int run_plan(const conformance::Plan& plan, conformance::Subject& subject,
             const ConformOptions& options) {
  conformance::RunOptions limits;
  if (options.budget > 0) {
    limits.budget =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options.budget));
  }
  const std::string command = repeat(subject, options);
  Progress progress;
  limits.before_case = [&](const conformance::Case& c) {
    begin_case(command, c, options.limit);
    progress.begin_case(c);
  };
  const conformance::Report report = conformance::run(plan, subject, limits);
  if (options.format == OutputFormat::kJson) {
    std::printf("%s\n", report.json().dump(2).c_str());
  } else {
    std::printf("%s", report.table(command).c_str());
  }
  return report.passed() ? 0 : 1;
}

}  // namespace

int conform_command(const ConformOptions& options) {
  std::string name;
  conformance::Plan plan;
  conformance::Case one;
  std::vector<Device> devices;
  try {
    plan = plan_of(options);
    if (!options.case_id.empty()) one = conformance::Case::parse(options.case_id);
    name = find_name(options);
    if (!options.devices.empty()) devices = parse_devices(options.devices);
  } catch (const Error& error) {
    std::fprintf(stderr, "tutti: %s\n", error.what());
    return 2;
  }
  conformance::Subject subject(name);
  subject.use_devices(devices);
  tell_cases_of_signals();
  if (!options.case_id.empty()) {
    begin_case(repeat(subject, options), one, options.limit);
    return run_one(one, subject, options.format);
  }
  return run_plan(plan, subject, options);
}

}  // namespace tutti::tools
