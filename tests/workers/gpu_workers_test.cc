// Tests worker processes with simulated GPUs: sums on the hosts, and a crash followed by a restart.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "tensor/gpu_device.h"
#include "tests/workers/worker_processes.h"
#include "tutti/communicator.h"

namespace tutti::worker_tests::gpu_workers_test {

MultiProcessOptions with_gpus(int workers) {
  return {.num_workers = workers,
          .environment = {{"TUTTI_CUDA_MODULE", TUTTI_SIMULATED_MODULE},
                          {"TUTTI_NCCL_LIBRARY", TUTTI_SIMULATED_MODULE},
                          {"TUTTI_SIMULATED_GPUS", "2"}},
          .auto_restart = true};
}

// Runs six SGD steps with a gradient of 0.25 per replica, and counts replicas. If "dies" is true,
// worker 1 exits in its first run.
TUTTI_PROCESS_FUNCTION(gpu_workers_with_recovery) {
  const ScopedWorkers strategy({.local = {.devices = "gpu:0-1"}});
  Variable w(Tensor::from<float>({2}, {1, 2}), {.name = "w"});
  Variable count = count_of_replicas("count");
  Sgd sgd(std::vector<Variable>{w}, {.learning_rate = 0.5});
  std::int64_t step = 0;
  const Checkpoint state = recoverable(Checkpoint({w, count}), *strategy, step);
  Recovery recovery(*strategy, state);
  recovery.run([&] {
    while (step < 6) {
      const bool dies = arguments.at("dies").as_bool() && step == 3 && this_process().index == 1 &&
                        testing::num_restarts() == 0;
      strategy->run([&] {
        GradientTape tape;
        const Device device = ReplicaContext::current().device();
        count.assign_add(Tensor::scalar(1, DType::kFloat32, device));
        const Tensor loss = reduce_sum(w.value() * 0.25f);
        if (dies) ::_exit(7);
        sgd.minimize(tape, loss);
      });
      recovery.commit(++step);
    }
  });
  return Json::object()
      .set("reduction", std::string(strategy->reduction_name()))
      .set("w", w.value().to_doubles()[1])
      .set("count", count.value().item_double());
}

TEST(GpuWorkers, TrainThroughHostMemoryAndRecoverFromCrash) {
  for (const bool dies : {false, true}) {
    const auto result =
        run_processes("gpu_workers_with_recovery", with_gpus(2), Json::object().set("dies", dies));
    ASSERT_EQ(result.return_values.size(), 2u);
    for (const Json& each : result.return_values) {
      EXPECT_EQ(each.at("w").as_double(), 2.0 - 6 * 0.5 * 4 * 0.25);
      // Six steps of four replicas, each counted once.
      EXPECT_EQ(each.at("count").as_double(), 24.0);
      EXPECT_EQ(each.at("reduction").as_string(), "canonical");
    }
    // Without CUDA_VISIBLE_DEVICES, all processes see the same GPUs.
    EXPECT_TRUE(testing::has_line(result.output, "workers 0 and 1 both use the GPU"));
  }
}

// Sums values in GPU memory over a communicator; returns the error of the call that failed, if any.
TUTTI_PROCESS_FUNCTION(ranks_on_gpus) {
  const auto ranks = communicator_from_environment();
  const int index = arguments.at("shared").as_bool() ? 0 : ranks->rank();
  const Device device{DeviceType::kGpu, index};
  MutableTensor numbers({1000}, DType::kFloat32, device);
  GpuDevice& gpu = GpuDevice::of(device);
  gpu.fill(numbers, ranks->rank() + 1.0);
  const GpuStream stream{index, gpu.with_context([](DeviceContext& context) {
                           return context.native_stream(StreamId::kCompute);
                         })};
  const Elements all(static_cast<std::byte*>(numbers.address()), 1000, DType::kFloat32);
  Json result = error_as_json([&] {
    for (int call = 0; call < 3; ++call) {
      if (arguments.at("dies").as_bool() && call == 2 && ranks->rank() == 1) ::_exit(7);
      ranks->all_reduce(ReduceOp::kSum, all, {.name = "numbers", .gpu = stream});
    }
  });
  return result.set("last", numbers.freeze().to_doubles().back());
}

TEST(GpuWorkers, GpuCommunicatorsFallBackToHostMemory) {
  for (const bool shared : {true, false}) {
    MultiProcessOptions options = with_gpus(2);
    options.auto_restart = false;
    for (auto& [name, value] : options.environment) {
      if (!shared && name == "TUTTI_NCCL_LIBRARY") value = "/no/such/nccl.so";
    }
    const auto result = run_processes("ranks_on_gpus", options,
                                      Json::object().set("dies", false).set("shared", shared));
    ASSERT_EQ(result.return_values.size(), 2u);
    for (const Json& each : result.return_values) {
      EXPECT_EQ(each.at("last").as_double(), 12.0);  // 1 + 2 = 3, doubled twice
    }
    EXPECT_TRUE(
        testing::has_line(result.output, "calls on the GPUs of 2 ranks use host memory, because"));
    EXPECT_TRUE(testing::has_line(
        result.output, shared ? "ranks 0 and 1 both use the GPU" : "rank 0 has no NCCL"));
  }
}

TEST(GpuWorkers, FailedGpuCallErrorNamesCrashedProcess) {
  MultiProcessOptions options = with_gpus(2);
  options.auto_restart = false;
  MultiProcessRunner runner("ranks_on_gpus", options,
                            Json::object().set("dies", true).set("shared", true));
  runner.start();
  EXPECT_THROW(runner.join(), Error);
  ASSERT_EQ(runner.result().return_values.size(), 1u);
  const Json& left = runner.result().return_values[0];
  // Either the control plane or the connection detects the crash first.
  EXPECT_THAT(left.at("message").as_string(),
              ::testing::AnyOf(::testing::AllOf(HasSubstr("worker 1"), HasSubstr("died")),
                               ::testing::AllOf(HasSubstr("rank 1"), HasSubstr("disconnected"))));
  EXPECT_EQ(left.at("last").as_double(), 6.0);  // unchanged by the failed call
}

}  // namespace tutti::worker_tests::gpu_workers_test
