// Reductions on other machines: without NCCL, without access between GPUs, one GPU in parts.
// SPDX-License-Identifier: Apache-2.0
//
// What a process has found of its machine stays, so each of these runs in a process of its own.
#include <cstdio>

#include "tests/gpu_ops/gpu_ops_helpers.h"
#include "tutti/strategy/strategies.h"

namespace tutti {
namespace {

using gpu_ops_tests::Environment;
using gpu_ops_tests::gpu;
using gpu_ops_tests::gpus;
using gpu_ops_tests::make_on;
using gpu_ops_tests::powers_of_ten;
using ::testing::ExitedWithCode;

/// Ends this process: with 0 if `body` found all as it must be, with its complaint otherwise.
[[noreturn]] void end_with(const std::function<bool()>& body) {
  bool good = false;
  try {
    good = body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  std::_Exit(good ? 0 : 1);
}

bool is_chosen(const std::string& name) {
  return build_cross_device_ops({}, {2, 0, gpus(2)})->name() == name;
}

/// Whether every operation but nccl and mpi sums and takes means on these devices.
bool all_sum(const std::vector<Device>& devices) {
  for (const std::string& name : registered_cross_device_ops()) {
    if (name == "nccl" || name == "mpi") continue;
    const auto ops = make_on(name, devices);
    const double sum = static_cast<double>(devices.size() * (devices.size() + 1)) / 2;
    const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(devices));
    const auto means = ops->all_reduce(ReduceOp::kMean, powers_of_ten(devices));
    const auto all = ops->all_gather(powers_of_ten(devices));
    for (std::size_t r = 0; r < devices.size(); ++r) {
      if (sums[r].to_doubles() != std::vector<double>{sum, 10 * sum, 100 * sum}) return false;
      if (means[r].to_doubles()[0] != sum / static_cast<double>(devices.size())) return false;
      if (all[r].to_doubles()[4] != 20.0) return false;
    }
  }
  return true;
}

class OtherMachines : public ::testing::Test {
 protected:
  OtherMachines() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(OtherMachines, PeerMemoryIsReadWithoutNccl) {
  const Environment library("TUTTI_NCCL_LIBRARY", "/nowhere/libnccl.so.2");
  EXPECT_EXIT(end_with([] { return is_chosen("hierarchical_copy"); }), ExitedWithCode(0),
              "hierarchical_copy, because the GPUs read each other's memory; nccl: cannot open "
              "/nowhere/libnccl.so.2");
}

TEST_F(OtherMachines, WithoutAccessBetweenGpusCopiesAreMadeFirst) {
  const Environment library("TUTTI_NCCL_LIBRARY", "/nowhere/libnccl.so.2");
  const Environment peers("TUTTI_SIMULATED_GPU_FAULTS", "peers:none");
  EXPECT_EXIT(end_with([] { return is_chosen("canonical") && all_sum(gpus(3)); }),
              ExitedWithCode(0), "canonical, because not all GPUs read each other's memory");
}

TEST_F(OtherMachines, OneGpuInPartsIsCanonicalAndRefusesNccl) {
  const Environment one("TUTTI_SIMULATED_GPUS", "1");
  const Environment parts("TUTTI_VIRTUAL_GPUS", "3");
  EXPECT_EXIT(end_with([] {
                MirroredStrategy strategy;  // all logical devices
                const auto sums = strategy.run([&] {
                  const ReplicaContext& replica = ReplicaContext::current();
                  const Tensor own =
                      Tensor::scalar(replica.replica_id() + 1, DType::kFloat32, replica.device());
                  return ReplicaContext::current().all_reduce(ReduceOp::kSum, own);
                });
                return sums.size() == 3 && sums[2].device() == gpu(2) && sums[2].item() == 6.0f &&
                       all_sum(gpus(3));
              }),
              ExitedWithCode(0), "canonical, because replicas 0 and 1 share GPU 0");
  EXPECT_EXIT(end_with([] {
                make_on("nccl", gpus(2));
                return true;
              }),
              ExitedWithCode(1), "replicas 0 .gpu:0. and 1 .gpu:1. are both on GPU 0");
}

}  // namespace
}  // namespace tutti
