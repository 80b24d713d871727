// Program that counts closures on parameter servers, for tests that kill its processes.
// SPDX-License-Identifier: Apache-2.0
//
// coordinated_counter --closures N: each closure adds 1 to a number on one server, and to one of 16
// rows that are sharded over two servers. At the end, the chief compares both with N; the exit code
// is 0 if they match, else 3. With --folder, a restarted chief continues from the checkpoint.
// --ballast-mib adds a sharded variable of that size, in MiB of float32; each closure adds 1 to one
// of its 64 KiB rows.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/flags.h"
#include "tutti/parameter_server.h"
#include "tutti/tutti.h"

namespace {

using namespace tutti;

constexpr std::int64_t kRows = 16;
constexpr std::int64_t kBallastRow = 16384;  // 64 KiB of float32

struct CounterOptions {
  std::int64_t closures = 1000;
  std::int64_t pause_ms = 0;
  std::int64_t join_timeout_s = 60;
  std::string another_step = "";  // name of a step that only this task defines
  bool writes_early = false;
  bool throws_at_end = false;
  std::string folder = "";
  std::int64_t interval_ms = 30'000;
  std::int64_t linger_ms = 0;
  std::int64_t reads = 0;
  std::int64_t ballast_mib = 0;
  std::int64_t ballast_rows() const { return ballast_mib * 16; }
};

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

/// Returns true if every value matches the number of closures.
bool is_exact(std::int64_t closures, const Variable& total, const Variable& rows) {
  bool exact = total.value().item_int() == closures;
  const Tensor counted = rows.value();
  for (std::int64_t row = 0; row < kRows; ++row) {
    const std::int64_t expected = closures / kRows + (row < closures % kRows ? 1 : 0);
    exact = exact && counted.host_span<std::int64_t>()[static_cast<std::size_t>(row)] == expected;
  }
  say(concat("counted ", total.value().item_int(), " of ", closures));
  return exact;
}

/// Returns true if each of the N rows was incremented by exactly those closures whose number modulo
/// N is the row's index.
bool is_ballast_exact(std::int64_t closures, const CounterOptions& options,
                      const Variable& ballast) {
  const std::int64_t num_rows = options.ballast_rows();
  const Tensor values = ballast.value();
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const std::int64_t expected = closures / num_rows + (row < closures % num_rows ? 1 : 0);
    const auto counted =
        values.host_span<float>().subspan(static_cast<std::size_t>(row * kBallastRow), kBallastRow);
    const auto is_wrong = [&](float value) { return value != static_cast<float>(expected); };
    const auto wrong = std::ranges::find_if(counted, is_wrong);
    if (wrong == counted.end()) continue;
    say(concat("row ", row, " of the ballast has ", *wrong, "; expected ", expected));
    return false;
  }
  return true;
}

/// Reads a variable on a server repeatedly while other tasks may end and restart. Returns false if
/// a value is not `expected`.
bool reads_the_same(std::int64_t reads, std::int64_t expected, const Variable& total) {
  for (std::int64_t i = 0; i < reads; ++i) {
    if (i % 10 == 0) say(concat("read ", i));
    if (total.value().item_int() != expected) return false;
    Clock::system().sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

/// Runs the program and returns the exit code. On the chief, sets `coordinates` to true.
int count(const CounterOptions& options, bool& coordinates) {
  const auto resolver = resolver_from_environment();
  say(concat("task ", resolver->task() ? resolver->task()->to_string() : "alone", " pid ",
             ::getpid()));
  ParameterServerOptions servers;
  servers.coordinated = true;
  servers.num_servers = 2;
  servers.variable_partitioner = FixedShardsPartitioner(2);
  // Limits the wait of a late worker, whose peers may all have ended.
  servers.cluster.join_timeout = std::chrono::seconds(options.join_timeout_s);
  ParameterServerStrategy strategy(*resolver, servers);
  const auto scope = strategy.scope();
  Variable total(Tensor::scalar(0, DType::kInt64), {.name = "total"});
  Variable rows(Tensor::zeros({kRows}, DType::kInt64), {.name = "rows"});
  std::optional<Variable> ballast;
  if (options.ballast_mib > 0) {
    ballast.emplace(Tensor::zeros({options.ballast_rows(), kBallastRow}),
                    VariableOptions{.name = "ballast"});
  }
  if (options.writes_early) total.assign(Tensor::scalar(7, DType::kInt64));

  ClusterCoordinatorOptions coordinating;
  coordinating.join_timeout = std::chrono::seconds(options.join_timeout_s);
  coordinating.checkpoint_folder = options.folder;
  coordinating.checkpoint_interval = std::chrono::milliseconds(options.interval_ms);
  // The test kills workers, so interrupted attempts are not a closure's fault.
  if (!options.folder.empty()) {
    coordinating.most_attempts = 1000;
  }
  ClusterCoordinator coordinator(strategy, coordinating);
  coordinator.define("count", [&](std::int64_t number) {
    total.assign_add(Tensor::scalar(1, DType::kInt64));
    if (options.pause_ms > 0) {
      Clock::system().sleep_for(std::chrono::milliseconds(options.pause_ms));
    }
    rows.scatter_add({Tensor::from<std::int64_t>({1}, {1}),
                      Tensor::from<std::int64_t>({1}, {number % kRows}), Shape{kRows}});
    if (ballast) {
      ballast->scatter_add({Tensor::ones({1, kBallastRow}),
                            Tensor::from<std::int64_t>({1}, {number % options.ballast_rows()}),
                            Shape{options.ballast_rows(), kBallastRow}});
    }
    return number * number;
  });
  if (!options.another_step.empty()) coordinator.define(options.another_step, [] {});
  if (const auto code = coordinator.serve()) return *code;
  coordinates = true;
  coordinator.start();
  say("started");

  std::vector<RemoteValue> values;
  const auto first = static_cast<std::int64_t>(coordinator.num_scheduled());
  for (std::int64_t i = first; i < options.closures; ++i) {
    values.push_back(coordinator.schedule("count", i));
  }
  for (std::int64_t i = first; i < options.closures; ++i) {
    if (values[static_cast<std::size_t>(i - first)].fetch<std::int64_t>() != i * i) {
      say(concat("closure ", i, " returned a wrong number"));
      return 3;
    }
    if ((i + 1) % 10 == 0) say(concat("at ", i + 1));
  }
  coordinator.join();
  if (!reads_the_same(options.reads, options.closures, total)) return 3;
  if (options.throws_at_end) fail(ErrorCode::kInternal, "the chief was asked to fail");
  if (ballast && !is_ballast_exact(options.closures, options, *ballast)) return 3;
  return is_exact(options.closures, total, rows) ? 0 : 3;
}

}  // namespace

int main(int argc, char** argv) {
  CounterOptions options;
  Flags flags("Counts closures on parameter servers");
  flags.add("--closures", options.closures, "number of closures");
  flags.add("--pause-ms", options.pause_ms, "pause in a closure between its two updates, in ms");
  flags.add("--join-timeout-s", options.join_timeout_s, "seconds to wait for tasks to join");
  flags.add("--another-step", options.another_step, "name of a step that only this task defines");
  flags.add("--writes-early", options.writes_early, "change a variable before serve()");
  flags.add("--throws-at-end", options.throws_at_end, "throw an exception in the chief at the end");
  flags.add("--reads", options.reads, "number of reads of a variable at the end");
  flags.add("--ballast-mib", options.ballast_mib, "size of an additional sharded variable, in MiB");
  flags.add("--folder", options.folder, "folder of the checkpoint");
  flags.add("--linger-ms", options.linger_ms, "time from the end of the job to the chief's exit");
  flags.add("--interval-ms", options.interval_ms, "time between two versions of the checkpoint");
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  try {
    bool coordinates = false;
    const int code = count(options, coordinates);
    if (coordinates && options.linger_ms > 0) {
      say("left");
      Clock::system().sleep_for(std::chrono::milliseconds(options.linger_ms));
    }
    return code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
