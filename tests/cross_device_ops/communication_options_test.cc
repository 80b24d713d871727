// Communication options: checks, names and merging.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cross_device_ops/cdo_helpers.h"

namespace tutti {
namespace {

using namespace cdo_tests;
using std::chrono::milliseconds;

TEST(CommunicationOptionsTest, FieldsAreChecked) {
  const CommunicationOptions defaults;
  EXPECT_EQ(defaults.bytes_per_pack, 0);
  EXPECT_FALSE(defaults.timeout.has_value());
  EXPECT_EQ(defaults.implementation, CommunicationImplementation::kAuto);
  EXPECT_NO_THROW(defaults.validate());
  expect_error(kInvalid, {"bytes_per_pack", "-1"},
               [] { CommunicationOptions{.bytes_per_pack = -1}.validate(); });
  for (const int ms : {0, -5}) {
    expect_error(kInvalid, {"positive timeout", std::to_string(ms)},
                 [&] { CommunicationOptions{.timeout = milliseconds(ms)}.validate(); });
  }
  expect_error(kInvalid, {"bytes_per_pack"},
               [] { make_cross_device_ops("ring", {.bytes_per_pack = -2}); });
}

TEST(CommunicationOptionsTest, ImplementationsAreReadInAnyCase) {
  EXPECT_EQ(parse_communication_implementation("nccl"), CommunicationImplementation::kNccl);
  EXPECT_EQ(parse_communication_implementation("Ring"), CommunicationImplementation::kRing);
  for (const char* name : {"AUTO", "RING", "NCCL", "MPI", "CANONICAL"}) {
    EXPECT_EQ(to_string(parse_communication_implementation(name)), name);
  }
  expect_error(kInvalid, {"AUTO, RING, NCCL, MPI, CANONICAL", "'tree'"},
               [] { parse_communication_implementation("tree"); });
}

TEST(CommunicationOptionsTest, CompressionAndPolicyAreReadInAnyCase) {
  EXPECT_EQ(parse_wire_compression("BFloat16"), WireCompression::kBFloat16);
  EXPECT_EQ(to_string(parse_wire_compression("float16")), "float16");
  EXPECT_EQ(parse_wire_compression("none"), WireCompression::kNone);
  EXPECT_EQ(parse_non_finite_policy("SKIP"), NonFinitePolicy::kSkip);
  EXPECT_EQ(to_string(parse_non_finite_policy("zero")), "zero");
  expect_error(kInvalid, {"compression", "none, bfloat16, float16", "int8"},
               [] { parse_wire_compression("int8"); });
  expect_error(kInvalid, {"ignore, error, skip, zero", "warn"},
               [] { parse_non_finite_policy("warn"); });
  expect_error(kInvalid, {"first_bytes_per_pack", "-3"},
               [] { CommunicationOptions{.first_bytes_per_pack = -3}.validate(); });
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
  expect_error(kInvalid, {"world size 3", "2 local devices"}, [] {
    build_cross_device_ops({}, Group{3, 0, cpus(2)});
  });
  expect_error(kInvalid, {"0 local devices"}, [] { build_cross_device_ops({}, Group{}); });
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
  expect_error(kInvalid, {"RING", "'canonical' is named"},
               [&] { built("canonical", CommunicationImplementation::kRing); });
}

TEST(CommunicationOptionsTest, MpiIsRefusedWithoutMpirun) {
  const CrossDeviceOpsSpec mpi{"", {.implementation = CommunicationImplementation::kMpi}};
  expect_error(ErrorCode::kUnimplemented, {"mpi: ", "try ", "canonical"}, [&] {
    build_cross_device_ops(mpi, Group{2, 0, cpus(2)});
  });
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

}  // namespace
}  // namespace tutti
