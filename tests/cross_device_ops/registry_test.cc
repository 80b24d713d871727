// Tests the registry of operations, plugins, options, and the fallback for unsupported reductions.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <fstream>
#include <functional>
#include <numeric>

#include "cross_device_ops/buffer_call.h"
#include "tests/cross_device_ops/cdo_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/plugin_abi.h"

namespace tutti::registry_test {
using namespace cdo_tests;
using ::testing::_;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Operation that sums replicas pairwise in a tree. Supports only SUM of float32 on the CPU.
class TreeSum final : public CrossDeviceOps {
 public:
  TreeSum(std::string name, int& calls) : name_(std::move(name)), calls_(calls) {}
  std::string_view name() const override { return name_; }
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override {
    return op == ReduceOp::kSum && dtype == DType::kFloat32 && device == DeviceType::kCpu;
  }

 protected:
  void all_reduce_buffers(ReduceOp, std::span<const ReplicaBuffer> replicas) override {
    ++calls_;
    const std::size_t n = replicas.size();
    for (std::size_t stride = 1; stride < n; stride *= 2)
      for (std::size_t i = 0; i + stride < n; i += 2 * stride)
        add(replicas[i].as<float>(), replicas[i + stride].as<float>());
    for (std::size_t i = 1; i < n; ++i)
      std::ranges::copy(replicas[0].as<float>(), replicas[i].as<float>().begin());
  }

 private:
  static void add(std::span<float> sum, std::span<const float> addend) {
    std::ranges::transform(sum, addend, sum.begin(), std::plus<>{});
  }
  std::string name_;
  int& calls_;
};

/// Registers a TreeSum that counts its calls in a static variable; returns a reference to the
/// count.
int& register_tree_sum(const std::string& name) {
  static int counters[8];
  static std::size_t used = 0;
  int& calls = counters[used++];
  register_cross_device_ops(name, [name, &calls](const Group&, const CommunicationOptions&) {
    return std::make_unique<TreeSum>(name, calls);
  });
  return calls;
}

TEST(CrossDeviceOpsRegistry, BuiltinOperationsAreListedFirst) {
  const auto names = registered_cross_device_ops();
  ASSERT_GE(names.size(), kBuiltinOps.size());
  EXPECT_TRUE(std::equal(kBuiltinOps.begin(), kBuiltinOps.end(), names.begin()));
  for (const std::string& name : kBuiltinOps) EXPECT_EQ(make_op(name, 2)->name(), name);
}

TEST(CrossDeviceOpsRegistry, UserOperationIsCalled) {
  int& calls = register_tree_sum("tree_sum");
  const auto names = registered_cross_device_ops();
  EXPECT_EQ(std::ranges::count(names, "tree_sum"), 1);
  const auto ops = make_op("tree_sum", 5);
  EXPECT_EQ(ops->determinism(), Determinism::kNone);
  const auto sums = ops->batch_all_reduce(
      ReduceOp::kSum, std::vector<PerReplica<Gradient>>{scalars({1, 2, 3, 4, 5})});
  EXPECT_EQ(calls, 1);
  for (const Gradient& sum : sums[0]) expect_tensor(sum.dense(), {}, {15});
  // The base class computes MEAN as a SUM and a division.
  expect_tensor(ops->reduce(ReduceOp::kMean, scalars({1, 2, 3, 4, 5}), cpu(0)).dense(), {}, {3});
  EXPECT_EQ(calls, 2);
}

TEST(CrossDeviceOpsRegistry, EachPackIsReducedInOneCall) {
  int& calls = register_tree_sum("counting_sum");
  const auto ops = make_op("counting_sum", 2);
  std::vector<PerReplica<Gradient>> batch(6, scalars({1, 2}));
  const auto calls_with = [&](std::int64_t bytes_per_pack) {
    calls = 0;
    ops->batch_all_reduce(ReduceOp::kSum, batch, {.bytes_per_pack = bytes_per_pack});
    return calls;
  };
  EXPECT_EQ(calls_with(0), 1);
  EXPECT_EQ(calls_with(1), 6);
  EXPECT_EQ(calls_with(4), 6);
  EXPECT_EQ(calls_with(8), 3);
  EXPECT_EQ(calls_with(16), 2);  // one pack has 4 scalars, the other 2
}

TEST(CrossDeviceOpsRegistry, SkipsOperationForSingleReplicaAndEmptyTensors) {
  int& calls = register_tree_sum("idle_sum");
  expect_tensor(make_op("idle_sum", 1)->reduce(ReduceOp::kSum, scalars({4}), cpu(2)).dense(), {},
                {4});
  const PerReplica<Tensor> empty({Tensor::zeros({0}), Tensor::zeros({0})});
  expect_tensor(make_op("idle_sum", 2)->all_reduce(ReduceOp::kSum, empty)[1], {0}, {});
  EXPECT_EQ(calls, 0);
}

TEST(CrossDeviceOpsRegistry, UnsupportedReductionFallsBackAndLogsOnce) {
  int& calls = register_tree_sum("narrow_sum");
  const auto ops = make_op("narrow_sum", 2);
  const PerReplica<Tensor> integers({Tensor::from<std::int32_t>({2}, {1, 2}, cpu(0)),
                                     Tensor::from<std::int32_t>({2}, {3, 4}, cpu(1))});
  const thrown::LogLines log;
  for (int i = 0; i < 3; ++i) {
    expect_tensor(ops->all_reduce(ReduceOp::kSum, integers)[1], {2}, {4, 6});
  }
  EXPECT_EQ(calls, 0);
  EXPECT_THAT(log.list(),
              ElementsAre(HasSubstr("narrow_sum: SUM of int32 on cpu:0 is not supported; "
                                    "reduction_to_one_device is used")));
  expect_tensor(ops->reduce(ReduceOp::kMax, scalars({1, 7}), cpu(0)).dense(), {}, {7});
  EXPECT_THAT(log.list(), ElementsAre(_, HasSubstr("narrow_sum: MAX of float32")));
}

TEST(CrossDeviceOpsRegistry, StrictOptionRefusesFallback) {
  register_tree_sum("strict_sum");
  const auto ops = make_op("strict_sum", 2);
  const std::vector<PerReplica<Gradient>> batch = {PerReplica<Gradient>(
      {Gradient(Tensor::ones({1}, DType::kInt64)), Gradient(Tensor::ones({1}, DType::kInt64))})};
  EXPECT_ERROR(ops->batch_all_reduce(ReduceOp::kSum, batch, {.strict = true}), kUnimplemented,
               "strict_sum", "SUM", "int64", "cpu:0", "strict");
}

TEST(CrossDeviceOpsRegistry, DuplicateAndUnknownNamesAreRefused) {
  register_tree_sum("taken");
  EXPECT_ERROR(register_tree_sum("taken"), kAlreadyExists, "'taken'", "canonical", "ring");
  EXPECT_ERROR(register_tree_sum("ring"), kAlreadyExists, "'ring'");
  EXPECT_INVALID(register_tree_sum(""), "a name and a factory");
  EXPECT_INVALID(register_cross_device_ops("nothing", {}), "without a factory");
  EXPECT_ERROR(make_cross_device_ops("gloo"), kNotFound, "'gloo'",
               "canonical, hierarchical_copy, reduction_to_one_device, ring");
  EXPECT_ERROR(build_cross_device_ops({"made_by_hand", {}}, Group{1, 0, cpus(1)}), kNotFound,
               "'made_by_hand'");
}

TEST(CrossDeviceOpsRegistry, FactoryReceivesGroupAndOptions) {
  static Group seen;
  static CommunicationOptions options;
  static int calls = 0;
  register_cross_device_ops("curious", [](const Group& group, const CommunicationOptions& given) {
    seen = group;
    options = given;
    return std::make_unique<TreeSum>("curious", calls);
  });
  build_cross_device_ops(make_cross_device_ops("curious", {.bytes_per_pack = 77}),
                         Group{4, 2, cpus(2)});
  EXPECT_EQ(seen.world_size, 4);
  EXPECT_EQ(seen.first_rank, 2);
  EXPECT_EQ(seen.local_devices, cpus(2));
  EXPECT_EQ(options.bytes_per_pack, 77);
}

/// Registers the operation "configurable" on the first call. Returns the options that its factory
/// last received.
const Json& options_of_configurable() {
  static Json seen;
  static int calls = 0;
  [[maybe_unused]] static const bool once = [] {
    register_cross_device_ops("configurable",
                              [](const Group&, const CommunicationOptions&, const Json& own) {
                                seen = own;
                                return std::make_unique<TreeSum>("configurable", calls);
                              },
                              {"k", "wire", "exact"});
    return true;
  }();
  return seen;
}

TEST(CrossDeviceOpsRegistry, FactoryReceivesPluginOptions) {
  const Json& seen = options_of_configurable();
  const auto seen_with = [&](const std::string& text) {
    build_cross_device_ops(make_cross_device_ops("configurable", {}, text), Group{2, 0, cpus(2)});
    return seen.dump();
  };
  EXPECT_EQ(seen_with(""), "{}");
  EXPECT_EQ(seen_with("k=0.25,wire=int8,exact=true"), R"({"k":0.25,"wire":"int8","exact":true})");
  EXPECT_EQ(seen_with("wire=a=b,k=3"), R"({"wire":"a=b","k":3})");
  EXPECT_EQ(seen_with(R"({"k": [1, 2]})"), R"({"k":[1,2]})");
}

TEST(CrossDeviceOpsRegistry, UnknownAndMalformedOptionsAreRefused) {
  options_of_configurable();
  EXPECT_INVALID(make_cross_device_ops("configurable", {}, "k=1,wires=2"),
                 "configurable has no option 'wires'", "k, wire, exact", "did you mean 'wire'");
  EXPECT_INVALID(
      build_cross_device_ops({.name = "ring", .plugin_options = "k=1"}, Group{2, 0, cpus(2)}),
      "ring has no option 'k'; it takes none");
  EXPECT_INVALID(build_cross_device_ops({.plugin_options = "k=1"}, Group{2, 0, cpus(2)}),
                 "canonical has no option 'k'");
  for (const char* const text : {"k", "=1", "k=1,k=2", "k=1,,wire=2"}) {
    EXPECT_INVALID(make_cross_device_ops("configurable", {}, text), "plugin options: expected",
                   "name=value", text);
  }
  EXPECT_INVALID(make_cross_device_ops("configurable", {}, "{\"k\":"), "plugin options");
  // Communicators also refuse options that their algorithm does not support.
  for (const char* const algorithm : {"canonical", "ring", "hierarchical_copy"}) {
    EXPECT_INVALID(in_process_communicators(2, {.algorithm = algorithm, .plugin_options = "k=1"}),
                   "has no option 'k'");
  }
}

using std::chrono::milliseconds;

TEST(CommunicationOptionsTest, ValidateRefusesInvalidFields) {
  const CommunicationOptions defaults;
  EXPECT_EQ(defaults.bytes_per_pack, 0);
  EXPECT_FALSE(defaults.timeout.has_value());
  EXPECT_EQ(defaults.implementation, CommunicationImplementation::kAuto);
  EXPECT_NO_THROW(defaults.validate());
  EXPECT_INVALID(CommunicationOptions{.bytes_per_pack = -1}.validate(), "bytes_per_pack", "-1");
  for (const int ms : {0, -5}) {
    EXPECT_INVALID(CommunicationOptions{.timeout = milliseconds(ms)}.validate(), "positive timeout",
                   std::to_string(ms));
  }
  EXPECT_INVALID(make_cross_device_ops("ring", {.bytes_per_pack = -2}), "bytes_per_pack");
}

TEST(CommunicationOptionsTest, ImplementationNamesAreCaseInsensitive) {
  EXPECT_EQ(parse_communication_implementation("nccl"), CommunicationImplementation::kNccl);
  EXPECT_EQ(parse_communication_implementation("Ring"), CommunicationImplementation::kRing);
  for (const char* name : {"AUTO", "RING", "NCCL", "MPI", "CANONICAL"}) {
    EXPECT_EQ(to_string(parse_communication_implementation(name)), name);
  }
  EXPECT_INVALID(parse_communication_implementation("tree"), "AUTO, RING, NCCL, MPI, CANONICAL",
                 "'tree'");
}

TEST(CommunicationOptionsTest, CompressionAndPolicyNamesAreCaseInsensitive) {
  EXPECT_EQ(parse_wire_compression("BFloat16"), WireCompression::kBFloat16);
  EXPECT_EQ(to_string(parse_wire_compression("float16")), "float16");
  EXPECT_EQ(parse_wire_compression("none"), WireCompression::kNone);
  EXPECT_EQ(parse_non_finite_policy("SKIP"), NonFinitePolicy::kSkip);
  EXPECT_EQ(to_string(parse_non_finite_policy("error")), "error");
  EXPECT_INVALID(parse_wire_compression("int8"), "compression", "none, bfloat16, float16", "int8");
  EXPECT_INVALID(parse_non_finite_policy("warn"), "ignore, error, skip", "warn");
  EXPECT_INVALID(CommunicationOptions{.first_bytes_per_pack = -3}.validate(),
                 "first_bytes_per_pack", "-3");
  const CommunicationOptions a{.first_bytes_per_pack = 5, .non_finite = NonFinitePolicy::kError};
  const CommunicationOptions merged = a.merged_with({.compression = WireCompression::kFloat16});
  EXPECT_EQ(merged.first_bytes_per_pack, 5);
  EXPECT_EQ(merged.compression, WireCompression::kFloat16);
  EXPECT_EQ(merged.non_finite, NonFinitePolicy::kError);
}

TEST(CommunicationOptionsTest, MergeOverridesWithNonDefaultFields) {
  const CommunicationOptions a{.bytes_per_pack = 7,
                               .timeout = milliseconds(5),
                               .implementation = CommunicationImplementation::kRing};
  const CommunicationOptions b{.bytes_per_pack = 9, .strict = true};
  const CommunicationOptions merged = a.merged_with(b);
  EXPECT_EQ(merged.bytes_per_pack, 9);
  EXPECT_EQ(merged.timeout, milliseconds(5));
  EXPECT_EQ(merged.implementation, CommunicationImplementation::kRing);
  EXPECT_TRUE(merged.strict);
  EXPECT_EQ(a.merged_with({}), a);
  EXPECT_EQ(CommunicationOptions{}.merged_with(a), a);
  EXPECT_EQ(a.bytes_per_pack, 7);  // the operands are unchanged
  EXPECT_EQ(b.timeout, std::nullopt);
}

TEST(CommunicationOptionsTest, GroupSizeMustMatchDevices) {
  EXPECT_INVALID(build_cross_device_ops({}, Group{3, 0, cpus(2)}), "world size 3",
                 "2 local devices");
  EXPECT_INVALID(build_cross_device_ops({}, Group{}), "0 local devices");
  EXPECT_NO_THROW(build_cross_device_ops({}, Group{4, 0, cpus(2)}));
}

TEST(CommunicationOptionsTest, ImplementationSelectsOperationIfNameIsEmpty) {
  const auto built = [](std::string name, CommunicationImplementation implementation) {
    const CrossDeviceOpsSpec spec{std::move(name), {.implementation = implementation}};
    return std::string(build_cross_device_ops(spec, Group{2, 0, cpus(2)})->name());
  };
  EXPECT_EQ(built("", CommunicationImplementation::kAuto), "canonical");
  EXPECT_EQ(built("", CommunicationImplementation::kCanonical), "canonical");
  EXPECT_EQ(built("", CommunicationImplementation::kRing), "ring");
  EXPECT_EQ(built("ring", CommunicationImplementation::kRing), "ring");
  EXPECT_EQ(built("hierarchical_copy", CommunicationImplementation::kAuto), "hierarchical_copy");
  EXPECT_INVALID(built("canonical", CommunicationImplementation::kRing), "RING",
                 "the name is 'canonical'");
}

TEST(CommunicationOptionsTest, RefusesNcclOnCpusAndMpiWithoutMpirun) {
  const CrossDeviceOpsSpec mpi{"", {.implementation = CommunicationImplementation::kMpi}};
  EXPECT_ERROR(build_cross_device_ops(mpi, Group{2, 0, cpus(2)}), kUnimplemented, "mpi: ", "; ",
               "canonical");
  const CrossDeviceOpsSpec nccl{"", {.implementation = CommunicationImplementation::kNccl}};
  try {
    build_cross_device_ops(nccl, Group{2, 0, cpus(2)});
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {  // thrown both with and without NCCL in the build
    EXPECT_TRUE(error.code() == kInvalid || error.code() == ErrorCode::kUnimplemented);
    EXPECT_THAT(error.message(), HasSubstr("nccl: "));
    EXPECT_THAT(error.message(), HasSubstr("canonical"));
  }
}

std::string path_of(const std::string& kind) { return TUTTI_TEST_PLUGINS "/" + kind + ".so"; }

std::vector<float> sums_of(const std::string& name, int replicas, DType dtype = DType::kFloat32) {
  std::vector<Tensor> values;
  for (int r = 0; r < replicas; ++r)
    values.push_back(Tensor::full({5}, r + 1, dtype, cdo_tests::cpu(r)));
  const auto op = make_op(name, replicas);
  std::vector<float> sums;
  for (const Tensor& sum : op->all_reduce(ReduceOp::kSum, PerReplica<Tensor>(values)))
    sums.push_back(static_cast<float>(sum.to_doubles()[4]));
  return sums;
}

TEST(Plugin, IsRegisteredAsOperation) {
  const std::string name = load_cross_device_ops_plugin(path_of("good"));
  EXPECT_EQ(name, "plugin_good");
  EXPECT_EQ(load_cross_device_ops_plugin(path_of("good")), name);  // loading again is allowed
  EXPECT_THAT(registered_cross_device_ops(), Contains(name));
  EXPECT_EQ(sums_of(name, 3), (std::vector<float>{6, 6, 6}));
  EXPECT_EQ(make_op(name, 2)->determinism(), Determinism::kRunToRun);
  // Sums of a dtype that the plugin does not support are computed by another operation.
  EXPECT_EQ(sums_of(name, 2, DType::kInt32), (std::vector<float>{3, 3}));
  EXPECT_EQ(sums_of(name, 2, DType::kFloat16), (std::vector<float>{3, 3}));
}

TEST(Plugin, ReportsWhetherOperationIsSliceable) {
  const auto canonical = make_op(load_cross_device_ops_plugin(path_of("canonical")), 2);
  EXPECT_TRUE(canonical->sliceable());
  EXPECT_EQ(canonical->determinism(), Determinism::kCanonical);
  for (const char* const kind : {"good", "older"}) {
    EXPECT_FALSE(make_op(load_cross_device_ops_plugin(path_of(kind)), 2)->sliceable()) << kind;
  }
}

TEST(Plugin, ReceivesGroupAndOptionsAndCanLog) {
  const thrown::LogLines log;
  const std::string name = load_cross_device_ops_plugin(path_of("good"));
  (void)build_cross_device_ops(
      make_cross_device_ops(name, {.bytes_per_pack = 1024, .timeout = std::chrono::seconds(2)}),
      Group{2, 0, cpus(2)});
  const std::vector<std::string> lines = log.list();
  EXPECT_THAT(lines, Contains(HasSubstr("plugin_good: 2 of 2, first 0, ")));
  EXPECT_THAT(lines, Contains(HasSubstr(R"("bytes_per_pack":1024)")));
  EXPECT_THAT(lines, Contains(HasSubstr(R"("timeout_ms":2000)")));
}

TEST(Plugin, DifferentReplicaCountIsRefused) {
  const std::string name = load_cross_device_ops_plugin(path_of("good"));
  const auto op = make_op(name, 2);
  std::vector<Tensor> values(3, Tensor::ones({4}));
  EXPECT_INVALID(op->all_reduce(ReduceOp::kSum, PerReplica<Tensor>(values)), "plugin_good",
                 "made for 2 replicas", "got 3");
  values.pop_back();
  EXPECT_EQ(op->all_reduce(ReduceOp::kSum, PerReplica<Tensor>(values))[1].to_doubles()[3], 2.0);
}

TEST(Plugin, AcceptsOlderAndNewerTablesAccordingToStructSize) {
  const std::string older = load_cross_device_ops_plugin(path_of("older"));
  // If the table has no member `determinism`, the operation is kNone.
  EXPECT_EQ(make_op(older, 2)->determinism(), Determinism::kNone);
  EXPECT_EQ(sums_of(older, 2), (std::vector<float>{3, 3}));
  const std::string newer = load_cross_device_ops_plugin(path_of("newer"));
  EXPECT_EQ(make_op(newer, 2)->determinism(), Determinism::kRunToRun);
  EXPECT_EQ(sums_of(newer, 2), (std::vector<float>{3, 3}));
  // Plugin built before plugins could span processes.
  const std::string one_process = load_cross_device_ops_plugin(path_of("one_process"));
  const auto op = make_op(one_process, 2);
  EXPECT_EQ(sums_of(one_process, 2), (std::vector<float>{3, 3}));
  EXPECT_FALSE(op->spans_processes());
  EXPECT_TRUE(op->provides(Collective::kAllReduce));
  EXPECT_FALSE(op->provides(Collective::kBroadcast));
  EXPECT_ERROR(build_cross_device_ops(make_cross_device_ops(one_process), {4, 0, cpus(2)}),
               kUnimplemented, "plugin_one_process", "within one process", "got 4");
}

TEST(Plugin, InvalidPluginIsRefusedWithReason) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"no_symbol", {"is not a plugin", TUTTI_PLUGIN_SYMBOL}},
      {"version_2", {"version 2", "expected version 1", "rebuild the plugin"}},
      {"null_table", {"returned NULL", "expected a table"}},
      {"tiny", {"struct_size", "is 8", "sizeof(tutti_cross_device_ops_v1)"}},
      {"huge", {"struct_size", "3735928544"}},
      {"no_name", {"has no name"}},
      {"empty_name", {"the name in its table", "got ''"}},
      {"bad_name", {"letters, digits", "'two words'"}},
      {"long_name", {"1 to 63", "got more"}},
      {"no_create", {"plugin_no_create", "'create'", "is NULL"}},
      {"no_destroy", {"plugin_no_destroy", "'destroy'"}},
      {"no_supports", {"plugin_no_supports", "'supports'"}},
      {"no_all_reduce", {"plugin_no_all_reduce", "'all_reduce'"}},
      {"reserved", {"plugin_reserved", "'reserved'", "is 1", "expected 0"}},
  };
  const auto before = registered_cross_device_ops();
  for (auto [kind, parts] : cases) {
    SCOPED_TRACE(kind);
    parts.push_back(path_of(kind));
    expect_error(kInvalid, parts, [kind = kind] { load_cross_device_ops_plugin(path_of(kind)); });
  }
  EXPECT_ERROR(load_cross_device_ops_plugin(path_of("taken")), kAlreadyExists, path_of("taken"),
               "'ring' is already registered");
  EXPECT_EQ(registered_cross_device_ops(), before);
}

TEST(Plugin, ErrorNamesMissingOrInvalidFile) {
  EXPECT_ERROR(load_cross_device_ops_plugin("./nowhere.so"), kNotFound, "'./nowhere.so'",
               "no such file");
  EXPECT_INVALID(load_cross_device_ops_plugin("nowhere.so"), "'nowhere.so'", "cannot be loaded",
                 "try a path");
  const std::string text = ::testing::TempDir() + "/tutti_no_library.so";
  std::ofstream(text) << "not a library";
  EXPECT_INVALID(load_cross_device_ops_plugin(text), text, "expected a shared library");
}

TEST(Plugin, ErrorsKeepCodeAndText) {
  const std::string fails = load_cross_device_ops_plugin(path_of("create_fails"));
  EXPECT_ERROR(make_op(fails, 2), kResourceExhausted, "plugin_create_fails",
               "create failed: no fabric", path_of("create_fails"));
  const std::string silent = load_cross_device_ops_plugin(path_of("create_is_silent"));
  EXPECT_ERROR(make_op(silent, 2), kInternal, "code 0", "its message: none");
  const std::string late = load_cross_device_ops_plugin(path_of("reduce_fails"));
  EXPECT_ERROR(sums_of(late, 2), kDeadlineExceeded,
               "all_reduce failed: peer 3 is silent for -1 ms");
  const std::string odd = load_cross_device_ops_plugin(path_of("odd_code"));
  EXPECT_ERROR(sums_of(odd, 2), kInternal, "all_reduce failed with code 99", "xxxx");
  const std::string grade = load_cross_device_ops_plugin(path_of("odd_grade"));
  EXPECT_ERROR(make_op(grade, 2), kInternal, "determinism() returned 7", "from 0 to 2");
  const std::string error = load_cross_device_ops_plugin(path_of("odd_error"));
  EXPECT_ERROR(make_op(error, 2), kInternal, "max_relative_error() returned -1", "INFINITY");
}

TEST(Plugin, MembersBeyondStructSizeAreNotRead) {
  const std::string name = load_cross_device_ops_plugin(path_of("without_options"));
  EXPECT_EQ(sums_of(name, 3), (std::vector<float>{6, 6, 6}));
  EXPECT_EQ(make_op(name, 2)->max_relative_error(), 0.0);
  EXPECT_INVALID(make_cross_device_ops(name, {}, "k=1"), "plugin_without_options has no option 'k'",
                 "takes none");
}

using internal::carry_out_unchecked;

constexpr int kProcesses = 2, kReplicas = 2, kMembers = kProcesses * kReplicas;

// Simulates two processes with two replicas each, using two threads that share only the store.
void run_processes(const std::string& name, const CommunicationOptions& options,
                   const std::function<void(CrossDeviceOps&, int)>& body) {
  const auto store = std::make_shared<InProcessStore>();
  std::vector<std::unique_ptr<Thread>> threads;
  for (int process = 0; process < kProcesses; ++process) {
    threads.push_back(Executor::system().start("process", [&, process] {
      const auto op =
          build_cross_device_ops(make_cross_device_ops(name, options),
                                 Group{kMembers, kReplicas * process, cpus(kReplicas), store});
      body(*op, kReplicas * process);
    }));
  }
}

template <class T>
ReplicaBuffer buffer_of(std::vector<T>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size(), dtype_of<T>(), {}};
}

// Arguments of one process: a list of `count` values per replica. Member m's list is 10m, 10m+1,
// ...
struct Lists {
  Lists(int first, std::size_t count) : lists(kReplicas) {
    for (int i = 0; i < kReplicas; ++i) {
      lists[static_cast<std::size_t>(i)].resize(count);
      std::iota(lists[static_cast<std::size_t>(i)].begin(),
                lists[static_cast<std::size_t>(i)].end(), 10 * (first + i));
    }
  }
  std::vector<ReplicaBuffer> buffers() {
    std::vector<ReplicaBuffer> result;
    for (auto& list : lists) result.push_back(buffer_of(list));
    return result;
  }
  std::vector<std::vector<std::int32_t>> lists;
};
using List = std::vector<std::int32_t>;

TEST(MultiProcessPlugin, ProvidedCollectivesReachAllMembers) {
  const std::string name = load_cross_device_ops_plugin(path_of("store"));
  run_processes(name, {}, [](CrossDeviceOps& op, int first) {
    EXPECT_TRUE(op.spans_processes());
    for (const Collective c :
         {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast,
          Collective::kAllGather, Collective::kReduceScatter, Collective::kAllToAll}) {
      EXPECT_TRUE(op.provides(c)) << to_string(c);
    }
    Lists all(first, 2);
    carry_out_unchecked(op, {.outputs = all.buffers()});
    for (const List& list : all.lists) EXPECT_EQ(list, (List{60, 64}));

    Lists inputs(first, 2);
    List result(2);
    const ReplicaBuffer output = buffer_of(result);
    const bool has_root = first == 2;
    carry_out_unchecked(op, {.collective = Collective::kReduce,
                             .root = 3,
                             .inputs = inputs.buffers(),
                             .outputs = std::span(&output, has_root ? 1 : 0)});
    EXPECT_EQ(result, has_root ? (List{60, 64}) : (List{0, 0}));

    Lists copies(first, 3);
    carry_out_unchecked(
        op, {.collective = Collective::kBroadcast, .root = 2, .outputs = copies.buffers()});
    for (const List& list : copies.lists) EXPECT_EQ(list, (List{20, 21, 22}));

    // length of member r's input, or of its part of the output
    const std::size_t counts[] = {0, 2, 1, 1};
    Lists parts(first, 0), gathered(first, 4);
    for (int i = 0; i < kReplicas; ++i) {
      parts.lists[static_cast<std::size_t>(i)] = List(counts[first + i], first + i);
    }
    carry_out_unchecked(op, {.collective = Collective::kAllGather,
                             .inputs = parts.buffers(),
                             .outputs = gathered.buffers(),
                             .counts = counts});
    for (const List& list : gathered.lists) EXPECT_EQ(list, (List{1, 1, 2, 3}));

    Lists whole(first, 4);
    carry_out_unchecked(op, {.collective = Collective::kReduceScatter,
                             .inputs = whole.buffers(),
                             .outputs = parts.buffers(),
                             .counts = counts});
    const List sums[] = {{}, {60, 64}, {68}, {72}};
    for (int i = 0; i < kReplicas; ++i) {
      EXPECT_EQ(parts.lists[static_cast<std::size_t>(i)], sums[first + i]);
    }

    const std::vector<std::size_t> ones(kMembers * kMembers, 1);
    Lists sent(first, 4), received(first, 4);
    carry_out_unchecked(op, {.collective = Collective::kAllToAll,
                             .inputs = sent.buffers(),
                             .outputs = received.buffers(),
                             .counts = ones});
    for (int i = 0; i < kReplicas; ++i) {
      const int m = first + i;
      EXPECT_EQ(received.lists[static_cast<std::size_t>(i)], (List{m, 10 + m, 20 + m, 30 + m}));
    }
  });
}

TEST(MultiProcessPlugin, UnimplementedCollectivesAreRefused) {
  const std::string name = load_cross_device_ops_plugin(path_of("store_all_reduce"));
  run_processes(name, {}, [](CrossDeviceOps& op, int first) {
    EXPECT_FALSE(op.provides(Collective::kBroadcast));
    Lists all(first, 2);
    const std::size_t counts[] = {1, 1, 1, 1};
    expect_error(ErrorCode::kUnimplemented,
                 {"all_gather between processes", "implements all_gather"}, [&] {
                   Lists gathered(first, 4);
                   carry_out_unchecked(op, {.collective = Collective::kAllGather,
                                            .inputs = all.buffers(),
                                            .outputs = gathered.buffers(),
                                            .counts = counts});
                 });
    carry_out_unchecked(op, {.outputs = all.buffers()});
    for (const List& list : all.lists) EXPECT_EQ(list, (List{60, 64}));
  });
}

TEST(MultiProcessPlugin, DeadlineAndAbortEndCall) {
  const std::string name = load_cross_device_ops_plugin(path_of("store"));
  const CommunicationOptions brief{.timeout = std::chrono::milliseconds(30)};
  run_processes(name, brief, [](CrossDeviceOps& op, int first) {
    if (first != 0) return;
    Lists all(first, 2);
    EXPECT_ERROR(carry_out_unchecked(op, {.outputs = all.buffers()}), kDeadlineExceeded,
                 "plugin_store", "all_reduce failed: member 2 is");
  });
  run_processes(name, {}, [](CrossDeviceOps& op, int first) {
    if (first != 0) return;
    const auto other = Executor::system().start("aborts", [&] {
      Clock::system().sleep_for(std::chrono::milliseconds(20));
      op.abort(Error(ErrorCode::kInternal, "the disk is full"));
      op.abort(Error(ErrorCode::kInternal, "later"));
    });
    Lists all(first, 2);
    for (int i = 0; i < 2; ++i) {
      EXPECT_ERROR(carry_out_unchecked(op, {.outputs = all.buffers()}), kAborted,
                   "the disk is full");
    }
  });
}

TEST(MultiProcessPlugin, RequiresGroupStore) {
  const std::string name = load_cross_device_ops_plugin(path_of("store"));
  EXPECT_INVALID(build_cross_device_ops(make_cross_device_ops(name), {4, 0, cpus(2)}),
                 "plugin_store", "key-value store", "Group::store");
  EXPECT_ERROR(make_op(name, 2), kFailedPrecondition,
               // the store is optional for one process, but this plugin needs it
               "the group has no store");
}

}  // namespace tutti::registry_test
