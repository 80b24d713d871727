// Strategy checks, and the loop that runs each check with a new strategy.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/strategy/suite.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "core/names.h"
#include "testing/cross_device_ops/problem.h"
#include "tutti/core/random.h"
#include "tutti/core/sync.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::conformance {
namespace {

/// A strategy under test, its devices and its number of replicas.
struct Tested {
  const StrategySubject& subject;
  Strategy& strategy;
  std::vector<Device> devices;
  int n;
};

using Numbers = std::vector<double>;

// A failed expectation throws std::runtime_error, because a check may expect a tutti::Error. Checks
// compare replicas' results outside the replicas, because the strategy handles exceptions in
// replicas.

std::string text_of(const Numbers& numbers) {
  constexpr std::size_t kShown = 16;
  const auto first = std::span(numbers).first(std::min(kShown, numbers.size()));
  return concat("[", join(first), numbers.size() > kShown ? ", ..." : "", "]");
}

template <class T>
std::string text_of(const T& value) {
  return concat(value);
}

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

/// Throws "WHAT: expected [1, 2], got [1, 1]".
template <class A, class B>
void expect_equal(std::string_view what, const A& got, const B& expected) {
  expect(got == expected, concat(what, ": expected ", text_of(expected), ", got ", text_of(got)));
}

/// Expects that `action` throws a tutti::Error with this code whose message contains `part`.
void expect_error(std::string_view what, ErrorCode code, const std::string& part,
                  const std::function<void()>& action) {
  std::string got = "no error";
  try {
    action();
  } catch (const Error& error) {
    if (error.code() == code && error.message().find(part) != std::string::npos) return;
    got = concat(to_string(error.code()), ": ", error.message());
  }
  expect(false, concat(what, ": expected ", to_string(code), " with '", part, "', got ", got));
}

void append(Numbers& all, const Numbers& more) { all.insert(all.end(), more.begin(), more.end()); }

Numbers numbers(const Tensor& tensor) { return tensor.to_doubles(); }

/// Returns the concatenated numbers of all replicas.
Numbers numbers(const PerReplica<Tensor>& tensors) {
  Numbers all;
  for (const Tensor& tensor : tensors) append(all, numbers(tensor));
  return all;
}

Numbers components(const Variable& variable) {
  return numbers(PerReplica<Tensor>(variable.storage().local_components()));
}

Numbers copies(double x, std::size_t n) { return Numbers(n, x); }

/// Returns f(0), f(1), ..., f(n - 1).
template <class F>
Numbers for_each(int n, const F& f) {
  Numbers all;
  for (int i = 0; i < n; ++i) all.push_back(f(i));
  return all;
}

int replica() { return ReplicaContext::current().replica_id(); }

/// In replica r, returns r + 1 elements, all equal to r.
Tensor own_rows(DType dtype) { return Tensor::full({replica() + 1}, replica(), dtype); }

/// Returns the own_rows() of all replicas, in replica order.
Numbers all_rows(int n) {
  Numbers rows;
  for (int r = 0; r < n; ++r) append(rows, copies(r, static_cast<std::size_t>(r) + 1));
  return rows;
}

/// Returns element i of replica r; the sum over replicas depends on the order of additions.
float fraction(int r, int i) {
  return 1.0f / static_cast<float>(3 * r + 1) + 0.1f * static_cast<float>(i);
}

Tensor own_fractions(int count) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(fraction(replica(), i));
  return Tensor::from<float>({count}, values);
}

/// Requires `got` to be the sum of the fractions of n replicas.
void expect_sum(std::string_view what, Determinism grade, int n, const Tensor& got) {
  const Numbers sums = numbers(got);
  for (int i = 0; i < got.num_elements(); ++i) {
    std::vector<float> values;
    for (int r = 0; r < n; ++r) values.push_back(fraction(r, i));
    const auto sum = static_cast<float>(sums[static_cast<std::size_t>(i)]);
    const std::string wrong = wrong_combination<float>(ReduceOp::kSum, grade, values, sum);
    expect(wrong.empty(), concat(what, ", element ", i, ": ", wrong));
  }
}

// Checks for run(): every replica runs once, in its context, and replicas exchange values.

/// Checks that the step function is called once per replica, in that replica's context. Other
/// checks rely on this.
void check_replicas(const Tested& t) {
  expect(t.strategy.num_workers() == 1 && t.strategy.first_replica() == 0 && t.n > 0,
         "the suite tests single-process strategies: expected num_workers() 1, first_replica() 0 "
         "and at least one device in replica_devices()");
  const auto call = [](int r, int n, Device device, Device of_tensors, bool is_own) {
    return concat("replica ", r, " of ", n, " on ", device, ", tensors on ", of_tensors,
                  is_own ? "" : ", not in the replica context of its strategy");
  };
  Mutex mutex;
  std::vector<std::string> calls, expected;
  t.strategy.run([&] {
    const ReplicaContext& context = ReplicaContext::current();
    const bool is_own = in_replica_context() && !in_cross_replica_context() &&
                        &context.strategy() == &t.strategy && &get_strategy() == &t.strategy;
    const std::string text = call(replica(), context.num_replicas_in_sync(), context.device(),
                                  Tensor::ones({1}).device(), is_own);
    const MutexLock lock(mutex);
    calls.push_back(text);
  });
  for (int r = 0; r < t.n; ++r) {
    const Device device = t.devices[static_cast<std::size_t>(r)];
    expected.push_back(call(r, t.n, device, device, true));
  }
  std::ranges::sort(calls);
  std::ranges::sort(expected);
  expect_equal("calls of the step function", join(calls, "; "), join(expected, "; "));
  expect_equal("num_replicas_in_sync()", t.strategy.num_replicas_in_sync(), t.n);
  expect(!has_strategy(), "after run(): expected no strategy on the caller's thread");
}

void check_results(const Tested& t) {
  const auto own = t.strategy.distribute_values_from_function(
      [](const ValueContext& context) { return 10.0 * context.replica_id_in_sync_group; });
  const auto results = t.strategy.run(
      [](double mine, double of_all) { return mine + of_all + 1000.0 * replica(); }, own, 5.0);
  expect_equal("results: 1000 * replica id + its argument + the common argument", results.values(),
               for_each(t.n, [](int r) { return 1010.0 * r + 5.0; }));
}

void check_merge_call(const Tested& t) {
  std::atomic<int> calls = 0, calls_in_context = 0;
  const auto results = t.strategy.run([&] {
    const auto doubled = [&](Strategy& merging, const PerReplica<int>& ids) {
      ++calls;
      calls_in_context += in_cross_replica_context() && &merging == &t.strategy;
      return ids.map([](int id) { return 2.0 * id; });
    };
    const auto sum_of = [](Strategy&, const PerReplica<double>& values) {
      return std::accumulate(values.begin(), values.end(), 0.0);
    };
    ReplicaContext& context = ReplicaContext::current();
    const double own = context.merge_call(doubled, replica());
    return own + 100 * context.merge_call(sum_of, own);
  });
  expect_equal("calls of the function", calls.load(), 1);
  expect_equal("calls in the cross-replica context of the strategy", calls_in_context.load(), 1);
  const double sum = t.n * (t.n - 1);
  expect_equal("results in the replicas", results.values(),
               for_each(t.n, [&](int r) { return 2.0 * r + 100 * sum; }));
}

void check_collectives(const Tested& t) {
  const auto results = t.strategy.run([] {
    ReplicaContext& context = ReplicaContext::current();
    return std::vector<Tensor>{context.all_reduce(ReduceOp::kSum, own_fractions(33)),
                               context.all_reduce(ReduceOp::kMean, Tensor::full({1}, replica())),
                               context.all_reduce(ReduceOp::kMax, Tensor::full({1}, replica())),
                               context.all_gather(own_rows(DType::kFloat32), 0)};
  });
  const Determinism grade = t.subject.is_canonical ? Determinism::kCanonical : Determinism::kNone;
  for (const std::vector<Tensor>& got : results) {
    expect_equal("shape after all_reduce(SUM)", got[0].shape(), Shape{33});
    expect_sum("all_reduce(SUM)", grade, t.n, got[0]);
    expect_equal("all_reduce(MEAN) of replica numbers", got[1].item_double(), (t.n - 1) / 2.0);
    expect_equal("all_reduce(MAX) of replica numbers", got[2].item_double(), t.n - 1.0);
    expect_equal("all_gather() of r + 1 rows each", numbers(got[3]), all_rows(t.n));
  }
}

// Checks for input, and for functions that are called outside replicas.

void check_reduce(const Tested& t) {
  const auto own = t.strategy.run([] { return own_fractions(2); });
  const Determinism grade = t.subject.is_canonical ? Determinism::kCanonical : Determinism::kNone;
  expect_sum("reduce(SUM)", grade, t.n, t.strategy.reduce(ReduceOp::kSum, own));
  const auto rows = t.strategy.run([] { return own_rows(DType::kInt64); });
  const Numbers all = all_rows(t.n);
  expect_equal("reduce(SUM) of r + 1 rows each over axis 0",
               t.strategy.reduce(ReduceOp::kSum, rows, 0).item_double(),
               std::accumulate(all.begin(), all.end(), 0.0));
}

void check_gather(const Tested& t) {
  const auto values = t.strategy.run([] { return own_rows(DType::kFloat32); });
  expect_equal("gather() of r + 1 rows each, in replica order",
               numbers(t.strategy.gather(values, 0)), all_rows(t.n));
}

void check_copies(const Tested& t) {
  const auto devices = t.strategy.worker_devices();
  const auto ids = t.strategy.run([] { return Tensor::full({2}, replica()); });
  const PerReplica<Tensor> sums = t.strategy.reduce_to(ReduceOp::kSum, ids, devices);
  expect_equal("reduce_to(SUM) on each worker device", numbers(sums),
               copies(t.n * (t.n - 1) / 2.0, 2 * devices.size()));
  const PerReplica<Tensor> sevens = t.strategy.broadcast_to(Tensor(7.0f), devices);
  expect_equal("broadcast_to() on each worker device", numbers(sevens), copies(7, devices.size()));
  for (std::size_t i = 0; i < devices.size(); ++i) {
    expect_equal("device after reduce_to()", sums[i].device(), devices[i]);
    expect_equal("device after broadcast_to()", sevens[i].device(), devices[i]);
  }
}

void check_input(const Tested& t) {
  const int count = 7 * t.n + 1;  // the last batch has one row
  DistributedDataset dataset = t.strategy.distribute_dataset(Dataset::range(count).batch(2 * t.n));
  for (const char* const pass : {"first pass", "second pass"}) {
    Numbers elements;
    int num_steps = 0;
    for (const PerReplica<Batch>& step : dataset) {
      ++num_steps;
      std::int64_t rows = 0;
      for (const Batch& batch : step) rows += batch.rows();
      for (std::size_t r = 0; r < t.devices.size(); ++r) {
        const std::string who = concat("batch of replica ", r, ": ");
        expect_equal(who + "device", step[r].features().device(), t.devices[r]);
        expect_equal(who + "rows of the global batch", step[r].global_rows(), rows);
        append(elements, numbers(step[r].features()));
      }
    }
    expect_equal(concat(pass, ": every element once, in order"), elements,
                 for_each(count, [](int i) { return i; }));
    expect_equal("steps, one for each global batch", num_steps, (count + 2 * t.n - 1) / (2 * t.n));
  }
}

void check_input_from_function(const Tested& t) {
  std::vector<InputContext> contexts;
  DistributedDataset dataset =
      t.strategy.distribute_datasets_from_function([&](const InputContext& context) {
        contexts.push_back(context);
        return Dataset::range(4 * t.n).batch(2);
      });
  expect_equal("calls of the function", contexts.size(), std::size_t{1});
  expect_equal("InputContext: replicas", contexts[0].num_replicas_in_sync, t.n);
  expect_equal("InputContext: pipelines", contexts[0].num_input_pipelines, 1);
  Numbers elements;
  for (const PerReplica<Batch>& step : dataset) {
    for (const Batch& batch : step) {
      expect_equal("rows of a batch", batch.rows(), 2);
      append(elements, numbers(batch.features()));
    }
  }
  expect_equal("consecutive batches, replica by replica", elements,
               for_each(4 * t.n, [](int i) { return i; }));
}

// Scopes and variables.

constexpr VariableAggregation kAggregations[] = {
    VariableAggregation::kMean, VariableAggregation::kSum, VariableAggregation::kOnlyFirstReplica};

Variable make(Strategy& strategy, const VariableOptions& options) {
  const auto scope = strategy.scope();
  return Variable(Tensor(0.0f), options);
}

VariableOptions on_read(VariableAggregation aggregation) {
  return {
      .name = "v", .synchronization = VariableSynchronization::kOnRead, .aggregation = aggregation};
}

/// Returns the aggregate of 1, 2, ..., n over n replicas.
double combined(VariableAggregation aggregation, double n) {
  if (aggregation == VariableAggregation::kOnlyFirstReplica) return 1;
  return aggregation == VariableAggregation::kSum ? n * (n + 1) / 2 : (n + 1) / 2;
}

/// Returns r + 1 for the current replica r.
Tensor own_number() { return Tensor(static_cast<float>(replica() + 1)); }

Numbers read_in_replicas(Strategy& strategy, const Variable& variable) {
  return numbers(strategy.run([&] { return variable.value(); }));
}

void expect_everywhere(const std::string& what, Strategy& strategy, const Variable& variable,
                       double expected) {
  const Numbers all = components(variable);
  expect_equal(what + ": components", all, copies(expected, all.size()));
  expect_equal(what + ": value() outside", variable.value().item_double(), expected);
  expect_equal(what + ": value() in replicas", read_in_replicas(strategy, variable),
               copies(expected, strategy.replica_devices().size()));
}

void check_scope(const Tested& t) {
  const Variable inside = make(t.strategy, {}), outside(Tensor(1.0f));
  const auto is_own = [&](const Variable& v) { return t.strategy.variable_created_in_scope(v); };
  expect_equal("variable_created_in_scope() of a variable created in the scope", is_own(inside),
               true);
  expect_equal("variable_created_in_scope() of a variable created outside", is_own(outside), false);
  expect_error("creating a variable in run()", ErrorCode::kFailedPrecondition, "created inside run",
               [&] { t.strategy.run([] { Variable late(Tensor(1.0f)); }); });
  expect_error("run() in a replica", ErrorCode::kFailedPrecondition, "",
               [&] { t.strategy.run([&] { t.strategy.run([] {}); }); });
}

void check_new_variables(const Tested& t) {
  const auto scope = t.strategy.scope();
  const auto initializer = [](const InitializerContext& context) {
    return Tensor::full({2}, 2.5, DType::kFloat32, context.device);
  };
  const Variable variable(initializer, {.name = "w"});
  const Numbers all = components(variable);
  expect(!all.empty(), "local_components(): expected at least one component, got none");
  expect_equal("components", all, copies(2.5, all.size()));
  expect_equal("name", variable.name(), "w");
  expect_equal("trainable(), of float32", variable.trainable(), true);
  expect_equal("value() in replicas", read_in_replicas(t.strategy, variable),
               copies(2.5, 2 * t.devices.size()));
  const auto add = [](Variable& component, const Tensor& more) { component.assign_add(more); };
  t.strategy.update(variable, add, Tensor::full({2}, 0.5));
  expect_equal("components after update()", components(variable), copies(3, all.size()));
}

void check_on_write(const Tested& t) {
  for (const VariableAggregation aggregation : kAggregations) {
    Variable v = make(t.strategy, {.name = "v", .aggregation = aggregation});
    const auto expect_now = [&](std::string_view what, double expected) {
      expect_everywhere(concat("ON_WRITE, ", aggregation, ": ", what), t.strategy, v, expected);
    };
    const double both = combined(aggregation, t.n);
    t.strategy.run([&] { v.assign(own_number()); });
    expect_now("assign(r + 1) in replicas", both);
    t.strategy.run([&] { v.assign_add(own_number()); });
    expect_now("assign_add(r + 1) in replicas", 2 * both);
    v.assign(5.0);
    expect_now("assign(5) outside", 5);
    v.assign_sub(Tensor(2.0f));
    expect_now("assign_sub(2) outside", 3);
    if (aggregation == VariableAggregation::kSum) continue;
    t.strategy.run([&] { v.assign_add(4.0); });
    expect_now("assign_add(4), one number for all, in replicas", 7);
  }
  if (t.n == 1) return;
  Variable none = make(t.strategy, {.name = "none"});
  expect_error("ON_WRITE, NONE: assign() in replicas", ErrorCode::kFailedPrecondition, "none",
               [&] { t.strategy.run([&] { none.assign(own_number()); }); });
}

void check_on_read(const Tested& t) {
  for (const VariableAggregation aggregation : kAggregations) {
    Variable v = make(t.strategy, on_read(aggregation));
    const auto expect_now = [&](std::string_view what, const Numbers& inside, double outside) {
      const std::string who = concat("ON_READ, ", aggregation, ": ", what, ": value() ");
      expect_equal(who + "in replicas", read_in_replicas(t.strategy, v), inside);
      expect_equal(who + "outside", v.value().item_double(), outside);
    };
    expect_equal("trainable()", v.trainable(), false);
    t.strategy.run([&] { v.assign(own_number()); });
    expect_now("assign(r + 1) in replicas", for_each(t.n, [](int r) { return r + 1; }),
               combined(aggregation, t.n));
    v.assign(2.0 * t.n);
    const double share = aggregation == VariableAggregation::kSum ? 2 : 2 * t.n;
    expect_now("assign(2 n) outside", copies(share, t.devices.size()), 2 * t.n);
  }
  if (t.n == 1) return;
  Variable none = make(t.strategy, on_read(VariableAggregation::kNone));
  expect_error("ON_READ, NONE: value() outside", ErrorCode::kInvalidArgument, "'v'",
               [&] { none.value(); });
}

void check_unknown_use(const Tested& t) {
  const auto unknown = static_cast<VariableSynchronization>(99);
  for (const VariableOptions& options :
       {VariableOptions{.name = "odd", .synchronization = VariableSynchronization::kNone},
        VariableOptions{.name = "odd", .synchronization = unknown},
        VariableOptions{.name = "odd", .aggregation = static_cast<VariableAggregation>(99)}}) {
    const auto synchronization = static_cast<int>(options.synchronization);
    const auto aggregation = static_cast<int>(options.aggregation);
    expect_error(concat("synchronization ", synchronization, ", aggregation ", aggregation),
                 ErrorCode::kInvalidArgument, "'odd'", [&] { make(t.strategy, options); });
  }
}

void check_saved(const Tested& t) {
  const VariableOptions options{.name = "w", .aggregation = VariableAggregation::kMean};
  Variable written = make(t.strategy, options);
  Variable read = make(t.strategy, on_read(VariableAggregation::kSum));
  written.assign(3.0);
  t.strategy.run([&] { read.assign(own_number()); });
  std::vector<NamedTensor> saved = written.storage().save();
  for (NamedTensor& each : read.storage().save()) saved.push_back(std::move(each));
  const TensorLookup lookup = [&](const std::string& name) {
    const auto found = std::ranges::find(saved, name, &NamedTensor::name);
    return found == saved.end() ? Tensor() : found->value;
  };
  for (const Variable& each : {written, read}) {
    const Tensor value = lookup(each.name());
    expect(value.defined(), concat("save(): expected a tensor called '", each.name(), "'"));
    expect_equal(concat("save(): '", each.name(), "'"), numbers(value), numbers(each.value()));
  }
  const std::unique_ptr<Strategy> other = t.subject.make();
  Variable written_again = make(*other, options);
  Variable read_again = make(*other, on_read(VariableAggregation::kSum));
  written_again.storage().restore(lookup);
  read_again.storage().restore(lookup);
  expect_everywhere("ON_WRITE: restore()", *other, written_again, 3);
  expect_equal("ON_READ: value() in replicas after restore()", read_in_replicas(*other, read_again),
               read_in_replicas(t.strategy, read));
}

// Checks of steps: failing replicas, random numbers, training.

void check_failures(const Tested& t) {
  const auto sum_of_ones = [] {
    return ReplicaContext::current().all_reduce(ReduceOp::kSum, Tensor::ones({1}));
  };
  for (const int failing : {0, t.n - 1}) {
    const std::string who = concat("replica ", failing);
    const auto fail_in_step = [&] {
      t.strategy.run([&] {
        if (replica() == failing) fail(ErrorCode::kDataLoss, "the planted reason");
        sum_of_ones();
      });
    };
    const std::string what = concat("an exception in ", who, ", while other replicas wait for it");
    expect_error(what, ErrorCode::kDataLoss, "the planted reason", fail_in_step);
    expect_error(what, ErrorCode::kDataLoss, who, fail_in_step);
    expect_equal("last_failure().replica", t.strategy.last_failure().replica, failing);
    expect_equal("all_reduce() in the run after a failed one", numbers(t.strategy.run(sum_of_ones)),
                 copies(t.n, t.devices.size()));
  }
}

void check_random_numbers(const Tested& t) {
  const auto contexts = [&] { return t.strategy.run([] { return current_random_context(); }); };
  const auto first = contexts();
  const Json state = t.strategy.save_state();
  const auto second = contexts();
  t.strategy.restore_state(state);
  const auto repeated = contexts();
  for (std::size_t r = 0; r < first.size(); ++r) {
    expect_equal("current_random_context().replica", first[r].replica, r);
    expect_equal("step of the next run", second[r].step, first[r].step + 1);
    expect_equal("step after restore_state()", repeated[r].step, second[r].step);
    expect_equal("seed after restore_state()", repeated[r].seed, second[r].seed);
  }
}

/// Adds values along the canonical tree: value 2i + 1 to value 2i in each round; an unpaired last
/// value stays unchanged.
Tensor sum_along_tree(std::vector<Tensor> values) {
  while (values.size() > 1) {
    std::vector<Tensor> sums;
    for (std::size_t i = 0; i + 1 < values.size(); i += 2) {
      sums.push_back(values[i] + values[i + 1]);
    }
    if (values.size() % 2 == 1) sums.push_back(values.back());
    values = std::move(sums);
  }
  return values.front();
}

/// Fits a line to the data of n replicas, using momentum, and returns losses and weights. Each
/// replica trains on its own data; a single replica trains on all of it and adds the gradients.
Numbers train(Strategy& strategy, int n) {
  constexpr std::int64_t kSteps = 3, kRows = 4;  // kRows: rows per replica and step
  const Tensor x = random_normal({kSteps * n * kRows, 5}, RandomKey{5, kUserPurpose, 1, 0, 0});
  const Tensor y = random_normal({kSteps * n * kRows, 1}, RandomKey{5, kUserPurpose, 2, 0, 0});
  const auto scope = strategy.scope();
  Variable w(random_normal({5, 1}, RandomKey{5, kUserPurpose, 3, 0, 0}), {.name = "w"});
  Variable b(Tensor::zeros({1}), {.name = "b"});
  const std::vector<Variable> variables = {w, b};
  Sgd optimizer(variables, {.learning_rate = 0.1, .momentum = 0.9});
  Numbers numbers_of_training;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const auto loss_of = [&](int r) {
      const auto rows = [&](const Tensor& all) {
        return all.detached_rows((step * n + r) * kRows, kRows).to(current_device());
      };
      const Tensor error = matmul(rows(x), w.value()) + b.value() - rows(y);
      return reduce_sum(square(error)) / static_cast<float>(n * kRows);
    };
    const auto losses = strategy.run([&] {
      if (strategy.num_replicas_in_sync() == n) {
        GradientTape tape;
        const Tensor loss = loss_of(replica());
        optimizer.minimize(tape, loss);
        return loss;
      }
      std::vector<Tensor> each_loss, of_w, of_b;
      for (int r = 0; r < n; ++r) {
        GradientTape tape;
        each_loss.push_back(loss_of(r));
        const std::vector<Gradient> each = tape.gradient(each_loss.back(), variables);
        of_w.push_back(each[0].dense());
        of_b.push_back(each[1].dense());
      }
      optimizer.apply_gradients(std::vector<Gradient>{sum_along_tree(of_w), sum_along_tree(of_b)});
      return sum_along_tree(each_loss);
    });
    append(numbers_of_training, numbers(strategy.reduce(ReduceOp::kSum, losses)));
  }
  for (const Variable& each : variables) {
    const std::vector<Tensor> all = each.storage().local_components();
    for (const Tensor& component : all) {
      expect_equal(concat("components of '", each.name(), "' equal the first"), numbers(component),
                   numbers(all.front()));
    }
    append(numbers_of_training, numbers(each.value()));
  }
  return numbers_of_training;
}

void check_training(const Tested& t) {
  const std::string what = "losses and weights, compared with those of one device";
  const Numbers got = train(t.strategy, t.n);
  OneDeviceStrategy one(concat(t.devices.front()));
  const Numbers expected = train(one, t.n);
  const bool is_near = std::ranges::equal(got, expected, [](double a, double b) {
    return std::abs(a - b) <= 1e-4 * (1 + std::abs(b));
  });
  if (!is_near || t.subject.is_canonical) expect_equal(what, got, expected);
  if (!t.subject.is_canonical) return;
  const std::unique_ptr<Strategy> other = t.subject.make();
  expect_equal("losses and weights of a second training", train(*other, t.n), got);
}

struct StrategyCheck {
  const char* name;
  void (*run)(const Tested&);
};

constexpr StrategyCheck kChecks[] = {{"replicas", check_replicas},
                                     {"results", check_results},
                                     {"merge_call", check_merge_call},
                                     {"collectives", check_collectives},
                                     {"reduce", check_reduce},
                                     {"gather", check_gather},
                                     {"copies", check_copies},
                                     {"input", check_input},
                                     {"input_from_function", check_input_from_function},
                                     {"scope", check_scope},
                                     {"new_variables", check_new_variables},
                                     {"on_write_variables", check_on_write},
                                     {"on_read_variables", check_on_read},
                                     {"unknown_use", check_unknown_use},
                                     {"saved_variables", check_saved},
                                     {"failures", check_failures},
                                     {"random_numbers", check_random_numbers},
                                     {"training", check_training}};

std::string run_check(const StrategySubject& subject, const StrategyCheck& check) {
  std::string wrong;
  const std::string hangs = concat("conformance: strategy '", subject.name, "': check '",
                                   check.name, "' did not end in time: a replica hangs");
  run_threads(1, {subject.limit, hangs}, [&](int) {
    try {
      const std::unique_ptr<Strategy> strategy = subject.make();
      const auto devices = strategy->replica_devices();
      check.run(
          {subject, *strategy, {devices.begin(), devices.end()}, static_cast<int>(devices.size())});
    } catch (const std::exception& error) {
      wrong = error.what();
    }
  });
  return wrong;
}

}  // namespace

std::vector<std::string> strategy_checks() {
  return internal::names_of(kChecks, &StrategyCheck::name);
}

std::string run_strategy_check(const StrategySubject& subject, const std::string& name) {
  const StrategyCheck& check = internal::named_entry(kChecks, &StrategyCheck::name, name,
                                                     "conformance", "check of strategies");
  // All other checks rely on the first one.
  const std::string premise = run_check(subject, kChecks[0]);
  return premise.empty() && &check != &kChecks[0] ? run_check(subject, check) : premise;
}

StrategyReport run_strategy_suite(const StrategySubject& subject) {
  StrategyReport report;
  report.name = subject.name;
  for (const StrategyCheck& check : kChecks) {
    ++report.num_checks;
    const std::string wrong = run_check(subject, check);
    if (!wrong.empty()) report.failures.emplace_back(check.name, wrong);
    if (!wrong.empty() && &check == &kChecks[0]) break;
  }
  return report;
}

std::string StrategyReport::text() const {
  std::string text;
  for (const auto& [check, wrong] : failures) text += concat("FAILED ", check, ": ", wrong, "\n");
  return text +
         concat(name, ": ", num_checks - failures.size(), " of ", num_checks, " checks passed\n");
}

}  // namespace tutti::conformance
