// Tests conditions for which a plugin would abort the process: they are detected before. Each case
// is a process of its own.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/pjrt_client.h"
#include "tests/xla/xla_test_support.h"
#include "tutti/core/executor.h"

namespace tutti::internal {
namespace {

/// Returns a program that adds the numbers of `num_replicas` replicas.
std::string sum_program(int num_replicas) {
  std::string ids;
  for (int r = 0; r < num_replicas; ++r) ids += concat(r > 0 ? ", " : "", r);
  return concat(
      "module @sum { func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
      "  %r = \"stablehlo.all_reduce\"(%a) <{replica_groups = dense<[[",
      ids, "]]> : tensor<1x", num_replicas,
      "xi64>}> ({\n"
      "  ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"
      "    %s = stablehlo.add %x, %y : tensor<f32>\n"
      "    stablehlo.return %s : tensor<f32>\n"
      "  }) : (tensor<4xf32>) -> tensor<4xf32>\n"
      "  return %r : tensor<4xf32>\n} }\n");
}

std::vector<int> first_devices(int count) {
  std::vector<int> devices;
  for (int i = 0; i < count; ++i) devices.push_back(i);
  return devices;
}

/// Returns four numbers on each of the first devices.
std::vector<PjrtExecutable::Buffers> ones_on_each(int count) {
  const std::vector<float> ones(4, 1.0f);
  std::vector<PjrtExecutable::Buffers> buffers;
  for (int device = 0; device < count; ++device)
    buffers.push_back({PjrtClient::get().upload(ones.data(), {4}, DType::kFloat32, device)});
  return buffers;
}

/// Ends this process; the exit code is 3 after a tutti::Error, whose text goes to standard error.
template <class Action>
[[noreturn]] void exit_with(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(3);
  }
  std::_Exit(0);
}

class XlaAborts : public ::testing::Test {
 protected:
  XlaAborts() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

#define EXPECT_REFUSED(words, ...) \
  EXPECT_EXIT(exit_with([&] { __VA_ARGS__; }), ::testing::ExitedWithCode(3), words)
#define EXPECT_WORKS(...) \
  EXPECT_EXIT(exit_with([&] { __VA_ARGS__; }), ::testing::ExitedWithCode(0), "")

TEST_F(XlaAborts, CompileOptionsNameReplicasAndPartitions) {
  const std::string options = compile_options({0, 1}, false);
  EXPECT_EQ(options.substr(0, 1), "\x1a");
  EXPECT_EQ(options.substr(2, 4), "\x20\x02\x28\x01");
  EXPECT_REFUSED("no devices", PjrtClient::get().compile(sum_program(1), {}));
  EXPECT_REFUSED("devices .0, 0. of 8; expected each once",
                 PjrtClient::get().compile(sum_program(2), {0, 0}));
  EXPECT_REFUSED("devices .0, 99. of 8", PjrtClient::get().compile(sum_program(2), {0, 99}));
}

TEST_F(XlaAborts, NumbersOfDevicesAreCheckedFirst) {
  for (const char* count : {"-1", "0", "33", "2x"}) {
    EXPECT_REFUSED("TUTTI_XLA_CPU_DEVICES: expected a number from 1 to 32",
                   setenv("TUTTI_XLA_CPU_DEVICES", count, 1);
                   MirroredStrategy("xla:0"))
        << count;
  }
}

TEST_F(XlaAborts, FlagsThatThePluginDoesNotKnowAreAnErrorWithItsWords) {
  const auto open_with = [](const char* flags) {
    setenv("XLA_FLAGS", flags, 1);
    TpuStrategy strategy;
    strategy.run([] { return square(Tensor::ones({2})); });
  };
  EXPECT_REFUSED("Unknown flag in XLA_FLAGS: --xla_no_such_flag=1.*try without them",
                 open_with("--xla_no_such_flag=1"));
  EXPECT_REFUSED("XLA_FLAGS: the PJRT plugin would end.*banana",
                 open_with("--xla_cpu_enable_fast_math=banana"));
  EXPECT_REFUSED("Could not open file", open_with("no_such_file"));
  EXPECT_WORKS(open_with("--xla_cpu_enable_fast_math=false"));
}

TEST_F(XlaAborts, EveryReplicaIsLaunchedWithEveryArgument) {
  EXPECT_REFUSED("arguments of 1 replicas of 2",
                 PjrtClient::get().compile(sum_program(2), {0, 1})->run(ones_on_each(1)));
  EXPECT_REFUSED("0 arguments of replica 1, 1 of replica 0", {
    auto arguments = ones_on_each(2);
    arguments[1].clear();
    PjrtClient::get().compile(sum_program(2), {0, 1})->run(arguments);
  });
}

// A step in which only some replicas take part in a sum never reaches the plugin.
TEST_F(XlaAborts, AReplicaThatFailsOrLeavesASumOutLeavesNoOtherWaiting) {
  EXPECT_WORKS({
    MirroredStrategy strategy("xla:0-3");
    const auto step = [](bool throws, bool skips) {
      ReplicaContext& context = ReplicaContext::current();
      if (throws && context.replica_id() == 2) fail(ErrorCode::kDataLoss, "planted");
      const Tensor one = Tensor::ones({2});
      return skips && context.replica_id() == 1 ? one + one
                                                : context.all_reduce(ReduceOp::kSum, one);
    };
    const auto code_of = [&](bool throws, bool skips) {
      try {
        strategy.run([&] { return step(throws, skips); });
      } catch (const Error& error) {
        return error.code();
      }
      return ErrorCode::kOk;
    };
    const std::vector<ErrorCode> codes = {code_of(true, false), code_of(false, true),
                                          code_of(false, false)};
    const std::vector<ErrorCode> expected = {ErrorCode::kDataLoss, ErrorCode::kInvalidArgument,
                                             ErrorCode::kOk};
    if (codes != expected) std::_Exit(1);
  });
}

// Without a limit, about 36 concurrent launches of four replicas on two cores wait for each other
// until the plugin aborts the process.
TEST_F(XlaAborts, ManyThreadsThatLaunchSumsWaitTheirTurn) {
  EXPECT_WORKS({
    const auto program = PjrtClient::get().compile(sum_program(4), first_devices(4));
    std::vector<std::unique_ptr<Thread>> threads;
    for (int t = 0; t < 64; ++t) {
      threads.push_back(Executor::system().start(concat("launcher ", t), [&] {
        const auto arguments = ones_on_each(4);
        for (int i = 0; i < 20; ++i) {
          float sum[4] = {};
          program->run(arguments)[3][0]->to_host(sum, sizeof(sum));
          if (sum[0] != 4.0f) std::_Exit(1);
        }
      }));
    }
    for (const auto& thread : threads) thread->join();
  });
}

// The number of bytes is equal, so the plugin would take them for floats.
TEST_F(XlaAborts, ArgumentsOfAnotherTypeAreFoundBeforeTheyAreUsed) {
  EXPECT_REFUSED("a step of XLA: expected float32 of shape .4.*got a buffer of type 4", {
    const std::vector<std::int32_t> numbers(4, 1);
    const auto buffer = PjrtClient::get().upload(numbers.data(), {4}, DType::kInt32, 0);
    buffer->check({4}, DType::kFloat32, "a step of XLA");
  });
}

}  // namespace
}  // namespace tutti::internal
