// Tests that the partitioner receives every operation, and that operations and variable updates do
// not read sharded tensors on the host.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <set>

#include "tests/mesh/op_calls.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::mesh_tests {
namespace {

using internal::MeshPosition;
using internal::Sharding;

bool is_sharded(const Tensor& x) { return internal::lazy_value(x) != nullptr; }

/// Sharded tensors that the host has not read yet. Their memory holds a fill pattern until a read
/// gathers the elements.
class UnreadTensors {
 public:
  void add(const Tensor& x) {
    if (!is_sharded(x) || x.num_elements() == 0) return;
    if (!known_.insert(x.buffer()->data()).second) return;
    std::ranges::fill(memory_of(x), kPattern);
    tensors_.push_back(x);
  }
  std::ptrdiff_t num_read() const {
    return std::ranges::count_if(tensors_, [](const Tensor& x) {
      return std::ranges::any_of(memory_of(x), [](std::byte each) { return each != kPattern; });
    });
  }

 private:
  static constexpr std::byte kPattern{0xa5};
  static std::span<std::byte> memory_of(const Tensor& x) {
    return {x.buffer()->data(), x.num_bytes()};
  }
  std::vector<Tensor> tensors_;
  std::set<const std::byte*> known_;
};

/// Partitioner that forwards calls to another partitioner. Records the operations with sharded
/// inputs, and the tensors that it returns.
class WatchedPartitioner final : public OpPartitioner {
 public:
  explicit WatchedPartitioner(OpPartitioner& next) : next_(next) {}

  std::optional<std::vector<Tensor>> run(const OpCall& call) override {
    if (std::ranges::any_of(call.inputs, is_sharded)) ops.insert(call.op);
    auto outputs = next_.run(call);
    for (const Tensor& output : outputs.value_or(std::vector<Tensor>())) unread.add(output);
    return outputs;
  }
  std::set<OpId> ops;
  UnreadTensors unread;

 private:
  OpPartitioner& next_;
  OpPartitionerScope scope_{*this};
};

/// Returns a sharding of dimension `dim` over axis 0, or a partial sum if `dim` is -1.
Sharding over_axis_0(int dim) {
  Sharding sharding;
  (dim < 0 ? sharding.partial : sharding[dim]) = 1;
  return sharding;
}

struct Seen {
  bool op_is_seen = false, stays_sharded = false;
  std::ptrdiff_t num_read = 0;
};

/// Runs a call and its gradient with input i sharded along dimension `dim`.
Seen run_watched(MeshStrategy& strategy, const MeshCall& c, std::size_t i, int dim) {
  Seen seen;
  strategy.run([&] {
    MeshPosition& position = *MeshPosition::current();
    WatchedPartitioner watched(position);
    OpCall call = c.call;
    call.inputs[i] = in_sharding(position, call.inputs[i], over_axis_0(dim));
    watched.unread.add(call.inputs[i]);
    const std::vector<Tensor> sources = gradient_check::sources_among(call.inputs);
    GradientTape tape;
    for (const Tensor& source : sources) tape.watch(source);
    std::vector<Tensor> outputs = dispatch(call);
    const bool stays_sharded = std::ranges::any_of(outputs, is_sharded);
    if (c.is_differentiated) {
      outputs.resize(c.num_results);
      tape.gradient(gradient_check::weighted_sum(outputs, 1), sources);
    }
    if (position.number() > 0) return;
    seen = {watched.ops.contains(call.op), stays_sharded, watched.unread.num_read()};
  });
  return seen;
}

TEST(MeshPartitioner, SeesEveryOperationAndGradientWithoutMaterialization) {
  MeshStrategy strategy(on_mesh({{"a", 2}}));
  std::set<OpId> known, sharded;
  for (const testing::OpFamily& family : testing::op_families()) {
    for (const auto& [op, calls] : calls_of(family)) {
      known.insert(op);
      constexpr std::size_t kMost = 6;  // later calls run only until one has a sharded result
      for (std::size_t n = 0; n < calls.size(); ++n) {
        if (n >= kMost && sharded.contains(op)) break;
        const MeshCall& c = calls[n];
        for (std::size_t i = 0; i < c.call.inputs.size(); ++i) {
          const Shape& shape = c.call.inputs[i].shape();
          for (int d = 0; d < shape.rank(); ++d) {
            if (shape.dim(d) == 0 || shape.dim(d) % 2 != 0) continue;
            const Seen seen = run_watched(strategy, c, i, d);
            EXPECT_TRUE(seen.op_is_seen) << c.name << ": input " << i << ", dimension " << d;
            EXPECT_EQ(seen.num_read, 0) << c.name << ": input " << i << ", dimension " << d;
            if (seen.stays_sharded) sharded.insert(op);
          }
        }
      }
    }
  }
  for (int op = 0; op < static_cast<int>(OpId::kCount); ++op) {
    EXPECT_TRUE(known.contains(static_cast<OpId>(op))) << to_string(static_cast<OpId>(op));
    EXPECT_TRUE(sharded.contains(static_cast<OpId>(op))) << to_string(static_cast<OpId>(op));
  }
}

/// Public tensor function that is not in the table of operations.
struct PublicFunction {
  std::string name;
  std::function<Tensor(const Tensor& x)> call;  // x: float64 [4, 6]
  bool reads = false;                           // true if the function is documented to read x
};

std::vector<PublicFunction> public_functions() {
  const Tensor rows = Tensor::from<std::int64_t>({3}, {2, 0, 2});
  return {
      {"zeros_like", [](const Tensor& x) { return zeros_like(x); }},
      {"ones_like", [](const Tensor& x) { return ones_like(x) + x; }},
      {"row", [](const Tensor& x) { return x[1]; }},
      {"element",
       [](const Tensor& x) {
         return x[{-1, 2}];
       }},
      {"range",
       [](const Tensor& x) {
         return x[{Range{1, 3}, Range{2}}];
       }},
      {"sum", [](const Tensor& x) { return x.sum() + x.max() * x.mean(1) - x.min(1); }},
      {"reshape",
       [](const Tensor& x) {
         return x.reshape({2, 12});
       }},
      {"sort", [](const Tensor& x) { return sort(x); }},
      {"argsort", [](const Tensor& x) { return argsort(x, {.axis = 0, .descending = true}); }},
      {"top_k", [](const Tensor& x) { return top_k(x, 3).values; }},
      {"cumulative_product", [](const Tensor& x) { return cumulative_product(x, {.axis = 1}); }},
      {"einsum",
       [](const Tensor& x) {
         return einsum("ij,kj->ik", {x, x});
       }},
      {"roll", [](const Tensor& x) { return roll(x, 2, 0); }},
      {"tril", [](const Tensor& x) { return tril(x) + triu(x, 1); }},
      {"tile",
       [](const Tensor& x) {
         return tile(x, {2, 1}) + repeat(x, 2, 0);
       }},
      {"stack",
       [](const Tensor& x) {
         return stack({x, x * 2.0f}, 1);
       }},
      {"split", [](const Tensor& x) { return split(x, 2, 1)[1] * split(x, 2, 1)[0]; }},
      {"unstack", [](const Tensor& x) { return unstack(x, 1)[3] + unstack(x, 1)[0]; }},
      {"gather", [rows](const Tensor& x) { return gather(x, rows, 1); }},
      {"logsumexp", [](const Tensor& x) { return reduce_logsumexp(x, {.axes = {0}}); }},
      {"std", [](const Tensor& x) { return reduce_std(x, {.axes = {1}}); }},
      {"isfinite", [](const Tensor& x) { return isfinite(x); }},
      {"power", [](const Tensor& x) { return pow(x * x, 1.5) / (x * x + 1.0); }},
      {"alias", [](const Tensor& x) { return x.alias(); }},
      {"to", [](const Tensor& x) { return x.to("cpu:1").to("cpu:0"); }},
      {"random_normal",
       [](const Tensor& x) {
         return cast(random_normal({4, 6}), x.dtype()) * x;
       }},
      {"random_uniform",
       [](const Tensor& x) {
         return cast(random_uniform({6}) + truncated_normal({6}), x.dtype()) * x;
       }},
      {"random_categorical", [](const Tensor& x) { return random_categorical(x, 5); }},
      {"dropout", [](const Tensor& x) { return dropout(x, 0.5, {.seed = 3}); }},
      {"rows of the buffer", [](const Tensor& x) { return x.detached_rows(1, 2); }},
      {"shape of the buffer", [](const Tensor& x) { return x.detached_reshape({24}); }},
      {"copy", [](const Tensor& x) { return x.copy(); }, true},
      {"unique", [](const Tensor& x) { return unique(floor(x).reshape({24})).values; }, true},
      {"nonzero", [](const Tensor& x) { return nonzero(floor(x)); }, true},
      {"boolean_mask", [](const Tensor& x) { return boolean_mask(x, x > 0.0); }, true},
      {"scatter",
       [](const Tensor& x) {
         const Tensor indices = reshape(cast(abs(x) * 3.0, DType::kInt64), {24, 1});
         return scatter(indices, reshape(x, {24}), {8});
       },
       true},
      {"to_doubles", [](const Tensor& x) { return Tensor::from({24}, x.to_doubles()); }, true},
      {"host_span", [](const Tensor& x) { return Tensor::from({24}, x.host_span<double>()); },
       true},
      {"bytes",
       [](const Tensor& x) {
         return Tensor::from_bytes({4, 6}, x.dtype(), x.bytes());
       },
       true},
      {"item", [](const Tensor& x) { return Tensor::scalar(x.sum().item_double(), x.dtype()); },
       true},
      {"to_string",
       [](const Tensor& x) {
         const std::string text = floor(x).to_string();
         return Tensor::scalar(static_cast<double>(text.size()), DType::kFloat64);
       },
       true},
  };
}

TEST(MeshPartitioner, PublicFunctionsMatchOneDeviceAndGatherOnlyWhereDocumented) {
  const Tensor x = gradient_check::random_tensor({4, 6}, 3);
  for (const PublicFunction& function : public_functions()) {
    std::vector<double> expected;
    set_random_seed(7);
    OneDeviceStrategy one("cpu:0");
    one.run([&] { expected = function.call(x).to_doubles(); });
    bool any_read = false;
    for (const int dim : {-1, 0, 1}) {
      SCOPED_TRACE(concat(function.name, ", dimension ", dim));
      std::vector<std::vector<double>> found(2);
      std::ptrdiff_t num_read = 0;
      set_random_seed(7);
      MeshStrategy strategy(on_mesh({{"a", 2}}));
      strategy.run([&] {
        MeshPosition& position = *MeshPosition::current();
        WatchedPartitioner watched(position);
        const Tensor sharded = in_sharding(position, x, over_axis_0(dim));
        watched.unread.add(sharded);
        const Tensor result = function.call(sharded);
        if (position.number() == 0) num_read = watched.unread.num_read();
        found[static_cast<std::size_t>(position.number())] = result.to_doubles();
      });
      EXPECT_TRUE(num_read == 0 || function.reads);
      any_read = any_read || num_read > 0;
      for (const std::vector<double>& of_position : found) {
        testing::expect_near(of_position, expected, 1e-12);
      }
    }
    EXPECT_EQ(any_read, function.reads) << function.name;
  }
}

/// Applies each kind of update to a variable of float64 [4, 6], and returns its values after each
/// update. Each step passes its arguments through `part_of`, which may shard them.
std::vector<std::vector<double>> updated(Strategy& strategy,
                                         const std::function<Tensor(const Tensor& x)>& part_of) {
  const Tensor x = gradient_check::random_tensor({4, 6}, 3, 0.5, 1.5);
  const Tensor rows = Tensor::from<std::int64_t>({4}, {2, 0, 2, 3});
  const auto slices = [&] { return IndexedSlices{part_of(x), part_of(rows), {4, 6}}; };
  const auto scope = strategy.scope();
  Variable w(gradient_check::random_tensor({4, 6}, 4, 0.5, 1.5), {.name = "w"});
  const std::vector<Variable> variables{w};
  Sgd momentum(variables, {.learning_rate = 0.1, .momentum = 0.9});
  Adam clipped(variables, {.clipping = {.global_clipnorm = 0.5}});
  Lamb lamb(variables);
  const std::function<void()> updates[] = {
      [&] { w.assign_add(part_of(x)); },
      [&] { w.assign_sub(part_of(x * 0.25)); },
      [&] { w.assign_add(2.0); },
      [&] { w.scatter_add(slices()); },
      [&] { w.scatter_sub(slices()); },
      [&] { w.scatter_mul(slices()); },
      [&] { w.scatter_div(slices()); },
      [&] { w.scatter_min(slices()); },
      [&] { w.scatter_max(slices()); },
      [&] { w.scatter_update(slices()); },
      [&] { momentum.apply_gradients(std::vector<Gradient>{part_of(x)}); },
      [&] { momentum.apply_gradients(std::vector<Gradient>{slices()}); },
      [&] { clipped.apply_gradients(std::vector<Gradient>{part_of(x)}); },
      [&] { lamb.apply_gradients(std::vector<Gradient>{part_of(x)}); },
      [&] { w.assign(w.value() * part_of(x)); },
      [&] { w.assign(part_of(x)); },
  };
  std::vector<std::vector<double>> values;
  for (const auto& update : updates) {
    strategy.run(update);
    values.push_back(w.value().to_doubles());
  }
  return values;
}

TEST(MeshPartitioner, EveryVariableLayoutAcceptsUpdatesInEveryLayout) {
  OneDeviceStrategy one("cpu:0");
  const auto expected = updated(one, [](const Tensor& x) { return x; });
  for (const Layout& layout :
       {Layout{"", ""}, Layout{"a", ""}, Layout{"", "a"}, Layout{"d", "a"}, Layout{"a", "d"}}) {
    for (const int dim : {-1, 0, 1}) {
      MeshStrategy strategy(on_mesh({{"a", 2}, {"d", 2}}, {{"^w$", layout}}));
      std::vector<UnreadTensors> given(4);  // one for each mesh position
      const auto found = updated(strategy, [&](const Tensor& x) {
        MeshPosition& position = *MeshPosition::current();
        const Tensor part = in_sharding(position, x, over_axis_0(std::min(dim, x.rank() - 1)));
        given[static_cast<std::size_t>(position.number())].add(part);
        return part;
      });
      EXPECT_EQ(given[0].num_read(), 0) << layout.to_string() << ", dimension " << dim;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        SCOPED_TRACE(concat(layout.to_string(), ", dimension ", dim, ", update ", i));
        testing::expect_near(found[i], expected[i], 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace tutti::mesh_tests
