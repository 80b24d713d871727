// Checks of scopes and of the variables made in them: writes and reads in replicas and outside.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "testing/strategy/expect.h"
#include "tutti/strategy/strategies.h"

namespace tutti::conformance {
namespace {

constexpr VariableAggregation kAggregations[] = {
    VariableAggregation::kMean, VariableAggregation::kSum, VariableAggregation::kOnlyFirstReplica};

Variable make(Strategy& strategy, const Tensor& initial, VariableOptions options) {
  const auto scope = strategy.scope();
  return Variable(initial, std::move(options));
}

Variable on_read(Strategy& strategy, VariableAggregation aggregation) {
  return make(strategy, Tensor(0.0f),
              {.name = "v",
               .synchronization = VariableSynchronization::kOnRead,
               .aggregation = aggregation});
}

/// What the numbers 1, 2, ..., n of n replicas become.
double combined(VariableAggregation aggregation, double n) {
  if (aggregation == VariableAggregation::kOnlyFirstReplica) return 1;
  return aggregation == VariableAggregation::kSum ? n * (n + 1) / 2 : (n + 1) / 2;
}

/// Replica r's number: r + 1.
Tensor own_number() {
  return Tensor::scalar(ReplicaContext::current().replica_id() + 1, DType::kFloat32);
}

Numbers read_in_replicas(Strategy& strategy, const Variable& variable) {
  return numbers(strategy.run([&] { return variable.value(); }));
}

void expect_everywhere(std::string_view what, Strategy& strategy, const Variable& variable,
                       double expected) {
  const Numbers all = components(variable);
  expect_equal(concat(what, ": components"), all, copies(expected, all.size()));
  expect_equal(concat(what, ": value() outside"), numbers(variable.value()), Numbers{expected});
  expect_equal(concat(what, ": value() in replicas"), read_in_replicas(strategy, variable),
               copies(expected, strategy.replica_devices().size()));
}

void check_scope(const StrategySubject&, Strategy& strategy) {
  Variable outside(Tensor(1.0f)), inside;
  OneDeviceStrategy other("cpu:0");
  {
    const auto scope = strategy.scope();
    expect(has_strategy() && &get_strategy() == &strategy, "scope(): expected its strategy");
    expect(in_cross_replica_context() && !get_replica_context(),
           "scope(): expected the cross-replica context");
    const auto again = strategy.scope();
    inside = Variable(Tensor(1.0f));
    expect_error("scope() of another strategy inside", ErrorCode::kFailedPrecondition,
                 {"Mixing different strategies"}, [&] { const auto wrong = other.scope(); });
    expect_error("ReplicaContext::current() in scope()", ErrorCode::kFailedPrecondition,
                 {"cross-replica context"}, [] { ReplicaContext::current(); });
  }
  expect(!has_strategy(), "after scope(): expected no strategy");
  expect(strategy.variable_created_in_scope(inside),
         "variable_created_in_scope(): expected true for a variable that was");
  expect(!strategy.variable_created_in_scope(outside),
         "variable_created_in_scope(): expected false for a variable made outside");
  expect_error("a variable made in run()", ErrorCode::kFailedPrecondition, {"created inside run"},
               [&] { strategy.run([] { Variable late(Tensor(1.0f)); }); });
  expect_error("run() in a replica", ErrorCode::kFailedPrecondition, {},
               [&] { strategy.run([&] { strategy.run([] {}); }); });
  expect_error("reduce() in a replica", ErrorCode::kFailedPrecondition, {"inside a replica"},
               [&] { strategy.run([&] { strategy.reduce(ReduceOp::kMean, Tensor(1.0f)); }); });
}

void check_new_variables(const StrategySubject&, Strategy& strategy) {
  const auto scope = strategy.scope();
  const Variable variable(
      [](const InitializerContext& context) {
        return Tensor::full({2}, 2.5, DType::kFloat32, context.device);
      },
      {.name = "w"});
  const Numbers all = components(variable);
  expect(!all.empty(), "local_components(): expected a component or more, got none");
  expect_equal("a new variable: components", all, copies(2.5, all.size()));
  expect_equal("a new variable: name", variable.name(), "w");
  expect(variable.trainable(), "a new variable of float32: expected it to be trainable");
  const std::size_t n = strategy.replica_devices().size();
  expect_equal("a new variable: value() in replicas", read_in_replicas(strategy, variable),
               copies(2.5, 2 * n));
  strategy.update(
      variable, [](Variable& component, const Tensor& argument) { component.assign_add(argument); },
      Tensor::full({2}, 0.5));
  expect_equal("update(): components", components(variable), copies(3, all.size()));
}

void check_on_write(const StrategySubject&, Strategy& strategy) {
  const auto n = static_cast<double>(strategy.replica_devices().size());
  for (const VariableAggregation aggregation : kAggregations) {
    const std::string what = concat("ON_WRITE, ", aggregation, ": ");
    Variable v = make(strategy, Tensor(0.0f), {.name = "v", .aggregation = aggregation});
    const double both = combined(aggregation, n);
    strategy.run([&] { v.assign(own_number()); });
    expect_everywhere(what + "assign(r + 1) in replicas", strategy, v, both);
    strategy.run([&] { v.assign_add(own_number()); });
    expect_everywhere(what + "assign_add(r + 1) in replicas", strategy, v, 2 * both);
    v.assign(5.0);
    expect_everywhere(what + "assign(5) outside", strategy, v, 5);
    v.assign_sub(Tensor(2.0f));
    expect_everywhere(what + "assign_sub(2) outside", strategy, v, 3);
    if (aggregation == VariableAggregation::kSum) continue;
    strategy.run([&] { v.assign_add(4.0); });
    expect_everywhere(what + "assign_add(4), one number for all, in replicas", strategy, v, 7);
  }
  if (n == 1) return;
  Variable none = make(strategy, Tensor(0.0f), {.name = "none"});
  expect_error("ON_WRITE, NONE: assign() in replicas", ErrorCode::kFailedPrecondition, {"none"},
               [&] { strategy.run([&] { none.assign(own_number()); }); });
}

void check_on_read(const StrategySubject&, Strategy& strategy) {
  const std::size_t n = strategy.replica_devices().size();
  const auto count = static_cast<double>(n);
  Numbers own;
  for (std::size_t r = 1; r <= n; ++r) own.push_back(static_cast<double>(r));
  for (const VariableAggregation aggregation : kAggregations) {
    const std::string what = concat("ON_READ, ", aggregation, ": ");
    Variable v = on_read(strategy, aggregation);
    expect(!v.trainable(), what + "expected it not to be trainable");
    strategy.run([&] { v.assign(own_number()); });
    expect_equal(what + "value() in replicas after assign(r + 1)", read_in_replicas(strategy, v),
                 own);
    expect_equal(what + "value() outside after assign(r + 1) in replicas", numbers(v.value()),
                 Numbers{combined(aggregation, count)});
    v.assign(2 * count);
    const bool is_sum = aggregation == VariableAggregation::kSum;
    expect_equal(what + "value() in replicas after assign() outside", read_in_replicas(strategy, v),
                 copies(is_sum ? 2 : 2 * count, n));
    expect_equal(what + "value() outside after assign() there", numbers(v.value()),
                 Numbers{2 * count});
  }
  if (n == 1) return;
  Variable none = on_read(strategy, VariableAggregation::kNone);
  expect_error("ON_READ, NONE: value() outside", ErrorCode::kInvalidArgument, {"'v'"},
               [&] { none.value(); });
}

void check_unknown_use(const StrategySubject&, Strategy& strategy) {
  for (const auto synchronization :
       {VariableSynchronization::kNone, static_cast<VariableSynchronization>(99)}) {
    expect_error(
        concat("a variable with synchronization ", static_cast<int>(synchronization)),
        ErrorCode::kInvalidArgument, {"'odd'"},
        [&] { make(strategy, Tensor(0.0f), {.name = "odd", .synchronization = synchronization}); });
  }
  expect_error("a variable with aggregation 99", ErrorCode::kInvalidArgument, {"'odd'"}, [&] {
    make(strategy, Tensor(0.0f),
         {.name = "odd", .aggregation = static_cast<VariableAggregation>(99)});
  });
}

void check_saved(const StrategySubject& subject, Strategy& strategy) {
  const VariableOptions options{.name = "w", .aggregation = VariableAggregation::kMean};
  Variable written = make(strategy, Tensor(0.0f), options);
  Variable read = on_read(strategy, VariableAggregation::kSum);
  written.assign(3.0);
  strategy.run([&] { read.assign(own_number()); });
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
  const std::unique_ptr<Strategy> other = subject.make();
  Variable written_again = make(*other, Tensor(0.0f), options);
  Variable read_again = on_read(*other, VariableAggregation::kSum);
  written_again.storage().restore(lookup);
  read_again.storage().restore(lookup);
  expect_everywhere("ON_WRITE: restore()", *other, written_again, 3);
  expect_equal("ON_READ: value() in replicas after restore()", read_in_replicas(*other, read_again),
               read_in_replicas(strategy, read));
}

}  // namespace

std::vector<StrategyCheck> variable_checks() {
  return {{"scope", check_scope},
          {"new_variables", check_new_variables},
          {"on_write_variables", check_on_write},
          {"on_read_variables", check_on_read},
          {"unknown_use", check_unknown_use},
          {"saved_variables", check_saved}};
}

}  // namespace tutti::conformance
