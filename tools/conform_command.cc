// `tutti conform`: checks a cross-device operation against the conformance kit.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>

#include "core/names.h"
#include "tools/commands.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::tools {
namespace {

using conformance::GroupShape;

conformance::Plan plan_of(const ConformOptions& options) {
  internal::require(
      options.seed >= 0 && options.sample >= 0 && options.budget >= 0 && options.limit >= 0,
      "conform: expected --seed, --sample, --budget and --limit >= 0, got ", options.seed, ", ",
      options.sample, ", ", options.budget, " and ", options.limit);
  conformance::Plan plan;
  plan.seed = static_cast<std::uint64_t>(options.seed);
  plan.sample = static_cast<std::size_t>(options.sample);
  if (options.shape != "all") {
    std::erase_if(plan.shapes, [&](GroupShape shape) { return to_string(shape) != options.shape; });
  }
  return plan;
}

/// Loads the plugin, and returns the name of the operation to test.
std::string find_name(const ConformOptions& options) {
  std::string name = options.name;
  if (!options.plugin.empty()) {
    const std::string loaded = load_cross_device_ops_plugin(options.plugin);
    if (name.empty()) name = loaded;
  }
  if (name.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "conform: expected a name or --plugin, got neither; the registered names are ",
         join(registered_cross_device_ops()));
  }
  return name;
}

/// Returns the command that repeats the test: "tutti conform NAME --plugin FILE --devices gpu:0-1".
std::string repeat(const std::string& name, const ConformOptions& options) {
  const std::string plugin = options.plugin.empty() ? "" : " --plugin " + options.plugin;
  const std::string own =
      options.plugin_options.empty() ? "" : " --plugin-options '" + options.plugin_options + "'";
  const std::string devices = options.devices.empty() ? "" : " --devices " + options.devices;
  return "tutti conform " + name + plugin + own + devices;
}

// An operation that crashes or hangs ends this program, and so does Ctrl-C. The case is therefore
// stored here before it runs, so that the signal handler can report it.
char running_case[1024] = "";

void begin_case(const std::string& command, const conformance::Case& c, std::int64_t limit) {
  std::snprintf(running_case, sizeof(running_case), "%s --case %s", command.c_str(),
                c.id().c_str());
  ::alarm(static_cast<unsigned>(limit));
}

/// Signal handler that reports the running case. The default action of the signal then ends the
/// program.
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
  say("); to repeat the case: ");
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

int run(const std::vector<conformance::Case>& cases, const conformance::Subject& subject,
        const ConformOptions& options) {
  conformance::RunOptions limits;
  if (options.budget > 0) {
    limits.budget =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options.budget));
  }
  const std::string command = repeat(subject.name, options);
  std::size_t num_begun = 0;
  TimePoint logged = coarse_now();
  limits.before_case = [&](const conformance::Case& c) {
    begin_case(command, c, options.limit);
    ++num_begun;
    if (coarse_now() - logged < std::chrono::seconds(10)) return;
    logged = coarse_now();  // logs progress, because all cases together take minutes
    std::fprintf(stderr, "conform: case %zu of %zu: %s\n", num_begun, cases.size(), c.id().c_str());
  };
  const conformance::Report report = run_cases(cases, subject, limits);
  if (options.format == OutputFormat::kJson) {
    print(report.json());
  } else if (options.case_id.empty()) {
    std::printf("%s", report.table(command).c_str());
  } else {
    const conformance::Result& one = report.results.front();
    std::printf("%s %s%s%s\n", concat(to_string(one.verdict)).c_str(), one.of.id().c_str(),
                one.message.empty() ? "" : ": ", one.message.c_str());
  }
  if (!options.case_id.empty()) return report.count(conformance::Verdict::kFailed) == 0 ? 0 : 1;
  return report.passed() ? 0 : 1;
}

}  // namespace

int conform_command(const ConformOptions& options) {
  std::vector<conformance::Case> cases;
  conformance::Subject subject;
  try {
    const conformance::Plan plan = plan_of(options);
    cases = options.case_id.empty() ? conformance::cases(plan)
                                    : std::vector{conformance::Case::parse(options.case_id)};
    subject = conformance::Subject(find_name(options), options.plugin_options);
    if (!options.devices.empty()) subject.use_devices(parse_devices(options.devices));
  } catch (const Error& error) {
    std::fprintf(stderr, "tutti: %s\n", error.what());
    return 2;
  }
  tell_cases_of_signals();
  return run(cases, subject, options);
}

}  // namespace tutti::tools
