// Names of operations, operations of users, the fallback, "auto" and communication options.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <numeric>

#include "cross_device_ops/algorithms/algorithm.h"
#include "tests/cross_device_ops/cdo_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti {
namespace registry_test {

using namespace cdo_tests;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Sums replicas pairwise in a tree, then copies the result back. CPU float32 only.
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

/// Registers a TreeSum that counts its calls in a variable of the process.
int& register_tree_sum(const std::string& name) {
  static int counters[8];
  static std::size_t used = 0;
  int& calls = counters[used++];
  register_cross_device_ops(name, [name, &calls](const Group&, const CommunicationOptions&) {
    return std::make_unique<TreeSum>(name, calls);
  });
  return calls;
}

TEST(CrossDeviceOpsRegistry, BuiltinOperationsComeFirst) {
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
  // MEAN comes from SUM and a division that the base class makes.
  expect_tensor(ops->reduce(ReduceOp::kMean, scalars({1, 2, 3, 4, 5}), cpu(0)).dense(), {}, {3});
  EXPECT_EQ(calls, 2);
}

TEST(CrossDeviceOpsRegistry, EachPackIsOneCall) {
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
  EXPECT_EQ(calls_with(16), 2);  // 4 and 2 scalars
}

TEST(CrossDeviceOpsRegistry, OneReplicaAndNoElementsNeedNoCall) {
  int& calls = register_tree_sum("idle_sum");
  expect_tensor(make_op("idle_sum", 1)->reduce(ReduceOp::kSum, scalars({4}), cpu(2)).dense(), {},
                {4});
  const PerReplica<Tensor> empty({Tensor::zeros({0}), Tensor::zeros({0})});
  expect_tensor(make_op("idle_sum", 2)->all_reduce(ReduceOp::kSum, empty)[1], {0}, {});
  EXPECT_EQ(calls, 0);
}

TEST(CrossDeviceOpsRegistry, WhatIsNotSupportedFallsBackAndSaysSoOnce) {
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

TEST(CrossDeviceOpsRegistry, StrictRefusesTheFallback) {
  register_tree_sum("strict_sum");
  const auto ops = make_op("strict_sum", 2);
  const std::vector<PerReplica<Gradient>> batch = {PerReplica<Gradient>(
      {Gradient(Tensor::ones({1}, DType::kInt64)), Gradient(Tensor::ones({1}, DType::kInt64))})};
  EXPECT_ERROR(ops->batch_all_reduce(ReduceOp::kSum, batch, {.strict = true}), kUnimplemented,
               "strict_sum", "SUM", "int64", "cpu:0", "strict");
}

TEST(CrossDeviceOpsRegistry, ANameIsTakenOnce) {
  register_tree_sum("taken");
  EXPECT_ERROR(register_tree_sum("taken"), kAlreadyExists, "'taken'", "canonical", "ring");
  EXPECT_ERROR(register_tree_sum("ring"), kAlreadyExists, "'ring'");
  EXPECT_INVALID(register_tree_sum(""), "a name and a factory");
  EXPECT_INVALID(register_cross_device_ops("nothing", {}), "without factory");
}

TEST(CrossDeviceOpsRegistry, AnUnknownNameListsTheNames) {
  EXPECT_ERROR(make_cross_device_ops("gloo"), kNotFound, "'gloo'",
               "canonical, hierarchical_copy, reduction_to_one_device, ring");
  EXPECT_ERROR(build_cross_device_ops({"made_by_hand", {}}, Group{1, 0, cpus(1)}), kNotFound,
               "'made_by_hand'");
}

TEST(CrossDeviceOpsRegistry, TheFactoryIsToldTheGroupAndTheOptions) {
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

/// Registers "configurable" once; returns the options that its factory got last.
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

TEST(CrossDeviceOpsRegistry, OptionsOfItsOwnReachTheFactory) {
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

TEST(CrossDeviceOpsRegistry, UnknownAndUnreadableOptionsAreRefused) {
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
  // Of communicators, too.
  for (const char* const algorithm : {"canonical", "ring", "auto"}) {
    EXPECT_INVALID(in_process_communicators(2, {.algorithm = algorithm, .plugin_options = "k=1"}),
                   "has no option 'k'");
  }
}

TEST(ChooseAlgorithm, HasACanonicalAnswerForEverySizeAndWorldAndSaysWhy) {
  for (const Medium medium : {Medium::kLocal, Medium::kInProcess, Medium::kNetwork}) {
    for (const int size : {2, 3, 4, 7, 64, 1000}) {
      for (std::size_t bytes = 0; bytes < (std::size_t{1} << 40); bytes = bytes * 8 + 4) {
        for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
          const AlgorithmQuery query{
              .size = size, .bytes = bytes, .dtype = dtype, .medium = medium};
          const AlgorithmChoice choice = choose_algorithm(query);
          const internal::Algorithm* const found = internal::find_algorithm(choice.name);
          ASSERT_NE(found, nullptr) << choice.name;
          EXPECT_EQ(found->determinism, Determinism::kCanonical) << choice.name;
          EXPECT_EQ(internal::AutoAlgorithm().choose(query).name, choice.name);
          EXPECT_NE(choice.why.find(concat(bytes, " bytes among ", size, " ranks")),
                    std::string::npos)
              << choice.why;
          if (is_half(dtype)) {
            EXPECT_TRUE(found->combines_once) << choice.name;
            EXPECT_NE(choice.why.find("16-bit"), std::string::npos) << choice.why;
          }
        }
      }
    }
  }
}

TEST(ChooseAlgorithm, OtherOperationsThanAllReduceHaveNoTable) {
  const AlgorithmChoice choice =
      choose_algorithm({.collective = Collective::kBroadcast, .size = 4, .bytes = 100});
  EXPECT_EQ(choice.name, "canonical");
  EXPECT_NE(choice.why.find("broadcast of 100 bytes"), std::string::npos) << choice.why;
}

TEST(AutoOps, SaysOnceWhatItChose) {
  std::vector<Tensor> values;
  for (int r = 0; r < 3; ++r) values.push_back(Tensor::scalar(r, DType::kFloat32, cpu(r)));
  const auto reduce_thrice = [&] {
    const auto operation = make_op("auto", 3);
    for (int i = 0; i < 3; ++i) {
      const auto sums = operation->all_reduce(ReduceOp::kSum, PerReplica<Tensor>(values));
      EXPECT_EQ(sums[2].item(), 3.0);
    }
  };
  set_log_level(LogLevel::kDebug);
  const auto lines = thrown::lines_of(reduce_thrice);
  const auto lines_above_debug = thrown::lines_of(reduce_thrice, LogLevel::kInfo);
  set_log_level(LogLevel::kInfo);
  EXPECT_THAT(lines, ElementsAre(::testing::AllOf(
                         HasSubstr("auto: "),
                         HasSubstr("all_reduce of 4 bytes among 3 ranks (one thread)"))));
  EXPECT_THAT(lines_above_debug, ::testing::IsEmpty());
}

using std::chrono::milliseconds;

TEST(CommunicationOptionsTest, FieldsAreChecked) {
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

TEST(CommunicationOptionsTest, ImplementationsAreReadInAnyCase) {
  EXPECT_EQ(parse_communication_implementation("nccl"), CommunicationImplementation::kNccl);
  EXPECT_EQ(parse_communication_implementation("Ring"), CommunicationImplementation::kRing);
  for (const char* name : {"AUTO", "RING", "NCCL", "MPI", "CANONICAL"}) {
    EXPECT_EQ(to_string(parse_communication_implementation(name)), name);
  }
  EXPECT_INVALID(parse_communication_implementation("tree"), "AUTO, RING, NCCL, MPI, CANONICAL",
                 "'tree'");
}

TEST(CommunicationOptionsTest, CompressionAndPolicyAreReadInAnyCase) {
  EXPECT_EQ(parse_wire_compression("BFloat16"), WireCompression::kBFloat16);
  EXPECT_EQ(to_string(parse_wire_compression("float16")), "float16");
  EXPECT_EQ(parse_wire_compression("none"), WireCompression::kNone);
  EXPECT_EQ(parse_non_finite_policy("SKIP"), NonFinitePolicy::kSkip);
  EXPECT_EQ(to_string(parse_non_finite_policy("zero")), "zero");
  EXPECT_INVALID(parse_wire_compression("int8"), "compression", "none, bfloat16, float16", "int8");
  EXPECT_INVALID(parse_non_finite_policy("warn"), "ignore, error, skip, zero", "warn");
  EXPECT_INVALID(CommunicationOptions{.first_bytes_per_pack = -3}.validate(),
                 "first_bytes_per_pack", "-3");
  const CommunicationOptions a{.first_bytes_per_pack = 5, .non_finite = NonFinitePolicy::kError};
  const CommunicationOptions merged = a.merged_with({.compression = WireCompression::kFloat16});
  EXPECT_EQ(merged.first_bytes_per_pack, 5);
  EXPECT_EQ(merged.compression, WireCompression::kFloat16);
  EXPECT_EQ(merged.non_finite, NonFinitePolicy::kError);
}

TEST(CommunicationOptionsTest, MergeTakesNonDefaultFields) {
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
  EXPECT_EQ(a.bytes_per_pack, 7);  // operands stay as they were
  EXPECT_EQ(b.timeout, std::nullopt);
}

TEST(CommunicationOptionsTest, GroupMustMatchTheDevices) {
  EXPECT_INVALID(build_cross_device_ops({}, Group{3, 0, cpus(2)}), "world size 3",
                 "2 local devices");
  EXPECT_INVALID(build_cross_device_ops({}, Group{}), "0 local devices");
  EXPECT_NO_THROW(build_cross_device_ops({}, Group{4, 0, cpus(2)}));
}

TEST(CommunicationOptionsTest, TheImplementationChoosesWhenNoNameIsGiven) {
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
                 "'canonical' is named");
}

TEST(CommunicationOptionsTest, MpiIsRefusedWithoutMpirun) {
  const CrossDeviceOpsSpec mpi{"", {.implementation = CommunicationImplementation::kMpi}};
  EXPECT_ERROR(build_cross_device_ops(mpi, Group{2, 0, cpus(2)}), kUnimplemented, "mpi: ", "try ",
               "canonical");
}

TEST(CommunicationOptionsTest, NcclForCpusIsRefused) {
  const CrossDeviceOpsSpec nccl{"", {.implementation = CommunicationImplementation::kNccl}};
  try {
    build_cross_device_ops(nccl, Group{2, 0, cpus(2)});
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {  // of a build with NCCL, or of one without
    EXPECT_TRUE(error.code() == kInvalid || error.code() == ErrorCode::kUnimplemented);
    EXPECT_NE(error.message().find("nccl: "), std::string::npos);
    EXPECT_NE(error.message().find("canonical"), std::string::npos);
  }
}

}  // namespace registry_test
}  // namespace tutti
