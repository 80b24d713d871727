// Implements the timing of steps, and the report.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/train_step/train_step_report.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tutti/core/error.h"
#include "tutti/core/json.h"

namespace tutti::benchmarks {
namespace {

// /proc/self/stat: field 22 is the start time in ticks since boot. Field 2 may contain spaces.
double start_after_boot() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

std::int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void require(const char* flag, std::int64_t value, std::int64_t least) {
  if (value >= least) return;
  throw Error(ErrorCode::kInvalidArgument, std::string(flag) + ": expected " +
                                               std::to_string(least) + " or more, got " +
                                               std::to_string(value));
}

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = {"cifar10_cnn", "small_cnn", "mlp",
                                                 "resnet20",    "gpt",       "tiny"};
  return names;
}

std::int64_t default_batch_size(const std::string& model) {
  if (model == "small_cnn") return 256;
  if (model == "gpt") return 32;
  return model == "tiny" ? 8 : 128;
}

void RunOptions::add_to(Flags& flags) {
  flags.add_choice("--model", model, model_names(), "the network");
  flags.add("--batch-size", batch_size, "global batch size; 0: the default of the model");
  flags.add("--replicas", replicas, "number of replicas, which share the batch");
  flags.add("--steps", steps, "maximum number of timed steps");
  flags.add("--warmup", warmup, "number of untimed steps at the start");
  flags.add("--seconds", seconds, "time limit in seconds; at least 3 steps are timed");
  flags.add("--json", json, "print one line of JSON");
}

void RunOptions::check() {
  require("--batch-size", batch_size, 0);
  require("--replicas", replicas, 1);
  require("--steps", steps, 1);
  require("--warmup", warmup, 1);
  if (batch_size == 0) batch_size = default_batch_size(model);
}

double seconds_since_start() {
  if (const char* started = std::getenv("TRAIN_STEP_STARTED_NS")) {
    const auto now = Clock::system().now().time_since_epoch();
    return 1e-9 * static_cast<double>(Duration(now).count() - std::atoll(started));
  }
  double up = 0.0;
  std::ifstream("/proc/uptime") >> up;
  return up - start_after_boot();
}

void measure(const RunOptions& options, const std::function<void()>& step, Report& report) {
  step();
  report.first_step_seconds = seconds_since_start();
  for (std::int64_t i = 1; i < options.warmup; ++i) step();
  const Clock& clock = Clock::system();
  report.step_seconds.reserve(static_cast<std::size_t>(options.steps));
  const double cpu_before = cpu_seconds();
  const TimePoint begin = clock.now();
  TimePoint last = begin;
  for (std::int64_t i = 0; i < options.steps; ++i) {
    step();
    const TimePoint now = clock.now();
    report.step_seconds.push_back(seconds_between(last, now));
    last = now;
    if (i >= 2 && seconds_between(begin, now) > options.seconds) break;
  }
  report.cpus_used = (cpu_seconds() - cpu_before) / seconds_between(begin, last);
}

void print(const RunOptions& options, const Report& report) {
  const double middle = median(report.step_seconds);
  const double rate = static_cast<double>(options.batch_size) / middle;
  const std::int64_t rss = peak_rss_bytes();
  if (options.json) {
    Json json = Json::object();
    json.set("program", report.program).set("variant", report.variant).set("model", options.model);
    json.set("batch_size", options.batch_size).set("replicas", options.replicas);
    json.set("threads", report.threads).set("parameters", report.parameters);
    json.set("median_step_seconds", middle).set("steps_per_second", 1.0 / middle);
    json.set("examples_per_second", rate).set("peak_rss_bytes", rss);
    json.set("first_step_seconds", report.first_step_seconds).set("loss", report.loss);
    json.set("cpus_used", report.cpus_used);
    Json times = Json::array();
    for (const double time : report.step_seconds) times.push_back(time);
    json.set("step_seconds", std::move(times));
    std::printf("%s\n", json.dump().c_str());
    return;
  }
  std::printf("%s (%s): %s, batch %lld, %lld replicas, %lld threads, %lld parameters\n",
              report.program.c_str(), report.variant.c_str(), options.model.c_str(),
              static_cast<long long>(options.batch_size), static_cast<long long>(options.replicas),
              static_cast<long long>(report.threads), static_cast<long long>(report.parameters));
  std::printf("steps in ms:");
  const std::size_t shown = std::min<std::size_t>(report.step_seconds.size(), 20);
  for (std::size_t i = 0; i < shown; ++i) std::printf(" %.4g", 1e3 * report.step_seconds[i]);
  std::printf(shown < report.step_seconds.size() ? " ...\n" : "\n");
  std::printf("median %.4g ms, %.1f steps/s, %.1f examples/s, loss %.5f\n", 1e3 * middle,
              1.0 / middle, rate, report.loss);
  std::printf("first step finished after %.3f s, peak memory %.1f MiB\n", report.first_step_seconds,
              static_cast<double>(rss) / (1 << 20));
}

}  // namespace tutti::benchmarks
