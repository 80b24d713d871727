// Tests SIGTERM to one of several workers: all save the same step, end, and resume from it.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "tests/workers/worker_processes.h"

namespace tutti::worker_tests::preemption_test {

constexpr int kWorkers = 3;
constexpr std::int64_t kEpochs = 3;
constexpr std::int64_t kStepsPerEpoch = 20;
constexpr std::int64_t kReady = kStepsPerEpoch + 3;  // steps after which SIGTERM may come
constexpr int kRestartCode = 75;

/// v grows by 1 per replica and step. Returns the session's exit code and its observations.
std::pair<int, Json> count_steps(const std::string& folder) {
  const auto strategy = connect_workers();
  const auto scope = strategy->scope();
  Variable v = counter("v");
  const Variable weight(Tensor::zeros({}), {.name = "weight"});
  const Sgd optimizer(std::vector<Variable>{weight});
  DistributedDataset batches =
      strategy->distribute_dataset(Dataset::range(kStepsPerEpoch * kWorkers).batch(kWorkers));
  const bool is_resumed = std::filesystem::exists(folder);
  TrainingSession session(
      *strategy, {v, weight}, optimizer, batches,
      {.epochs = kEpochs, .checkpoint_dir = folder, .resume = is_resumed, .show_progress = false});
  Json result = Json::object();
  result.set("first", session.record().steps());
  result.set("v_at_first", v.value().item_double());
  session.train([&] {
    while (session.begin_epoch()) {
      for (const PerReplica<Batch>& batch : batches) {
        strategy->run([&v](const Batch&) { v.assign_add(Tensor(1.0f)); }, batch);
        if (!is_resumed && session.record().steps() == kReady) std::puts("in the second epoch");
        // Leaves the workers time to agree on a step before training ends.
        if (!is_resumed && session.record().steps() >= kReady) {
          Clock::system().sleep_for(std::chrono::milliseconds(100));
        }
        if (!session.step(0.0f, kWorkers)) break;
      }
      session.end_epoch("v", v.value().item_double());
    }
  });
  const int code = session.finish();
  result.set("steps", session.record().steps());
  result.set("v", v.value().item_double());
  return {code, result};
}

TUTTI_PROCESS_FUNCTION(workers_that_are_preempted) {
  const auto [code, result] = count_steps(arguments.at("folder").as_string());
  if (code != 0) std::_Exit(code);
  return result;
}

/// Returns the names of the versions in `folder`: "step_20", ...
std::vector<std::string> versions_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

TEST(Preemption, SigtermToOneWorkerSavesOneCommonStep) {
  const std::string folder = new_folder("preempted");
  const Json arguments = Json::object().set("folder", folder);
  std::int64_t stopped_at = 0;
  {
    MultiProcessRunner runner("workers_that_are_preempted", {.num_workers = kWorkers}, arguments);
    runner.start();
    runner.wait_for_line("worker", 0, "in the second epoch");
    const int victim = ::getpid() % kWorkers;
    RecordProperty("victim", victim);
    runner.send("worker", victim, SIGTERM);
    EXPECT_THROW(runner.join(), Error);  // because they end with a non-zero code
    for (int worker = 0; worker < kWorkers; ++worker) {
      EXPECT_EQ(runner.exit_status("worker", worker).code, kRestartCode) << "worker " << worker;
    }
    const std::vector<std::string> versions = versions_in(folder);
    ASSERT_EQ(versions.size(), 2u) << join(versions);  // of the first epoch, and of the stop
    EXPECT_EQ(versions[0], concat("step_", kStepsPerEpoch));
    stopped_at = std::stoll(versions[1].substr(std::string("step_").size()));
    EXPECT_GT(stopped_at, kReady);
    EXPECT_LT(stopped_at, kEpochs * kStepsPerEpoch);
  }
  for (const Json& result : results_of("workers_that_are_preempted", kWorkers, arguments)) {
    EXPECT_EQ(result.at("first").as_int(), stopped_at);
    EXPECT_EQ(result.at("v_at_first").as_double(), static_cast<double>(kWorkers * stopped_at));
    EXPECT_EQ(result.at("steps").as_int(), kEpochs * kStepsPerEpoch);
    EXPECT_EQ(result.at("v").as_double(), kWorkers * kEpochs * kStepsPerEpoch);
  }
}

}  // namespace tutti::worker_tests::preemption_test
