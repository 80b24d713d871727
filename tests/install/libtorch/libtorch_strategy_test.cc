// Compares training with one module per replica, in one or several processes, with training of a
// single module.
// SPDX-License-Identifier: Apache-2.0
//
//     libtorch_strategy_test cpu:0-1                        prints "rank R: ok NAME" for each case
//     tutti run -n 2 -- libtorch_strategy_test cpu:0 [CASE_THAT_ENDS_THE_JOB]
#include <torch/torch.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cases.h"
#include "tutti/libtorch.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"
#include "tutti/strategy/strategies.h"

namespace {

using tutti::torch::Replicated;
using tutti::torch::ReplicatedOptimizer;
using tutti::torch::to_torch;
using tutti::torch::to_tutti;

std::string devices_of_a_process;

std::unique_ptr<tutti::Strategy> make_strategy(const Ranks& ranks) {
  tutti::LocalStrategyOptions local;
  local.devices = devices_of_a_process;
  if (ranks->size() == 1) return std::make_unique<tutti::MirroredStrategy>(local);
  std::vector<int> all(static_cast<std::size_t>(ranks->size()));
  std::iota(all.begin(), all.end(), 0);
  return std::make_unique<tutti::MultiWorkerMirroredStrategy>(ranks->group(all), local);
}

int replica() { return tutti::ReplicaContext::current().replica_id(); }
bool is_last(const tutti::Strategy& strategy) {
  return replica() == strategy.num_replicas_in_sync() - 1;
}

// Returns this replica's rows of the global batch. Each replica has the same number of rows.
torch::Tensor own_part() {
  return whole_batch().chunk(tutti::ReplicaContext::current().num_replicas_in_sync())[replica()];
}

// Creates a network with different initial weights at each call.
struct NextNet {
  std::uint64_t seed = 1;
  Net operator()() {
    torch::manual_seed(seed++);
    return Net();
  }
};
Net reference() { return NextNet()(); }

// Throws unless `value` is bit-identical on all replicas of all processes.
void expect_equal_on_all(const torch::Tensor& value) {
  const auto all =
      tutti::ReplicaContext::current().all_gather(to_tutti(value.detach().flatten()), 0);
  const torch::Tensor rows = to_torch(all).view({-1, value.numel()}).view(torch::kInt32);
  EXPECT(rows.equal(rows.slice(0, 0, 1).expand_as(rows)));
}

void expect_like(const Net& own, const Net& one) {
  const auto parameters = own->parameters(), expected = one->parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT(near(parameters[i], expected[i]));
    expect_equal_on_all(parameters[i]);
  }
}

void replicas_match_single_device(const Ranks& ranks) {
  const auto strategy = make_strategy(ranks);
  Net one = reference();
  torch::optim::Adam adam(one->parameters(), 0.05);
  Replicated model(*strategy, NextNet());
  ReplicatedOptimizer<torch::optim::Adam> optimizer(model, 0.05);
  for (int step = 0; step < 4; ++step) {
    adam.zero_grad();
    const torch::Tensor expected = loss_of(one(whole_batch()));
    expected.backward();
    adam.step();
    const auto losses = strategy->run([&] {
      optimizer.zero_grad();
      const torch::Tensor loss = loss_of(model(own_part()));
      loss.backward();
      optimizer.step();
      return to_tutti(loss);
    });
    EXPECT(near(to_torch(strategy->reduce(tutti::ReduceOp::kMean, losses)), expected.detach()));
    strategy->run([&] { expect_like(model.module(), one); });
  }
}

// As in tf.distribute, losses are divided by the global batch size and gradients are summed. The
// replicas may have different numbers of rows.
void sum_reduction_matches_global_batch_loss(const Ranks& ranks) {
  const auto strategy = make_strategy(ranks);
  Net one = reference();
  torch::optim::SGD sgd(one->parameters(), 0.1);
  loss_of(one(whole_batch())).backward();
  sgd.step();
  Replicated model(*strategy, NextNet());
  ReplicatedOptimizer<torch::optim::SGD> optimizer(model, 0.1);
  strategy->run([&] {
    const std::int64_t last = strategy->num_replicas_in_sync() - 1;
    const torch::Tensor part = is_last(*strategy)
                                   ? whole_batch().slice(0, last)
                                   : whole_batch().slice(0, replica(), replica() + 1);
    const torch::Tensor outputs = model(part);
    ((outputs - 0.3).square().sum() / (3 * whole_batch().size(0))).backward();
    optimizer.step(tutti::ReduceOp::kSum);
    expect_like(model.module(), one);
  });
}

void unused_parameters_count_as_zero(const Ranks& ranks) {
  const auto strategy = make_strategy(ranks);
  const int count = strategy->num_replicas_in_sync();
  Net one = reference();
  loss_of(one(whole_batch().chunk(count).back(), true)).backward();
  const torch::Tensor right = one->right->weight.grad() / count;
  Replicated model(*strategy, NextNet());
  strategy->run([&] {
    loss_of(model(own_part(), is_last(*strategy))).backward();
    model.reduce_gradients();
    EXPECT(near(model->right->weight.grad(), right));  // only the last replica has this gradient
    expect_equal_on_all(model->left->weight.grad());
    EXPECT(!model->never->weight.grad().defined());  // as in one process, `never` has no gradient
  });
}

void clipping_uses_mean_gradient(const Ranks& ranks) {
  const auto strategy = make_strategy(ranks);
  Net one = reference();
  torch::optim::SGD sgd(one->parameters(), 0.1);
  loss_of(one(whole_batch())).backward();
  const double norm = nn::utils::clip_grad_norm_(one->parameters(), 0.01);
  sgd.step();
  Replicated model(*strategy, NextNet());
  ReplicatedOptimizer<torch::optim::SGD> optimizer(model, 0.1);
  strategy->run([&] {
    loss_of(model(own_part())).backward();
    model.reduce_gradients();
    EXPECT(std::abs(nn::utils::clip_grad_norm_(model->parameters(), 0.01) - norm) < 1e-5);
    optimizer->step();
    expect_like(model.module(), one);
  });
}

// Checks that gradients cleared in place keep their memory, on which the strategy's sums operate.
void gradients_keep_their_memory(const Ranks& ranks) {
  const auto strategy = make_strategy(ranks);
  Replicated model(*strategy, NextNet());
  strategy->run([&] {
    const void* place = nullptr;
    for (int step = 0; step < 3; ++step) {
      loss_of(model(own_part())).backward();
      EXPECT(!place || model->first->weight.grad().data_ptr() == place);
      model.reduce_gradients();
      place = model->first->weight.grad().data_ptr();
      model->zero_grad(/*set_to_none=*/false);
    }
    const auto* weight = model->left->weight.grad().data_ptr<float>();
    // gradients begin at multiples of 64 bytes
    EXPECT(model->left->bias.grad().data_ptr<float>() - weight == 32);
  });
}

void broadcast_copies_all_from_replica_0(const Ranks& ranks) {
  const auto strategy = make_strategy(ranks);
  Replicated model(*strategy, [] { return nn::Sequential(nn::BatchNorm1d(6), nn::Linear(6, 3)); });
  strategy->run([&] {
    loss_of(model(own_part())).backward();
    torch::NoGradGuard no_grad;
    if (replica() == 0) model->parameters().back().fill_(-0.0);
  });
  model.broadcast();
  strategy->run([&] {
    const auto norm = model.module()[0]->as<nn::BatchNorm1d>();
    const torch::Tensor part = whole_batch().chunk(strategy->num_replicas_in_sync())[0];
    EXPECT(near(norm->running_mean, 0.1 * part.mean(0)));
    EXPECT(norm->num_batches_tracked.item<std::int64_t>() == 1);
    // checks the sign bit, because -0 equals 0
    EXPECT(model->parameters().back().signbit().all().item<bool>());
  });
}

void mismatched_modules_are_rejected(const Ranks& ranks) {
  int made = ranks->rank();
  const auto strategy = make_strategy(ranks);
  const std::string unlike =
      error_of([&] { Replicated(*strategy, [&] { return nn::Linear(4, 2 + made++); }); });
  EXPECT(unlike.find("module of replica 1 differs from replica 0's") != std::string::npos);
}

void misplaced_calls_are_reported(const Ranks& ranks) {
  const auto strategy = make_strategy(ranks);
  Replicated model(*strategy, NextNet());
  // outside run(), a call uses the module of the first replica
  loss_of(model(whole_batch())).backward();
  EXPECT(error_of([&] {
           model.reduce_gradients();
         }).find("expected a call inside strategy.run()") != std::string::npos);
  tutti::OneDeviceStrategy other("cpu:0");
  const std::string error = error_of([&] { other.run([&] { model(whole_batch()); }); });
  EXPECT(error.find(tutti::concat("expected a replica of '", strategy->name(), "'")) !=
         std::string::npos);
  EXPECT(error_of([&] { Replicated(*strategy, [] { return nn::ReLU(); }); }).find("without any") !=
         std::string::npos);
}

void unsupported_reductions_are_rejected(const Ranks& ranks) {
  const auto strategy = make_strategy(ranks);
  Replicated model(*strategy, NextNet());
  const std::string error =
      error_of([&] { strategy->run([&] { model.reduce_gradients(tutti::ReduceOp::kMax); }); });
  EXPECT(error.find("expected MEAN or SUM, got MAX") != std::string::npos);
}

// All other replicas are waiting for the gradients of the replica that fails.
void exception_in_replica_ends_all_replicas(const Ranks& ranks) {
  const auto strategy = make_strategy(ranks);
  const int last = strategy->num_replicas_in_sync() - 1;
  Replicated model(*strategy, NextNet());
  std::string seen;
  try {
    strategy->run([&] {
      const torch::Tensor part = own_part();
      loss_of(model(is_last(*strategy) ? part.slice(1, 0, 5) : part)).backward();
      model.reduce_gradients();
    });
  } catch (const std::exception& error) {
    seen = error.what();
  }
  const bool is_here = ranks->rank() == ranks->size() - 1;
  EXPECT(seen.find("mat1 and mat2 shapes cannot be multiplied") != std::string::npos);
  EXPECT(is_here ? strategy->last_failure().replica == last
                 : seen.find(tutti::concat("replica ", last)) != std::string::npos);
}

void tensors_are_shared_without_copies(const Ranks&) {
  for (const tutti::DType dtype : tutti::kAllDTypes) {
    const tutti::Tensor ones = tutti::Tensor::ones({2, 3}, dtype);
    const torch::Tensor seen = to_torch(ones);
    EXPECT(seen.data_ptr() == ones.address() && seen.to(torch::kFloat64).sum().item<double>() == 6);
    EXPECT(to_tutti(seen).dtype() == dtype && to_tutti(seen).to_doubles() == ones.to_doubles());
  }
  torch::Tensor kept;
  {
    const tutti::Tensor gone = tutti::Tensor::full({1000}, 7.0);
    kept = to_torch(gone);
  }
  EXPECT(tutti::Tensor::zeros({1000}).address() != kept.data_ptr());
  EXPECT(kept.sum().item<float>() == 7000);
  const torch::Tensor images = torch::arange(24).reshape({1, 2, 3, 4});
  const torch::Tensor last = images.contiguous(torch::MemoryFormat::ChannelsLast);
  EXPECT(to_tutti(last).to_doubles() == to_tutti(images).to_doubles());
}

}  // namespace

// Test case that ends a job of several processes, and therefore runs as a separate job.
#define ENDING_CASE(name) CASE(name)

int main(int argc, char** argv) {
  devices_of_a_process = argc > 1 ? argv[1] : "cpu:0-1";
  const std::string ending = argc > 2 ? argv[2] : "";
  torch::set_num_threads(1);
  return run_cases("libtorch_strategy_test", [&](const Ranks&) {
    if (ending.empty()) {
      return std::vector<Case>{
          CASE(replicas_match_single_device),    CASE(sum_reduction_matches_global_batch_loss),
          CASE(unused_parameters_count_as_zero), CASE(clipping_uses_mean_gradient),
          CASE(gradients_keep_their_memory),     CASE(broadcast_copies_all_from_replica_0),
          CASE(misplaced_calls_are_reported),    CASE(tensors_are_shared_without_copies)};
    }
    std::vector<Case> cases = {ENDING_CASE(mismatched_modules_are_rejected),
                               ENDING_CASE(unsupported_reductions_are_rejected),
                               ENDING_CASE(exception_in_replica_ends_all_replicas)};
    std::erase_if(cases, [&](const Case& each) { return each.first != ending; });
    return cases;
  });
}
