// Compares the speed of saves and loads to that of cp and sha256sum, and measures the cost of
// background saves.
// SPDX-License-Identifier: Apache-2.0
//
// Usage: checkpoint_bench FOLDER [MEGABYTES [ROUNDS]]. Each round measures everything once; the
// table has medians, and ratios computed within a round.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint_manager.h"
#include "tutti/checkpoint/checkpoint_versions.h"
#include "tutti/core/clock.h"
#include "tutti/core/json.h"

namespace {

using namespace tutti;

constexpr int kNumVariables = 20;
/// CheckFreq accepts an overhead of 3.5 %. If a save of 100 MB pauses training for 40 ms, this
/// permits a save every 1.14 s.
constexpr double kSecondsBetweenSaves = 0.040 / 0.035;

double seconds_of(const std::function<void()>& body) {
  const TimePoint begin = Clock::system().now();
  body();
  return seconds_between(begin, Clock::system().now());
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void shell(const std::string& command) {
  if (std::system(command.c_str()) != 0) {
    std::fprintf(stderr, "checkpoint_bench: command failed: %s\n", command.c_str());
    std::exit(1);
  }
}

/// Simulated training: its variables have the size of a network's weights, and each step reads and
/// writes all of them several times.
class Training {
 public:
  explicit Training(std::int64_t megabytes) {
    const std::int64_t size = megabytes * 1'000'000 / 4 / kNumVariables;
    update_ = Tensor::full({size}, 1e-3);
    for (int i = 0; i < kNumVariables; ++i) {
      variables_.emplace_back(Tensor::full({size}, i), VariableOptions{.name = concat("v", i)});
    }
  }
  const std::vector<Variable>& variables() const { return variables_; }
  void step() {
    for (int pass = 0; pass < 3; ++pass) {
      for (Variable& variable : variables_) variable.assign_sub(update_);
    }
  }

 private:
  Tensor update_;
  std::vector<Variable> variables_;
};

std::string first_file_of(const std::string& version) {
  const Json contents = describe_checkpoint(version);
  return version + "/" + contents.at("files").as_array().at(0).at("name").as_string();
}

class Column {
 public:
  void add(double value) { values_.push_back(value); }
  double middle() const { return median(values_); }

 private:
  std::vector<double> values_;
};

struct Table {
  Column save, load, verify, copy, copy_and_sync, hash, save_by_copy, load_by_hash;
  Column call, stall, overhead, overhead_waiting;
};

/// Times `count` steps, preceded by a save if `manager` is not null. Returns the total in seconds.
double window(Training& training, int count, CheckpointManager* manager, std::int64_t number) {
  return seconds_of([&] {
    if (manager) manager->save(number);
    for (int i = 0; i < count; ++i) training.step();
  });
}

// Copies precede saves in every other round, because the first writer pays for memory that the
// machine has not yet touched.
void measure_files(Training& training, const std::string& folder, std::int64_t number,
                   Table& table) {
  CheckpointManager manager(Checkpoint(training.variables()), folder + "/run", {.max_to_keep = 2});
  if (number == 1) manager.save(0);
  const std::string copy = folder + "/copy";
  const std::string file = first_file_of(*manager.latest());
  double save = 0, cp = 0, synced = 0;
  const auto measure_copies = [&] {
    cp = seconds_of([&] { shell(concat("cp ", file, " ", copy)); });
    shell("sync " + copy);
    synced = seconds_of([&] { shell(concat("cp ", file, " ", copy, "2 && sync ", copy, "2")); });
  };
  if (number % 2 == 0) measure_copies();
  save = seconds_of([&] { manager.save(number); });
  if (number % 2 != 0) measure_copies();
  const double hash = seconds_of([&] { shell("sha256sum " + file + " > /dev/null"); });
  const double load = seconds_of([&] { manager.restore_latest(); });
  table.verify.add(seconds_of([&] { verify_checkpoint(*manager.latest()); }));
  std::filesystem::remove(copy);
  std::filesystem::remove(copy + "2");
  table.save.add(save);
  table.load.add(load);
  table.copy.add(cp);
  table.copy_and_sync.add(synced);
  table.hash.add(hash);
  table.save_by_copy.add(save / synced);
  table.load_by_hash.add(load / hash);
}

void measure_training(Training& training, const std::string& folder, std::int64_t number,
                      Table& table) {
  CheckpointManager background(Checkpoint(training.variables()), folder + "/background",
                               {.max_to_keep = 2, .asynchronous = true});
  CheckpointManager waiting(Checkpoint(training.variables()), folder + "/waiting",
                            {.max_to_keep = 2});
  training.step();
  const double step = seconds_of([&] { training.step(); });
  // The pause is the time of the call plus the extra time of the next step, which copies variables.
  const double call = seconds_of([&] { background.save(2 * number); });
  const double next = seconds_of([&] { training.step(); });
  background.wait();
  table.call.add(call);
  table.stall.add(call + std::max(0.0, next - step));
  const int count = std::max(1, static_cast<int>(kSecondsBetweenSaves / step));
  const double plain = window(training, count, nullptr, 0);
  table.overhead.add(window(training, count, &background, 2 * number + 1) / plain - 1);
  background.wait();
  table.overhead_waiting.add(window(training, count, &waiting, number) / plain - 1);
}

void print(const Table& table, std::int64_t megabytes) {
  const auto size = static_cast<double>(megabytes);
  const auto rate = [&](const char* name, const Column& seconds) {
    std::printf("%-34s %8.1f ms %8.0f MB/s\n", name, 1e3 * seconds.middle(),
                size / seconds.middle());
  };
  std::printf("%lld MB of float32, medians\n", static_cast<long long>(megabytes));
  rate("save, on the disk", table.save);
  rate("  cp", table.copy);
  rate("  cp and sync", table.copy_and_sync);
  rate("load, every byte checked", table.load);
  rate("verify", table.verify);
  rate("  sha256sum", table.hash);
  std::printf("save / (cp and sync) %.2f, load / sha256sum %.2f\n", table.save_by_copy.middle(),
              table.load_by_hash.middle());
  const double scale = 1e3 * 100 / size;
  std::printf("in the background: save() %.2f ms, pause %.1f ms for 100 MB\n",
              scale * table.call.middle(), scale * table.stall.middle());
  std::printf("a save every %.2f s: training takes %+.1f %% in the background, %+.1f %% waiting\n",
              kSecondsBetweenSaves, 100 * table.overhead.middle(),
              100 * table.overhead_waiting.middle());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: %s FOLDER [MEGABYTES [ROUNDS]]\n", argv[0]);
    return 2;
  }
  const std::string folder = std::string(argv[1]) + "/checkpoint_bench";
  const std::int64_t megabytes = argc > 2 ? std::atoll(argv[2]) : 100;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 7;
  Training training(megabytes);
  Table table;
  for (int round = 1; round <= rounds; ++round) {
    measure_files(training, folder, round, table);
    measure_training(training, folder, round, table);
  }
  std::filesystem::remove_all(folder);
  print(table, megabytes);
  return 0;
}
