// Compares training with tutti/libtorch.h in two processes with training in one process.
// SPDX-License-Identifier: Apache-2.0
//
//     tutti run -n 2 -- libtorch_test       prints "rank R: ok NAME" for each case
#include <torch/torch.h>

#include <chrono>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases.h"
#include "tutti/communicator.h"
#include "tutti/core/clock.h"
#include "tutti/libtorch.h"

namespace {

using tutti::torch::DistributedDataParallel;
using tutti::torch::DistributedSampler;
using tutti::torch::ShardedOptimizer;

// Returns a rank's half of the global batch.
torch::Tensor half(const tutti::Communicator& ranks) {
  return whole_batch().slice(0, 4 * ranks.rank(), 4 * ranks.rank() + 4);
}

// Returns a network with the same weights on all ranks; own_net()'s weights differ by rank.
Net reference() {
  torch::manual_seed(1);
  return Net();
}
Net own_net(const Ranks& ranks) {
  torch::manual_seed(1 + static_cast<std::uint64_t>(ranks->rank()));
  return Net();
}

void gradients_are_averaged_in_buckets(const Ranks& ranks) {
  Net one = reference();
  DistributedDataParallel model(own_net(ranks), ranks);
  EXPECT(model.num_buckets() == 1);
  // in the second step, gradients are views and contain zeros
  for (int step = 0; step < 2; ++step) {
    one->zero_grad();
    model->zero_grad();
    loss_of(one(whole_batch())).backward();
    loss_of(model(half(*ranks))).backward();
    EXPECT(near(model->first->weight, one->first->weight));
    EXPECT(near(model->first->weight.grad(), one->first->weight.grad()));
    EXPECT(near(model->left->bias.grad(), one->left->bias.grad()));
  }
  // Weight and bias are in one bucket, in which later parameters precede earlier ones. Each
  // gradient begins at a multiple of 64 bytes.
  const auto* weight = model->first->weight.grad().data_ptr<float>();
  EXPECT(weight - model->first->bias.grad().data_ptr<float>() == 16);
}

void buckets_are_reduced_during_backward(const Ranks& ranks) {
  tutti::torch::DistributedDataParallelOptions options;
  options.bucket_bytes = 1;
  DistributedDataParallel model(nn::Sequential(nn::Linear(6, 5), nn::Linear(5, 2)), ranks, options);
  EXPECT(model.num_buckets() == 4);
  const std::uint64_t before = ranks->progress().finished;
  bool was_reduced = false;
  // This hook runs before the first layer's gradient is ready, and waits until the second layer's
  // gradients are reduced.
  model->parameters()[0].register_hook([&](torch::Tensor gradient) {
    for (int i = 0; i < 60'000 && !was_reduced; ++i) {
      was_reduced = ranks->progress().finished >= before + 2;
      tutti::Clock::system().sleep_for(std::chrono::milliseconds(1));
    }
    return gradient;
  });
  loss_of(model(half(*ranks))).backward();
  EXPECT(was_reduced);
  EXPECT(ranks->progress().finished == before + 4);
}

void no_sync_accumulates_gradients(const Ranks& ranks) {
  Net one = reference();
  DistributedDataParallel model(own_net(ranks), ranks);
  loss_of(one(whole_batch())).backward();
  loss_of(one(2 * whole_batch())).backward();
  const std::uint64_t before = ranks->progress().finished;
  {
    const auto guard = model.no_sync();
    loss_of(model(half(*ranks))).backward();
    EXPECT(ranks->progress().finished == before);
    EXPECT(!near(model->first->weight.grad(), one->first->weight.grad()));
  }
  loss_of(model(2 * half(*ranks))).backward();
  EXPECT(near(model->first->weight.grad(), one->first->weight.grad()));
  EXPECT(ranks->progress().finished == before + 1);
}

void unused_parameters_need_no_option(const Ranks& ranks) {
  DistributedDataParallel model(own_net(ranks), ranks);
  Net one = reference();
  loss_of(one(whole_batch().slice(0, 0, 4), false)).backward();
  const torch::Tensor left = one->left->weight.grad() / 2;
  loss_of(one(whole_batch().slice(0, 4, 8), true)).backward();
  loss_of(model(half(*ranks), ranks->rank() == 1)).backward();
  EXPECT(near(model->left->weight.grad(), left));  // only rank 0 has this gradient
  EXPECT(near(model->right->weight.grad(), one->right->weight.grad() / 2));
  EXPECT(near(model->first->weight.grad(), one->first->weight.grad() / 2));
  EXPECT(!model->never->weight.grad().defined());  // as in one process, `never` has no gradient
}

void buffers_match_rank_0(const Ranks& ranks) {
  DistributedDataParallel model(nn::Sequential(nn::BatchNorm1d(6), nn::Linear(6, 3)), ranks);
  const auto norm = model.module()[0]->as<nn::BatchNorm1d>();
  const torch::Tensor mean_of_0 = 0.1 * whole_batch().slice(0, 0, 4).mean(0);
  loss_of(model(half(*ranks))).backward();
  EXPECT(near(norm->running_mean, mean_of_0) == (ranks->rank() == 0));
  model->eval();
  model(half(*ranks));
  EXPECT(near(norm->running_mean, mean_of_0) == (ranks->rank() == 0));
  model.broadcast_buffers();
  EXPECT(near(norm->running_mean, mean_of_0));
  model->train();
  loss_of(model(half(*ranks))).backward();
  loss_of(model(half(*ranks))).backward();
  model.broadcast_buffers();
  EXPECT(norm->num_batches_tracked.item<std::int64_t>() == 3);
}

void mismatched_modules_are_rejected(const Ranks& ranks) {
  const std::string unlike =
      error_of([&] { DistributedDataParallel(nn::Linear(4, ranks->rank() == 0 ? 3 : 2), ranks); });
  EXPECT(unlike.find("module of rank 1 differs from rank 0's") != std::string::npos);
  EXPECT(error_of([&] { DistributedDataParallel(nn::ReLU(), ranks); }).find("without any") !=
         std::string::npos);
}

void backward_recovers_after_exception(const Ranks& ranks) {
  tutti::torch::DistributedDataParallelOptions options;
  options.bucket_bytes = 1;
  DistributedDataParallel model(nn::Sequential(nn::Linear(6, 5), nn::Linear(5, 2)), ranks, options);
  bool throws = true;
  model->parameters()[0].register_hook([&](torch::Tensor gradient) {
    if (throws) throw std::runtime_error("injected by the test");
    return gradient;
  });
  bool has_thrown = false;
  try {
    loss_of(model(half(*ranks))).backward();
  } catch (const std::exception&) {
    has_thrown = true;
  }
  EXPECT(has_thrown);
  throws = false;
  model->zero_grad();
  torch::NoGradGuard no_grad;
  nn::Sequential one(nn::Linear(6, 5), nn::Linear(5, 2));
  for (std::size_t i = 0; i < 4; ++i) one->parameters()[i].copy_(model->parameters()[i]);
  torch::AutoGradMode with_grad(true);
  loss_of(one->forward(whole_batch())).backward();
  loss_of(model(half(*ranks))).backward();
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT(near(model->parameters()[i].grad(), one->parameters()[i].grad()));
  }
}

// Expects the parameters that Adam computes in one process from the same gradients.
void sharded_optimizer_matches_adam(const Ranks& ranks) {
  std::vector<torch::Tensor> kept;
  {
    DistributedDataParallel model(own_net(ranks), ranks);
    Net one = reference();
    ShardedOptimizer<torch::optim::Adam> sharded(model->parameters(), ranks,
                                                 torch::optim::AdamOptions(0.05));
    torch::optim::Adam adam(one->parameters(), torch::optim::AdamOptions(0.05));
    for (int step = 0; step < 3; ++step) {
      sharded.zero_grad(step == 1);
      loss_of(model(half(*ranks))).backward();
      for (std::size_t i = 0; i < one->parameters().size(); ++i) {
        const torch::Tensor gradient = model->parameters()[i].grad();
        one->parameters()[i].mutable_grad() = gradient.defined() ? gradient.clone() : gradient;
      }
      sharded.step();
      adam.step();
      for (std::size_t i = 0; i < one->parameters().size(); ++i) {
        EXPECT(model->parameters()[i].equal(one->parameters()[i]));
      }
    }
    std::vector<std::int64_t> states = {static_cast<std::int64_t>(sharded.local().state().size())};
    EXPECT(states[0] > 0 && states[0] < 4);
    ranks->all_reduce(tutti::ReduceOp::kSum, std::span(states));
    EXPECT(states[0] == 4);  // only `first` and `left` have gradients
    kept = {model->first->weight, model->first->weight.grad()};
  }
  EXPECT(kept[0].isfinite().all().item<bool>() && kept[1].isfinite().all().item<bool>());
}

std::vector<std::size_t> epoch_of(DistributedSampler& sampler) {
  std::vector<std::size_t> found;
  sampler.reset();
  while (const auto batch = sampler.next(3))
    found.insert(found.end(), batch->begin(), batch->end());
  return found;
}

void sampler_partitions_examples(const Ranks& ranks) {
  const auto rank = static_cast<std::size_t>(ranks->rank());
  DistributedSampler in_order(7, *ranks, {.shuffle = false});
  EXPECT((epoch_of(in_order) == (rank == 0 ? std::vector<std::size_t>{0, 2, 4, 6}
                                           : std::vector<std::size_t>{1, 3, 5, 0})));
  DistributedSampler shorter(7, *ranks, {.shuffle = false, .drop_last = true});
  EXPECT((epoch_of(shorter) == std::vector<std::size_t>{rank, rank + 2, rank + 4}));

  // Printed by PyTorch: torch.manual_seed(0); torch.randperm(10).
  const std::vector<std::size_t> published = {4, 1, 7, 5, 3, 9, 0, 8, 6, 2};
  DistributedSampler shuffled(10, *ranks);
  const std::vector<std::size_t> first = epoch_of(shuffled);
  for (std::size_t i = 0; i < 5; ++i) EXPECT(first[i] == published[2 * i + rank]);
  const std::vector<std::size_t> second = epoch_of(shuffled);
  EXPECT(first != second && std::set<std::size_t>(second.begin(), second.end()).size() == 5);
  shuffled.set_epoch(0);
  EXPECT(epoch_of(shuffled) == first);
  shuffled.set_epoch(1);
  shuffled.reset();
  shuffled.next(2);
  torch::serialize::OutputArchive out;
  shuffled.save(out);
  const std::string path = tutti::concat("sampler-", rank);
  out.save_to(path);
  torch::serialize::InputArchive in;
  in.load_from(path);
  DistributedSampler restored(10, *ranks);
  restored.load(in);
  EXPECT(*restored.next(9) == std::vector<std::size_t>(second.begin() + 2, second.end()));
}

}  // namespace

int main() {
  return run_cases("libtorch_test", [](const Ranks& ranks) {
    if (ranks->size() != 2) throw std::logic_error("expected two processes");
    return std::vector<Case>{CASE(gradients_are_averaged_in_buckets),
                             CASE(buckets_are_reduced_during_backward),
                             CASE(no_sync_accumulates_gradients),
                             CASE(unused_parameters_need_no_option),
                             CASE(buffers_match_rank_0),
                             CASE(mismatched_modules_are_rejected),
                             CASE(backward_recovers_after_exception),
                             CASE(sharded_optimizer_matches_adam),
                             CASE(sampler_partitions_examples)};
  });
}
