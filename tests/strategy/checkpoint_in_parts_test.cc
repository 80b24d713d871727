// Tests checkpoints that any strategy can restore, including those in which each worker saves its
// own shards.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "core/file.h"
#include "tests/strategy/worker_threads.h"
#include "tests/support/warnings.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/checkpoint/checkpoint_manager.h"
#include "tutti/checkpoint/checkpoint_versions.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/recovery.h"
#include "tutti/tensor/device_memory.h"

namespace tutti::strategy_tests::checkpoint_in_parts_test {
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

std::string empty_folder() {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string path = concat(::testing::TempDir(), "tutti_in_parts_", test->name());
  std::filesystem::remove_all(path);
  return path;
}

/// Program state: weights that cannot be divided into equal shards (one is too small to give every
/// replica a shard), Adam's slots, and a moving mean and a count with one value per replica.
struct Training {
  explicit Training(Strategy& strategy)
      : strategy_(strategy),
        scope(strategy.scope()),
        weights({made("w", {9, 33}, 1), made("b", {33}, 2), made("tiny", {3}, 3)}),
        mean(on_read(Tensor::zeros({}), VariableAggregation::kMean, "mean")),
        seen(on_read(Tensor::scalar(0, DType::kInt64), VariableAggregation::kSum, "seen")),
        optimizer(weights, {.learning_rate = 0.05}) {}

  static Variable made(const char* name, const Shape& shape, std::uint64_t number) {
    return Variable(random_normal(shape, RandomKey{3, kInitializerPurpose, number, 0, 0}),
                    {.name = name});
  }

  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      strategy_.run([&] {
        const Tensor x = filled({2, 9}, 1.0 + replica_number());
        GradientTape tape;
        const Tensor loss = reduce_sum(square(matmul(x, weights[0].value()) + weights[1].value())) +
                            reduce_sum(square(weights[2].value()));
        mean.assign(Tensor::scalar(4.0, DType::kFloat32, x.device()));
        seen.assign_add(Tensor::scalar(1.0 + replica_number(), DType::kInt64, x.device()));
        optimizer.minimize(tape, loss);
      });
    }
  }

  std::vector<Variable> all() const {
    std::vector<Variable> variables = optimizer.state_variables();
    variables.insert(variables.end(), weights.begin(), weights.end());
    variables.insert(variables.end(), {mean, seen});
    return variables;
  }
  std::string hash() const { return hash_variables(all()); }
  Checkpoint checkpoint() const { return Checkpoint(all(), checkpoint_options(strategy_)); }

  Strategy& strategy_;
  const Scope scope;
  std::vector<Variable> weights;
  Variable mean, seen;
  Adam optimizer;
};

/// Function that calls its argument once per worker, each time with a new strategy, and returns the
/// workers' errors.
using Runner = std::function<std::vector<std::string>(const std::function<void(Strategy&)>&)>;

Runner alone(std::function<std::unique_ptr<Strategy>()> make) {
  return [make](const auto& body) {
    body(*make());
    return std::vector<std::string>(1);
  };
}
Runner workers(std::vector<int> replicas, int stage = 3) {
  return [=](const auto& body) { return run_sharded(replicas, stage, body); };
}

/// Returns runners by name: one without a strategy, one for each single-process strategy, and some
/// with several workers.
std::map<std::string, Runner> all_runners() {
  std::map<std::string, Runner> runners;
  runners["none"] = [](const auto& body) {
    body(default_strategy());
    return std::vector<std::string>(1);
  };
  runners["mirrored_1_1"] = [](const auto& body) {
    return run_workers(workers_with({1, 1}), body);
  };
  for (const auto& each : all_strategies()) runners[each.name] = alone(each.make);
  for (const int n : {1, 2, 3})
    runners[concat("sharded_", n)] = alone([n] { return fully_sharded(n); });
  runners["stage_1"] = alone([] { return fully_sharded(2, 0, 1); });
  runners["workers_1_1"] = workers({1, 1});
  runners["workers_2_1"] = workers({2, 1}, 2);
  runners["workers_1_1_1"] = workers({1, 1, 1});
  return runners;
}

/// Hash that must be equal on all workers. Thread-safe.
class CommonHash {
 public:
  void expect(const std::string& own) {
    MutexLock lock(mutex_);
    if (hash_.empty()) hash_ = own;
    EXPECT_EQ(own, hash_);
  }
  std::string get() const {
    MutexLock lock(mutex_);
    return hash_;
  }

 private:
  mutable Mutex mutex_;
  std::string hash_ TUTTI_GUARDED_BY(mutex_);
};

/// Saves in the background while training continues. Returns the hash of the saved values.
std::string train_and_save(const Runner& runner, const std::string& folder,
                           std::optional<bool> sharded = std::nullopt) {
  CommonHash saved;
  expect_no_error(runner([&](Strategy& strategy) {
    Training training(strategy);
    training.train(2);
    CheckpointManager manager(training.checkpoint(), folder,
                              {.asynchronous = true, .sharded = sharded});
    manager.save(2);
    training.train(2);  // a later step must not change the snapshot
    manager.wait();
    manager.restore_latest({.strict = true});
    saved.expect(training.hash());
  }));
  return saved.get();
}

/// Restores and trains one more step. Returns the hash of the restored values.
std::string restored_hash(const Runner& runner, const std::string& folder) {
  CommonHash restored, trained;
  expect_no_error(runner([&](Strategy& strategy) {
    Training training(strategy);
    CheckpointManager manager(training.checkpoint(), folder);
    EXPECT_TRUE(manager.restore_latest({.strict = true}));
    restored.expect(training.hash());
    training.train(1);
    trained.expect(training.hash());
  }));
  EXPECT_NE(trained.get(), restored.get());
  return restored.get();
}

/// Returns the names of the tensor files and of the state file.
std::vector<std::string> files_in(const std::string& version) {
  std::vector<std::string> names;
  const Json contents = describe_checkpoint(version);
  for (const Json& file : contents.at("files").as_array()) {
    names.push_back(file.at("name").as_string());
  }
  return names;
}

TEST(StrategyCheckpoint, RestoresUnderEveryOtherStrategy) {
  std::map<std::string, Runner> from = all_runners();
  from["workers_1_1_stage_1"] = workers({1, 1}, 1);
  from["workers_1_1_1_1"] = workers({1, 1, 1, 1});
  for (const auto& [name_of_saver, saver] : from) {
    const std::string folder = empty_folder();
    const std::string saved = train_and_save(saver, folder);
    EXPECT_THAT(verify_checkpoint(folder + "/step_2"), ::testing::IsEmpty());
    for (const auto& [name, runner] : all_runners()) {
      SCOPED_TRACE(concat(name_of_saver, " to ", name));
      EXPECT_EQ(restored_hash(runner, folder), saved);
    }
  }
}

TEST(StrategyCheckpoint, ShardedAndUnshardedSavesHaveEqualValues) {
  const std::string folder = empty_folder();
  const std::string expected = train_and_save(alone([] { return mirrored(3); }), folder + "/a");
  EXPECT_EQ(train_and_save(workers({1, 2}), folder + "/b"), expected);
  EXPECT_EQ(train_and_save(workers({1, 2}), folder + "/c", true), expected);
  EXPECT_EQ(train_and_save(workers({1, 2}), folder + "/d", false), expected);
  EXPECT_EQ(train_and_save(alone([] { return fully_sharded(3); }), folder + "/e"), expected);
  for (const auto& [name, files] :
       std::map<std::string, std::size_t>{{"a", 2}, {"b", 4}, {"c", 4}, {"d", 2}, {"e", 2}}) {
    EXPECT_EQ(files_in(concat(folder, "/", name, "/step_2")).size(), files) << name;
  }
  // In one process, FullyShardedStrategy writes the same file as MirroredStrategy.
  const auto tensors = [&](const char* name) {
    return describe_checkpoint(concat(folder, "/", name, "/step_2")).at("files").dump();
  };
  EXPECT_EQ(tensors("a"), tensors("e"));
}

TEST(StrategyCheckpoint, SingleProcessSaveDoesNotGatherShards) {
  const std::string folder = empty_folder();
  constexpr std::int64_t kCount = 1 << 20;  // 4 MiB
  for (const bool asynchronous : {false, true}) {
    const auto strategy = fully_sharded(4);
    const auto scope = strategy->scope();
    const Variable w(Tensor::full({kCount}, 2.0), {.name = "w"});
    CheckpointManager manager(Checkpoint({w}), folder, {.asynchronous = asynchronous});
    reset_peak_memory(Device{});
    const std::size_t before = device_memory(Device{}).in_use;
    manager.save(1);
    manager.wait();
    EXPECT_LT(device_memory(Device{}).peak, before + sizeof(float) * kCount / 8);
  }
  const Variable w(Tensor::zeros({kCount}), {.name = "w"});
  CheckpointManager(Checkpoint({w}), folder).restore_latest();
  EXPECT_THAT(w.value().to_doubles(), Each(2.0));
}

TEST(StrategyCheckpoint, Worker0WritesAllOrThrowsIfFolderIsNotShared) {
  const std::string folder = empty_folder();
  const auto save = [&](std::optional<bool> sharded) {
    return run_sharded({1, 1, 1}, 3, [&](FullyShardedStrategy& strategy) {
      Training training(strategy);
      training.train(1);
      const std::string trained = training.hash();
      CheckpointManager manager(training.checkpoint(), concat(folder, "/", strategy.worker()),
                                {.sharded = sharded});
      manager.save(1);
      training.train(1);
      EXPECT_TRUE(manager.restore_latest());
      EXPECT_EQ(training.hash(), trained);
    });
  };
  EXPECT_THAT(thrown::warnings_of([&] {
                EXPECT_THAT(save(true),
                            Each(AllOf(HasSubstr("worker 1"), HasSubstr("worker 2"),
                                       HasSubstr("another folder"), HasSubstr("sharded = false"))));
                EXPECT_FALSE(std::filesystem::exists(folder + "/0/step_1"));
                expect_no_error(save(false));
              }),
              ::testing::IsEmpty());
  std::filesystem::remove_all(folder + "/0");
  EXPECT_THAT(thrown::warnings_of([&] { expect_no_error(save(std::nullopt)); }),
              ::testing::Contains(AllOf(HasSubstr("workers 1, 2 cannot see worker 0's"),
                                        HasSubstr("gathers all variables"))));
  EXPECT_FALSE(std::filesystem::exists(folder + "/1"));
}

TEST(StrategyCheckpoint, DamagedShardIsNamedAndPreviousVersionRestored) {
  const std::string folder = empty_folder();
  const auto errors = run_sharded({1, 1}, 3, [&](FullyShardedStrategy& strategy) {
    Training training(strategy);
    CheckpointManager manager(training.checkpoint(), folder);
    training.train(1);
    const std::string first = training.hash();
    manager.save(1);
    training.train(1);
    manager.save(2);
    if (strategy.worker() == 0) {
      const std::string path = folder + "/step_2/model-00003-of-00003.safetensors";
      std::string bytes = read_file(path);
      bytes.back() = static_cast<char>(bytes.back() ^ 1);
      write_file_atomically(path, bytes);
    }
    (void)training.hash();  // collective: returns only after worker 0 has damaged the file
    const auto info = manager.restore_latest();
    EXPECT_EQ(info->step, 1);
    EXPECT_EQ(training.hash(), first);
    manager.restore_latest({.strict = true});
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("model-00003-of-00003.safetensors: the file is damaged"),
                                 HasSubstr("worker 1: "), Not(HasSubstr("worker 0: ")),
                                 HasSubstr("step_1', which is undamaged"))));
}

TEST(StrategyCheckpoint, MismatchedRestoreLeavesVariablesUnchanged) {
  const std::string folder = empty_folder();
  const auto errors = run_sharded({1, 2}, 3, [&](FullyShardedStrategy& strategy) {
    Training training(strategy);
    CheckpointManager(training.checkpoint(), folder).save(1);
    training.train(1);
    const std::string before = training.hash();
    Checkpoint more = training.checkpoint();
    more.add_state("new", {[] { return Json(1); }, [](const Json&) {}});
    EXPECT_THROW(CheckpointManager(more, folder).restore_latest(), Error);
    EXPECT_EQ(training.hash(), before);
    // Restoring fails halfway, so the variables that were already restored get their earlier values
    // back, without a collective.
    Checkpoint fails = training.checkpoint();
    bool refuses = true;
    fails.add_tensors("fails", {[] { return std::vector<NamedTensor>(); },
                                [&](const TensorLookup&) {
                                  if (std::exchange(refuses, false))
                                    fail(ErrorCode::kNotFound, "no");
                                }});
    EXPECT_THROW(CheckpointManager(fails, folder).restore_latest(), Error);
    EXPECT_EQ(training.hash(), before);
    const Variable other(Tensor::zeros({33, 9}), {.name = "other/w"});
    CheckpointManager(Checkpoint({other}, checkpoint_options(strategy)), folder).restore_latest();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("'other/w' is missing"), HasSubstr("unknown tensor"))));
}

}  // namespace tutti::strategy_tests::checkpoint_in_parts_test
