// Helpers for tests of tutti/libtorch.h: a network, its batch, and test cases that run on every
// rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tutti/communicator.h"

namespace nn = torch::nn;
using Ranks = std::shared_ptr<tutti::Communicator>;

inline void expect_at(bool condition, const char* text, int line) {
  if (!condition) throw std::logic_error(tutti::concat("line ", line, ": expected ", text));
}
#define EXPECT(condition) expect_at(condition, #condition, __LINE__)

inline bool near(const torch::Tensor& a, const torch::Tensor& b) {
  return torch::allclose(a, b, 1e-5, 1e-6);
}

struct NetImpl : nn::Module {
  nn::Linear first{6, 8}, left{8, 3}, right{8, 3}, never{8, 3};
  NetImpl() {
    register_module("first", first);
    register_module("left", left);
    register_module("right", right);
    register_module("never", never);
  }
  torch::Tensor forward(const torch::Tensor& x, bool goes_right = false) {
    const torch::Tensor h = torch::relu(first(x));
    return goes_right ? right(h) : left(h);
  }
};
TORCH_MODULE(Net);

// Returns the global batch, on which a single process trains.
inline const torch::Tensor& whole_batch() {
  static const torch::Tensor batch = torch::linspace(-1, 1, 48).reshape({8, 6}).sin();
  return batch;
}
inline torch::Tensor loss_of(const torch::Tensor& outputs) {
  return (outputs - 0.3).square().mean();
}

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const tutti::Error& error) {
    return error.message();
  }
  return "";
}

// Name of a test case, and the function that each rank runs.
using Case = std::pair<const char*, void (*)(const Ranks&)>;
#define CASE(name) \
  { #name, name }

/// Runs the cases that `choose` returns for the ranks of this job, and prints "rank R: ok NAME" for
/// each. Returns the exit code of the program.
inline int run_cases(const char* program,
                     const std::function<std::vector<Case>(const Ranks&)>& choose) try {
  const Ranks ranks = tutti::communicator_from_environment();
  for (const auto& [name, run] : choose(ranks)) {
    try {
      run(ranks);
    } catch (const std::exception& error) {
      throw std::logic_error(tutti::concat(name, ": ", error.what()));
    }
    std::printf("rank %d: ok %s\n", ranks->rank(), name);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s: %s\n", program, error.what());
  return 1;
}
