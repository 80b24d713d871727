// Tests PJRT plugins: how they are found, their devices, programs stored in a folder, and checks
// that prevent calls on which a plugin would abort the process.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/pjrt_client.h"

#include "core/file.h"
#include "core/hash.h"
#include "tests/support/scopes.h"
#include "tests/xla/xla_test_support.h"
#include "tutti/core/executor.h"

namespace tutti::testing::pjrt_client_test {

using namespace internal;

std::string why_refused(const std::string& path) {
  try {
    const PjrtPlugin plugin(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    return error.message();
  }
  return "opened";
}

void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words)
    EXPECT_NE(text.find(word), std::string::npos) << word << ": " << text;
}

TEST(PjrtPlugin, ErrorDescribesUnusableLibrary) {
  expect_words(why_refused("/nowhere/plugin.so"), {"/nowhere/plugin.so", "cannot be opened"});
  expect_words(why_refused("libm.so.6"),
               {"is not a PJRT plugin", "GetPjrtApi", "TUTTI_PJRT_PLUGIN"});
  expect_words(why_refused(TUTTI_TEST_OTHER_PLUGIN), {"expected version 0.x", "1.0"});
  expect_words(why_refused(TUTTI_TEST_SHORT_PLUGIN), {"table of 608 bytes", "0.5 with 280"});
}

TEST(PjrtPlugin, IsFoundThroughEnvironment) {
  EXPECT_EQ(pjrt_plugin_candidates(), std::vector<std::string>{kPlugin});
  const test_scopes::EnvironmentScope none("TUTTI_PJRT_PLUGIN", std::nullopt);
  const test_scopes::EnvironmentScope library("TPU_LIBRARY_PATH", "/tpu/libtpu.so");
  const test_scopes::EnvironmentScope python("PYTHONPATH", "/one:/two");
  const std::vector<std::string> candidates = pjrt_plugin_candidates();
  ASSERT_GT(candidates.size(), 5u);
  EXPECT_EQ(candidates[0], "/tpu/libtpu.so");
  EXPECT_EQ(candidates[1], "/one/libtpu/libtpu.so");
  EXPECT_EQ(candidates[5], "/two/libtpu/libtpu.so");
}

TEST(PjrtClient, EveryTypeRoundTripsThroughBuffer) {
  const PjrtClient& client = PjrtClient::get();
  for (const DType dtype : kAllDTypes) {
    const Tensor sent = cast(Tensor::from<float>({2, 3}, {0, 1, 0, 1, 1, 0}), dtype);
    const auto buffer = client.upload(sent.bytes().data(), sent.shape(), dtype, 1);
    buffer->check(sent.shape(), dtype, "test");
    std::vector<std::byte> got(sent.num_bytes());
    buffer->to_host(got.data(), got.size());
    EXPECT_TRUE(std::ranges::equal(got, sent.bytes())) << to_string(dtype);
  }
}

TEST(PjrtClient, RejectsMismatchedBufferBeforeUse) {
  const PjrtClient& client = PjrtClient::get();
  const float number = 1.0f;
  const auto buffer = client.upload(&number, {1}, DType::kFloat32, 0);
  EXPECT_THROW(buffer->check({}, DType::kFloat32, "test"), Error);
  EXPECT_THROW(buffer->check({1}, DType::kInt32, "test"), Error);
}

TEST(PjrtClient, ErrorIncludesCompilerMessage) {
  try {
    (void)PjrtClient::get().compile("module @m { func.func nonsense }", {0});
    FAIL();
  } catch (const Error& error) {
    expect_words(error.message(), {"compiling a step with XLA", "error"});
  }
}

TEST(XlaLocalDevices, MatchPlugin) {
  const XlaDevices& devices = xla_devices();
  EXPECT_EQ(devices.platform, "cpu");
  EXPECT_EQ(devices.count, 8);
  EXPECT_EQ(devices.plugin, kPlugin);
  EXPECT_TRUE(devices.version.starts_with("0.")) << devices.version;
  EXPECT_EQ(devices.why_none, "");
}

/// Trains three steps in a new process; returns its output and log.
std::string three_steps(const std::string& folder) {
  const std::string command =
      concat("TUTTI_XLA_CACHE='", folder, "' ", TUTTI_TEST_THREE_STEPS, " 2>&1");
  FILE* const output = popen(command.c_str(), "r");
  std::string text;
  char part[4096];
  while (const std::size_t size = fread(part, 1, sizeof(part), output)) text.append(part, size);
  EXPECT_EQ(pclose(output), 0) << text;
  return text;
}

/// Returns the last line, "1 compiled, weights ...", of a process's output.
std::string result_in(const std::string& text) {
  const std::size_t end = text.rfind('\n', text.size() - 2);
  return text.substr(end + 1);
}

void expect_word(const std::string& text, const std::string& word) {
  EXPECT_NE(text.find(word), std::string::npos) << word << ": " << text;
}

class XlaProgramFiles : public Test {
 protected:
  ~XlaProgramFiles() override { std::filesystem::remove_all(folder_); }

  std::string only_file() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      all.push_back(entry.path().string());
    EXPECT_EQ(all.size(), 1u);
    return all.front();
  }

  const std::string folder_ = own_folder("xla_program_files");
};

TEST_F(XlaProgramFiles, SecondProcessReusesProgramWithIdenticalResults) {
  const std::string without = result_in(three_steps(""));
  EXPECT_TRUE(without.starts_with("1 compiled, weights ")) << without;
  EXPECT_EQ(result_in(three_steps(folder_)), without);
  EXPECT_EQ(result_in(three_steps(folder_)), "0" + without.substr(1));
}

TEST_F(XlaProgramFiles, DamagedOrForeignFileIsReplacedWithWarning) {
  const std::string result = result_in(three_steps(folder_));
  const std::string path = only_file(), whole = read_file(path);
  const auto expect_compiled = [&](const std::string& file, const char* reason) {
    write_file_atomically(path, file);
    const std::string text = three_steps(folder_);
    expect_word(text, reason);
    EXPECT_EQ(result_in(text), result);
    EXPECT_EQ(result_in(three_steps(folder_)), "0" + result.substr(1));
  };
  std::string damaged = whole, foreign = whole;
  damaged[whole.size() / 2] ^= 1;
  foreign[foreign.find("plugin ") + 8] ^= 1;
  expect_compiled(damaged, "it is damaged");
  expect_compiled(whole.substr(0, whole.size() - 100), "it is damaged");
  expect_compiled(foreign, "it is not a program of this plugin");
  expect_compiled("", "it is not a program of this plugin");
}

TEST_F(XlaProgramFiles, UnwritableFolderCausesWarning) {
  const std::string text = three_steps("/proc/nowhere");
  expect_word(text, "was not written");
  expect_word(text, "1 compiled");
}

TEST_F(XlaProgramFiles, ContainPluginHash) {
  three_steps(folder_);
  const std::string hash = hash_of(read_file(kPlugin));
  EXPECT_EQ(PjrtClient::get().plugin().file_hash(), hash);
  expect_word(read_file(only_file()), "plugin " + hash);
}

/// Returns a program that sums four numbers of each replica over `num_replicas` replicas.
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

/// Returns four ones on each of the first `count` devices.
std::vector<PjrtExecutable::Buffers> ones_on_each(int count) {
  const std::vector<float> ones(4, 1.0f);
  std::vector<PjrtExecutable::Buffers> buffers;
  for (int device = 0; device < count; ++device)
    buffers.push_back({PjrtClient::get().upload(ones.data(), {4}, DType::kFloat32, device)});
  return buffers;
}

/// Runs `action` and ends this process. The exit code is 3 if `action` throws a tutti::Error, whose
/// text is written to standard error.
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

class XlaPreconditions : public Test {
 protected:
  XlaPreconditions() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

#define EXPECT_REFUSED(words, ...) \
  EXPECT_EXIT(exit_with([&] { __VA_ARGS__; }), ExitedWithCode(3), words)
#define EXPECT_WORKS(...) EXPECT_EXIT(exit_with([&] { __VA_ARGS__; }), ExitedWithCode(0), "")

TEST_F(XlaPreconditions, CompileOptionsListReplicasAndPartitions) {
  const std::string options = compile_options({0, 1}, false);
  EXPECT_EQ(options.substr(0, 1), "\x1a");
  EXPECT_EQ(options.substr(2, 4), "\x20\x02\x28\x01");
  EXPECT_REFUSED("expected at least one device, got none",
                 PjrtClient::get().compile(sum_program(1), {}));
  EXPECT_REFUSED("expected distinct devices in 0 .. 7, got .0, 0.",
                 PjrtClient::get().compile(sum_program(2), {0, 0}));
  EXPECT_REFUSED("in 0 .. 7, got .0, 99.", PjrtClient::get().compile(sum_program(2), {0, 99}));
}

TEST_F(XlaPreconditions, RejectsInvalidCpuDeviceCount) {
  for (const char* count : {"-1", "0", "33", "2x"}) {
    EXPECT_REFUSED("TUTTI_XLA_CPU_DEVICES: expected a number from 1 to 32",
                   setenv("TUTTI_XLA_CPU_DEVICES", count, 1);
                   MirroredStrategy("xla:0"))
        << count;
  }
}

TEST_F(XlaPreconditions, UnknownFlagErrorIncludesPluginMessage) {
  const auto open_with = [](const char* flags) {
    setenv("XLA_FLAGS", flags, 1);
    TpuStrategy strategy;
    strategy.run([] { return square(Tensor::ones({2})); });
  };
  EXPECT_REFUSED("Unknown flag in XLA_FLAGS: --xla_no_such_flag=1.*or unset it",
                 open_with("--xla_no_such_flag=1"));
  EXPECT_REFUSED("XLA_FLAGS: the PJRT plugin would terminate the process.*banana",
                 open_with("--xla_cpu_enable_fast_math=banana"));
  EXPECT_REFUSED("Could not open file", open_with("no_such_file"));
  EXPECT_WORKS(open_with("--xla_cpu_enable_fast_math=false"));
}

TEST_F(XlaPreconditions, RejectsLaunchWithMissingArguments) {
  EXPECT_REFUSED("expected arguments for 2 replicas, got arguments for 1",
                 PjrtClient::get().compile(sum_program(2), {0, 1})->run(ones_on_each(1)));
  EXPECT_REFUSED("0 arguments for replica 1, 1 for replica 0", {
    auto arguments = ones_on_each(2);
    arguments[1].clear();
    PjrtClient::get().compile(sum_program(2), {0, 1})->run(arguments);
  });
}

// In two of the steps, only some replicas run the sum, so these steps must not reach the plugin.
TEST_F(XlaPreconditions, FailedReplicaDoesNotBlockRemainingReplicas) {
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
TEST_F(XlaPreconditions, ConcurrentCollectiveLaunchesAreLimited) {
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

// int32 and float32 have the same number of bytes, so the plugin would read the argument as floats.
TEST_F(XlaPreconditions, RejectsMismatchedArgumentTypesBeforeUse) {
  EXPECT_REFUSED("argument of an XLA step: expected float32 of shape .4.*got a buffer of type 4", {
    const std::vector<std::int32_t> numbers(4, 1);
    const auto buffer = PjrtClient::get().upload(numbers.data(), {4}, DType::kInt32, 0);
    buffer->check({4}, DType::kFloat32, "argument of an XLA step");
  });
}

}  // namespace tutti::testing::pjrt_client_test
