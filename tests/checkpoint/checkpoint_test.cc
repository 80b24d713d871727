// Tests checkpoints: restore changes either all values or none; snapshots are sent in chunks;
// followers restore what the writer reads.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/checkpoint.h"

#include <cstring>
#include <fstream>

#include "checkpoint/checkpoint_file.h"
#include "core/file.h"
#include "tests/checkpoint/saved_series.h"
#include "tests/support/warnings.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/tensor/numerics.h"

namespace tutti::testing::checkpoint_test {
using internal::ArrivingSnapshot;
using internal::pieces_of;
using internal::SafetensorsLayout;

Variable variable(const std::string& name, std::vector<float> values) {
  const auto size = static_cast<std::int64_t>(values.size());
  return Variable(Tensor::from(Shape{size}, values), VariableOptions{.name = name});
}

std::vector<double> values_of(const Variable& variable) { return variable.value().to_doubles(); }

StateProvider counter_state(std::int64_t& counter) {
  return {[&counter] { return Json(counter); },
          [&counter](const Json& json) { counter = json.as_int(); }};
}

/// Variable with two replicas. Like an ON_READ variable, it is saved both as a sum and component by
/// component. restore() fails on request.
class TwoComponents : public VariableStorage {
 public:
  explicit TwoComponents(const std::string& name)
      : VariableStorage({}, DType::kFloat32, VariableOptions{.name = name}, nullptr) {}

  Tensor read() const override { return Tensor(components[0] + components[1]); }
  std::vector<Tensor> local_components() const override { return {components[0], components[1]}; }
  std::vector<Device> devices() const override { return {Device{}, Device{}}; }
  void assign(AssignOp, const Tensor&, ValueOrigin) override { not_used(); }
  void assign_replicated(AssignOp, const Tensor&) override { not_used(); }
  void scatter(ScatterOp, const IndexedSlices&) override { not_used(); }
  Variable create_slot(const std::string&, double) override { not_used(); }
  void update(const UpdateRule&, std::span<const Variable>, const Gradient&,
              const UpdateScalars&) override {
    not_used();
  }

  std::vector<NamedTensor> save() const override {
    return {{name(), read()},
            {name() + "/replica_0", components[0]},
            {name() + "/replica_1", components[1]}};
  }
  void restore(const TensorLookup& lookup) override {
    if (failures > 0) {
      --failures;
      fail(ErrorCode::kNotFound, "Variable '", name(), "': other replicas");
    }
    for (int i = 0; i < 2; ++i) {
      components[i] = checked_restore(lookup, concat(name(), "/replica_", i)).item();
    }
  }

  float components[2] = {4, 3};
  int failures = 0;

 private:
  [[noreturn]] static void not_used() { fail(ErrorCode::kInternal, "not used by checkpoints"); }
};

TEST(Checkpoint, RestoresVariablesStateAndStep) {
  const std::string path = empty_folder() + "/new/folder/c.safetensors";
  Variable a = variable("a", {1, 2});
  Variable counter(Tensor::from<std::int64_t>({}, {41}), VariableOptions{.name = "counter"});
  std::int64_t position = 7;
  Checkpoint checkpoint({a, counter});
  checkpoint.add_state("position", counter_state(position));
  checkpoint.save(path, 123);

  a.assign(Tensor::from<float>({2}, {8, 9}));
  counter.assign(0.0);
  position = 0;
  const CheckpointInfo info = checkpoint.restore(path);
  EXPECT_THAT(values_of(a), ElementsAre(1, 2));
  EXPECT_EQ(counter.value().item_int(), 41);
  EXPECT_EQ(position, 7);
  EXPECT_EQ(info.step, 123);
  EXPECT_FALSE(info.tutti_version.empty());
}

TEST(Checkpoint, RestoresIntoNewVariablesByName) {
  const std::string path = empty_folder() + "/c.safetensors";
  Checkpoint({variable("a", {1, 2}), variable("b", {3})}).save(path);
  Variable b = variable("b", {0}), a = variable("a", {0, 0});
  Checkpoint({b, a}).restore(path);
  EXPECT_THAT(values_of(a), ElementsAre(1, 2));
  EXPECT_THAT(values_of(b), ElementsAre(3));
}

TEST(Checkpoint, VariablesWithSimilarNamesGetTheirOwnValues) {
  // Names like those of optimizer slots; some are prefixes or suffixes of others.
  const std::vector<std::string> names = {"kernel",
                                          "kernel_1",
                                          "a/kernel",
                                          "adam/kernel",
                                          "momentum",
                                          "velocity",
                                          "kernel/momentum",
                                          "kernel/velocity",
                                          "kernel/momentum_1",
                                          "adam/kernel/m",
                                          "adam/kernel/momentum",
                                          "adam/kernel/velocity",
                                          "adam/kernel/momentum/velocity"};
  std::vector<Variable> variables;
  for (std::size_t i = 0; i < names.size(); ++i) {
    variables.push_back(variable(names[i], {static_cast<float>(i), -static_cast<float>(i) - 1}));
  }
  const std::string path = empty_folder() + "/c.safetensors";
  Checkpoint(variables).save(path);
  for (Variable& each : variables) each.assign(Tensor::from<float>({2}, {100, 100}));
  Checkpoint(variables).restore(path);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto value = static_cast<double>(i);
    EXPECT_THAT(values_of(variables[i]), ElementsAre(value, -value - 1)) << names[i];
  }
}

TEST(Checkpoint, MismatchErrorListsEveryProblemAndChangesNothing) {
  const std::string path = empty_folder() + "/c.safetensors";
  std::int64_t number = 5;
  Checkpoint saved(
      {variable("fits", {1}), variable("shape", {1, 2}), variable("old", {3}),
       Variable(Tensor::ones({1}, DType::kFloat64), VariableOptions{.name = "dtype"})});
  saved.add_state("gone", counter_state(number));
  saved.save(path);

  Variable fits = variable("fits", {10});
  Checkpoint checkpoint(
      {fits, variable("shape", {1, 2, 3}), variable("new", {1}), variable("dtype", {1})});
  checkpoint.add_state("fresh", counter_state(number));
  number = 6;
  EXPECT_INVALID(checkpoint.restore(path), "Checkpoint::restore", path, "6 problems",
                 "nothing was changed", "variable 'new' is missing",
                 "'shape': expected float32 [3], got float32 [2]",
                 "'dtype': expected float32 [1], got float64 [1]", "unknown tensor 'old'",
                 "state 'fresh' is missing", "unknown state 'gone'");
  EXPECT_THAT(values_of(fits), ElementsAre(10));
  EXPECT_EQ(number, 6);
}

TEST(Checkpoint, IgnoreUnknownSkipsExtraTensorsAndState) {
  const std::string path = empty_folder() + "/c.safetensors";
  std::int64_t number = 5;
  Checkpoint saved({variable("a", {1}), variable("a/momentum", {2})});
  saved.add_state("number", counter_state(number));
  saved.save(path);
  Variable a = variable("a", {0});
  Checkpoint({a}).restore(path, RestoreOptions{.ignore_unknown = true});
  EXPECT_THAT(values_of(a), ElementsAre(1));
  // Missing tensors remain an error.
  EXPECT_INVALID(
      Checkpoint({a, variable("b", {1})}).restore(path, RestoreOptions{.ignore_unknown = true}),
      "1 problem)", "variable 'b' is missing");
}

TEST(Checkpoint, MismatchErrorNamesWeightsInFile) {
  const std::string path = empty_folder() + "/c.safetensors";
  Checkpoint({variable("fc.weight", {1, 2}), variable("fc.bias", {3})}).save(path);
  const std::vector<Variable> variables = {variable("dense/kernel", {1, 2})};
  EXPECT_INVALID(load_weights(path, variables, {.ignore_unknown = true}),
                 "variable 'dense/kernel' is missing", "'fc.bias'", "'fc.weight'",
                 "in LoadWeightsOptions, use .rename", ".transpose", "or .strict = false");
  // The error must not suggest an option that would not help.
  try {
    load_weights(path, variables, {.ignore_unknown = true});
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.message().find("ignore_unknown"), std::string::npos) << error.message();
  }
}

TEST(Checkpoint, SavesAndRestoresComponentsOfVariables) {
  const std::string path = empty_folder() + "/c.safetensors";
  auto storage = std::make_shared<TwoComponents>("sum");
  Checkpoint checkpoint({Variable(storage), variable("a", {1})});
  checkpoint.save(path);
  storage->components[0] = storage->components[1] = 0;
  checkpoint.restore(path);
  EXPECT_THAT(storage->components, ElementsAre(4, 3));
  // Restoring a plain variable named "sum" gives it the sum, and the components do not count as
  // unknown tensors.
  Variable plain(Tensor(0.0f), VariableOptions{.name = "sum"});
  Checkpoint({plain, variable("a", {1})}).restore(path);
  EXPECT_EQ(plain.value().item(), 7.0f);
}

TensorProvider table_of(std::vector<double>& values) {
  return {[&values] {
            return std::vector<NamedTensor>{{"t", Tensor::from<double>({1}, values)}};
          },
          [&values](const TensorLookup& lookup) { values = lookup("t").to_doubles(); }};
}

/// Corresponds to tf.train.Checkpoint's deferred restoration.
TEST(Checkpoint, DeferredRestoreAppliesToLaterVariables) {
  const std::string path = empty_folder() + "/saved.safetensors";
  std::int64_t counter = 5;
  std::vector<double> table = {2.5};
  Checkpoint saved({variable("a", {1}), variable("b", {2, 3}), variable("c", {4})});
  saved.add_state("counter", counter_state(counter));
  saved.add_tensors("table", table_of(table));
  saved.save(path, 17);

  const Variable a = variable("a", {0});
  Checkpoint checkpoint({a});
  EXPECT_EQ(checkpoint.restore_deferred(path).step, 17);
  EXPECT_THAT(values_of(a), ElementsAre(1));
  EXPECT_THAT(checkpoint.waiting(), ElementsAre("b", "c", "table/t", "counter"));
  const Variable b = variable("b", {0, 0});
  checkpoint.add({a, b});
  EXPECT_THAT(values_of(b), ElementsAre(2, 3));
  counter = 0;
  checkpoint.add_state("counter", counter_state(counter));
  EXPECT_EQ(counter, 5);
  table = {0.0};
  checkpoint.add_tensors("table", table_of(table));
  EXPECT_THAT(table, ElementsAre(2.5));
  EXPECT_THAT(checkpoint.waiting(), ElementsAre("c"));
  const Variable c = variable("c", {0});
  checkpoint.add({c});
  EXPECT_THAT(values_of(c), ElementsAre(4));
  EXPECT_TRUE(checkpoint.waiting().empty());
  const Variable fresh = variable("fresh", {9});  // all deferred values have been used
  checkpoint.add({fresh});
  EXPECT_THAT(values_of(fresh), ElementsAre(9));
}

TEST(Checkpoint, AddRefusesMismatchWithDeferredValues) {
  const std::string path = empty_folder() + "/saved.safetensors";
  Checkpoint({variable("a", {1}), variable("b", {2})}).save(path);
  Checkpoint checkpoint;
  checkpoint.restore_deferred(path);
  const Variable a = variable("a", {0}), wide = variable("b", {0, 0});
  EXPECT_INVALID(checkpoint.add({a, wide}), "'b': expected float32 [2], got float32 [1]");
  EXPECT_INVALID(checkpoint.add({variable("d", {0})}), "variable 'd' is missing", path);
  std::int64_t counter = 0;
  EXPECT_INVALID(checkpoint.add_state("counter", counter_state(counter)),
                 "state 'counter' is missing");
  EXPECT_THAT(values_of(a), ElementsAre(0));
  EXPECT_TRUE(checkpoint.variables().empty());
  EXPECT_THAT(checkpoint.waiting(), ElementsAre("a", "b"));
}

TEST(Checkpoint, DeferredRestoreSetsAllReplicasOfVariable) {
  const std::string path = empty_folder() + "/saved.safetensors";
  Checkpoint({Variable(std::make_shared<TwoComponents>("metric"))}).save(path);
  Checkpoint checkpoint;
  checkpoint.restore_deferred(path);
  EXPECT_THAT(checkpoint.waiting(), ElementsAre("metric", "metric/replica_0", "metric/replica_1"));
  const auto later = std::make_shared<TwoComponents>("metric");
  later->components[0] = later->components[1] = 0.0f;
  checkpoint.add({Variable(later)});
  EXPECT_THAT(later->components, ElementsAre(4.0f, 3.0f));
  EXPECT_TRUE(checkpoint.waiting().empty());
}

TEST(Checkpoint, FailedRestoreRollsBack) {
  const std::string path = empty_folder() + "/c.safetensors";
  Variable first = variable("first", {1});
  auto storage = std::make_shared<TwoComponents>("second");
  Checkpoint checkpoint({first, Variable(storage)});
  std::int64_t number = 5;
  checkpoint.add_state("number", counter_state(number));
  bool refuse = false;
  checkpoint.add_state("zz_last", {[] { return Json(1); },
                                   [&refuse](const Json&) {
                                     if (std::exchange(refuse, false))
                                       fail(ErrorCode::kOutOfRange, "too far");
                                   }});
  checkpoint.save(path);

  first.assign(2.0);
  storage->components[0] = 9;
  number = 6;
  storage->failures = 1;
  EXPECT_ERROR(checkpoint.restore(path), kNotFound, "other replicas");
  EXPECT_THAT(values_of(first), ElementsAre(2));
  EXPECT_EQ(storage->components[0], 9);
  EXPECT_EQ(number, 6);

  refuse = true;
  EXPECT_ERROR(checkpoint.restore(path), kOutOfRange, "too far");
  EXPECT_THAT(values_of(first), ElementsAre(2));
  EXPECT_EQ(storage->components[0], 9);
  EXPECT_EQ(number, 6);

  checkpoint.restore(path);
  EXPECT_THAT(values_of(first), ElementsAre(1));
  EXPECT_EQ(number, 5);
}

TEST(Checkpoint, RefusesDuplicateNames) {
  Variable a = variable("a", {1});
  Checkpoint checkpoint({a, a});  // a variable that is listed twice counts once
  EXPECT_EQ(checkpoint.variables().size(), 1u);
  EXPECT_ERROR(checkpoint.add({variable("a", {1})}), kAlreadyExists, "'a'");
  std::int64_t number = 0;
  checkpoint.add_state("s", counter_state(number));
  EXPECT_ERROR(checkpoint.add_state("s", counter_state(number)), kAlreadyExists, "'s'");
  EXPECT_INVALID(checkpoint.add_state("t", {}), "'t'");
  // These names differ, but the names of their tensors in the file collide.
  Checkpoint colliding(
      {Variable(std::make_shared<TwoComponents>("x")), variable("x/replica_1", {1})});
  EXPECT_INVALID(colliding.save(empty_folder() + "/c.safetensors"), "x/replica_1", "two variables");
}

TEST(Checkpoint, RefusesMalformedMetadata) {
  const std::string path = empty_folder() + "/c.safetensors";
  auto with = [&](const std::string& key, const std::string& value) {
    write_file_atomically(path, format_safetensors({{}, {{"tutti_format", "1"}, {key, value}}}));
  };
  with("step", "12x");
  EXPECT_ERROR(Checkpoint().restore(path), kDataLoss, path, "'step'", "12x");
  with("state/rng", "{");
  EXPECT_ERROR(Checkpoint().restore(path), kDataLoss, path, "state/rng");
  write_file_atomically(path, format_safetensors({{}, {{"tutti_format", "3"}}}));
  EXPECT_ERROR(Checkpoint().restore(path), kUnimplemented, path, "got 3", "later version");
}

TEST(Checkpoint, WarnsAboutDifferentNumericsFingerprint) {
  const std::string path = empty_folder() + "/c.safetensors";
  const LogLines log(LogLevel::kWarning);
  Checkpoint().save(path);
  EXPECT_EQ(Checkpoint().restore(path).numerics, numerics_fingerprint());
  // a file without a fingerprint
  write_file_atomically(path, format_safetensors({{}, {{"tutti_format", "1"}}}));
  Checkpoint().restore(path);
  EXPECT_THAT(log.list(), ElementsAre());
  write_file_atomically(
      path, format_safetensors({{}, {{"tutti_format", "1"}, {"numerics", "kernels 0, abacus"}}}));
  Checkpoint().restore(path);
  EXPECT_THAT(log.list(), ElementsAre(AllOf(HasSubstr("'kernels 0, abacus'"),
                                            HasSubstr(numerics_fingerprint()))));
}

TEST(Checkpoint, RoundTripsAsBytes) {
  Variable a = variable("a", {1, 2});
  std::int64_t position = 7;
  Checkpoint checkpoint({a});
  checkpoint.add_state("position", counter_state(position));
  const std::string bytes = checkpoint.save_to_bytes(12);
  a.assign(Tensor::from<float>({2}, {8, 9}));
  position = 0;
  const CheckpointInfo info = checkpoint.restore_from_bytes(bytes, "worker 2");
  EXPECT_EQ(info.step, 12);
  EXPECT_EQ(info.path, "");
  EXPECT_THAT(values_of(a), ElementsAre(1, 2));
  EXPECT_EQ(position, 7);
  std::string damaged = bytes;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  EXPECT_ERROR(checkpoint.restore_from_bytes(damaged, "worker 2"), kDataLoss, "worker 2",
               "tensor 'a' is damaged");
}

// Flips every bit of a single-file checkpoint; damage_test.cc tests the files of a
// CheckpointManager.
TEST(Checkpoint, DetectsEveryFlippedBitOfSingleFile) {
  std::int64_t number = 5;
  Variable a = variable("a", {1, 2, 3});
  Checkpoint checkpoint({a, Variable(Tensor::ones({2}, DType::kBool), {.name = "flags"})});
  checkpoint.add_state("number", counter_state(number));
  std::string bytes = checkpoint.save_to_bytes(12);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const char mask = static_cast<char>(1 << bit % 8);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ mask);
    EXPECT_THROW(checkpoint.restore_from_bytes(bytes, "bytes"), Error) << "bit " << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ mask);
  }
  checkpoint.restore_from_bytes(bytes, "bytes");
}

TEST(Checkpoint, FailedSaveKeepsExistingFile) {
  const std::string path = empty_folder() + "/c.safetensors";
  Checkpoint({variable("a", {1})}).save(path, 1);
  Checkpoint broken({variable("a", {2})});
  broken.add_state(
      "bad", {[]() -> Json { fail(ErrorCode::kUnavailable, "no state"); }, [](const Json&) {}});
  EXPECT_ERROR(broken.save(path, 2), kUnavailable, "no state");
  EXPECT_EQ(load_weights(path, {variable("a", {0})}).step, 1);
}

TEST(Weights, AreSavedWithoutStateAndLoadedFromAnyFile) {
  const std::string folder = empty_folder();
  save_weights(folder + "/w.safetensors", {variable("a", {1, 2})});
  Variable a = variable("a", {0, 0});
  load_weights(folder + "/w.safetensors", {a});
  EXPECT_THAT(values_of(a), ElementsAre(1, 2));

  // Slot variables and state of a checkpoint are ignored only if the caller permits it.
  std::int64_t number = 5;
  Checkpoint whole({variable("a", {3, 4}), variable("a/m", {0, 0})});
  whole.add_state("number", counter_state(number));
  whole.save(folder + "/c.safetensors", 9);
  EXPECT_INVALID(load_weights(folder + "/c.safetensors", {a}), "load_weights",
                 "unknown tensor 'a/m'", "use the program", ".ignore_unknown");
  EXPECT_THAT(values_of(a), ElementsAre(1, 2));
  EXPECT_EQ(load_weights(folder + "/c.safetensors", {a}, {.ignore_unknown = true}).step, 9);
  EXPECT_THAT(values_of(a), ElementsAre(3, 4));

  // Here, the file was written by another program.
  write_file_atomically(folder + "/o.safetensors",
                        format_safetensors({{{"a", Tensor::from<float>({2}, {5, 6})}},
                                            {{"format", "pt"}, {"step", "soon"}}}));
  EXPECT_EQ(load_weights(folder + "/o.safetensors", {a}).step, 0);
  EXPECT_THAT(values_of(a), ElementsAre(5, 6));
}

/// Program with three variables and a counter in its checkpoint.
struct Program {
  explicit Program(double value)
      : weights(Tensor::full({3, 5}, value), {.name = "weights"}),
        step(Tensor::scalar(7, DType::kInt64), {.name = "step"}),
        mask(Tensor::full({4}, 1.0, DType::kBool), {.name = "mask", .trainable = false}),
        checkpoint({weights, step, mask}) {
    checkpoint.add_state("lines", {.save = [this] { return Json(lines); },
                                   .restore = [this](const Json& j) { lines = j.as_int(); }});
  }
  Variable weights, step, mask;
  std::int64_t lines = 41;
  Checkpoint checkpoint;
};

void receive(const SafetensorsLayout& pieces, const ArrivingSnapshot& arriving) {
  ASSERT_EQ(arriving.tensors().size(), pieces.tensors.size());
  for (std::size_t i = 0; i < pieces.tensors.size(); ++i) {
    const auto bytes = pieces.tensors[i].value.bytes();
    ASSERT_EQ(arriving.tensors()[i].num_bytes(), bytes.size());
    std::memcpy(arriving.tensors()[i].data(), bytes.data(), bytes.size());
  }
}

TEST(SnapshotTransfer, SentBytesEqualFileAndRestoreSnapshot) {
  Program from(2.5), to(0.0);
  const CheckpointSnapshot snapshot = from.checkpoint.snapshot(12);
  const SafetensorsLayout pieces = pieces_of(snapshot);
  std::string joined = pieces.head;
  for (const NamedTensor& tensor : pieces.tensors) {
    const auto bytes = tensor.value.bytes();
    joined.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  EXPECT_EQ(joined, Checkpoint::to_bytes(snapshot));
  EXPECT_EQ(pieces.num_bytes, joined.size());
  // The snapshot is not copied: it shares the variable's memory, and the chunks share the
  // snapshot's.
  EXPECT_EQ(pieces.tensors.back().value.bytes().data(), from.mask.value().bytes().data());

  to.lines = 0;
  ArrivingSnapshot arriving(pieces.head, pieces.num_bytes, "worker 3");
  receive(pieces, arriving);
  EXPECT_EQ(to.checkpoint.restore(arriving.finish()).step, 12);
  EXPECT_EQ(hash_variables(to.checkpoint.variables()), hash_variables(from.checkpoint.variables()));
  EXPECT_EQ(to.lines, 41);
}

TEST(SnapshotTransfer, ErrorNamesDamagedTensor) {
  Program program(1.0);
  const SafetensorsLayout pieces = pieces_of(program.checkpoint.snapshot(3));
  const auto damaged = [&](std::size_t tensor, std::byte change) {
    ArrivingSnapshot arriving(pieces.head, pieces.num_bytes, "the state of worker 2");
    receive(pieces, arriving);
    arriving.tensors()[tensor].data()[1] ^= change;
    arriving.finish();
  };
  // Tensors of wider types come first: step (int64), weights (float32), mask (bool).
  EXPECT_ERROR(damaged(0, std::byte{4}), kDataLoss, "the state of worker 2", "'step' is damaged");
  EXPECT_ERROR(damaged(1, std::byte{1}), kDataLoss, "the state of worker 2",
               "'weights' is damaged");
  EXPECT_ERROR(damaged(2, std::byte{2}), kDataLoss, "'mask'", "expected 0 or 1, got 3");
}

TEST(SnapshotTransfer, InvalidHeaderIsRefusedBeforeAllocation) {
  Program program(1.0);
  const SafetensorsLayout pieces = pieces_of(program.checkpoint.snapshot(3));
  EXPECT_ERROR(ArrivingSnapshot(pieces.head.substr(0, 40), pieces.num_bytes, "worker 1"), kDataLoss,
               "worker 1", "the file ends within");
  EXPECT_ERROR(ArrivingSnapshot(pieces.head, pieces.num_bytes + 1, "worker 1"), kDataLoss,
               "worker 1", "the file continues after its last tensor");
  EXPECT_ERROR(ArrivingSnapshot(pieces.head, pieces.num_bytes - 1, "worker 1"), kDataLoss,
               "worker 1", "the file ends within tensor 'mask'");
}

Variable named(const char* name, double value) {
  return Variable(Tensor::full({3}, value), {.name = name});
}

/// Strings that the writing process sends, in order. The follower reads them after the writer has
/// finished.
struct Texts {
  std::vector<std::string> given;
  std::size_t taken = 0;

  CheckpointOptions writer() {
    return {.writes = true, .from_writer = [this](const std::string& own) {
              given.push_back(own);
              return own;
            }};
  }
  CheckpointOptions follower() {
    return {.writes = false,
            .from_writer = [this](const std::string&) { return given.at(taken++); }};
  }
};

TEST(SharedRestore, FollowersRestoreVersionChosenByWriter) {
  const std::string folder = empty_folder();
  Texts texts;
  Variable at_writer = named("x", 1.0), at_follower = named("x", 9.0);
  CheckpointManager writer(Checkpoint({at_writer}, texts.writer()), folder);
  writer.save(5);
  CheckpointManager follower(Checkpoint({at_follower}, texts.follower()), folder + "-elsewhere");
  at_writer.assign(7.0);
  const auto chosen = writer.restore_latest();
  const auto followed = follower.restore_latest();
  ASSERT_TRUE(chosen && followed);
  EXPECT_EQ(followed->step, 5);
  EXPECT_EQ(followed->path, chosen->path);
  EXPECT_EQ(followed->sequence, chosen->sequence);
  EXPECT_EQ(at_writer.value().to_doubles(), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(at_follower.value().to_doubles(), (std::vector<double>{1, 1, 1}));
  EXPECT_FALSE(std::filesystem::exists(folder + "-elsewhere"));
  EXPECT_EQ(texts.taken, texts.given.size());
}

TEST(SharedRestore, FollowersRestoreNothingIfWriterHasNoVersion) {
  Texts texts;
  CheckpointManager writer(Checkpoint({}, texts.writer()), empty_folder());
  CheckpointManager follower(Checkpoint({}, texts.follower()), empty_folder());
  EXPECT_FALSE(writer.restore_latest());
  EXPECT_FALSE(follower.restore_latest());
  EXPECT_EQ(texts.taken, texts.given.size());
}

TEST(SharedRestore, WriterErrorIsThrownByAllWorkers) {
  const std::string folder = empty_folder();
  Texts texts;
  Checkpoint writer({named("x", 1.0)}, texts.writer());
  Checkpoint follower({named("x", 1.0)}, texts.follower());
  const std::string error = error_of([&] { writer.restore(folder + "/none.safetensors"); });
  EXPECT_THAT(error, HasSubstr("none.safetensors"));
  EXPECT_EQ(error_of([&] { follower.restore("its own path does not count"); }), error);
  EXPECT_EQ(texts.taken, texts.given.size());
}

TEST(CheckpointTensors, AreSavedByNameAndRestoredTogetherWithVariables) {
  const std::string folder = empty_folder();
  Variable x = named("x", 1.0);
  Tensor kept = Tensor::full({2}, 4.0);
  bool refuses = false;
  std::vector<double> values;
  Checkpoint checkpoint({x});
  checkpoint.add_tensors("kept", {[&] {
                                    return std::vector<NamedTensor>{{"a", kept}};
                                  },
                                  [&](const TensorLookup& lookup) {
                                    kept = lookup("a");
                                    EXPECT_FALSE(lookup("x").defined())
                                        << "another provider's tensor";
                                    if (std::exchange(refuses, false)) {
                                      fail(ErrorCode::kInvalidArgument, "refused");
                                    }
                                  }});
  checkpoint.save(folder + "/a.safetensors");
  kept = Tensor::full({2}, 5.0);
  x.assign(2.0);
  refuses = true;
  EXPECT_INVALID(checkpoint.restore(folder + "/a.safetensors"), "refused");
  EXPECT_EQ(kept.to_doubles()[0], 5.0);
  EXPECT_EQ(x.value().to_doubles()[0], 2.0);
  checkpoint.restore(folder + "/a.safetensors");
  EXPECT_EQ(kept.to_doubles()[0], 4.0);
  EXPECT_EQ(x.value().to_doubles()[0], 1.0);
  EXPECT_INVALID(Checkpoint({x}).restore(folder + "/a.safetensors"), "unknown tensor 'kept/a'");
  EXPECT_INVALID(checkpoint.add_tensors("kept", {}),
                 "Checkpoint::add_tensors: provider 'kept': expected functions to save and to "
                 "restore it, got none; pass both");
  EXPECT_INVALID(checkpoint.add_state("more", {[] { return Json(); }, {}}),
                 "Checkpoint::add_state: state 'more': expected functions to save and to restore "
                 "it, got save alone; pass both");
  EXPECT_ERROR(checkpoint.add_tensors("kept", table_of(values)), kAlreadyExists,
               "Checkpoint::add_tensors: expected a new name, got provider 'kept' again; try "
               "another name");
}

TEST(CheckpointManagerDeleteAll, KeepsOtherFiles) {
  const std::string folder = empty_folder();
  CheckpointManager manager(Checkpoint({named("x", 1.0)}), folder, {.asynchronous = true});
  manager.delete_all();  // does nothing: the folder is already empty
  manager.save(1);
  manager.save(2);
  std::ofstream(folder + "/notes.txt") << "mine";
  manager.delete_all();
  EXPECT_TRUE(manager.checkpoints().empty());
  EXPECT_FALSE(std::filesystem::exists(folder + "/step_2"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/notes.txt"));
  std::filesystem::remove(folder + "/notes.txt");
  manager.save(3);
  manager.delete_all();
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace tutti::testing::checkpoint_test
