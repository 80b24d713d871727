// Plugins in shared libraries: a good one is an operation like any other, a bad one a clear error.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/plugin.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/cross_device_ops/cdo_helpers.h"
#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/plugin/plugin_table.h"

namespace tutti {
namespace plugin_test {

using cdo_tests::cpus;
using cdo_tests::expect_error;
using cdo_tests::kInvalid;
using cdo_tests::make_op;
using ::testing::Contains;
using ::testing::HasSubstr;

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

TEST(Plugin, IsAnOperationLikeAnyOther) {
  const std::string name = load_cross_device_ops_plugin(path_of("good"));
  EXPECT_EQ(name, "plugin_good");
  EXPECT_EQ(load_cross_device_ops_plugin(path_of("good")), name);  // again: the same
  EXPECT_THAT(registered_cross_device_ops(), Contains(name));
  EXPECT_EQ(sums_of(name, 3), (std::vector<float>{6, 6, 6}));
  EXPECT_EQ(make_op(name, 2)->determinism(), Determinism::kRunToRun);
  // What it does not support is done without it.
  EXPECT_EQ(sums_of(name, 2, DType::kInt32), (std::vector<float>{3, 3}));
  EXPECT_EQ(sums_of(name, 2, DType::kFloat16), (std::vector<float>{3, 3}));
}

TEST(Plugin, IsToldGroupAndOptionsAndWritesIntoTheLog) {
  std::vector<std::string> lines;
  const LogSink before =
      set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  const std::string name = load_cross_device_ops_plugin(path_of("good"));
  (void)build_cross_device_ops(
      make_cross_device_ops(name, {.bytes_per_pack = 1024, .timeout = std::chrono::seconds(2)}),
      Group{2, 0, cpus(2)});
  set_log_sink(before);
  EXPECT_THAT(lines, Contains(HasSubstr("plugin_good: 2 of 2, first 0, ")));
  EXPECT_THAT(lines, Contains(HasSubstr(R"("bytes_per_pack":1024)")));
  EXPECT_THAT(lines, Contains(HasSubstr(R"("timeout_ms":2000)")));
}

TEST(Plugin, TablesOfOtherVersionsAreReadByTheirSize) {
  const std::string older = load_cross_device_ops_plugin(path_of("older"));
  EXPECT_EQ(make_op(older, 2)->determinism(), Determinism::kNone);  // the default
  EXPECT_EQ(sums_of(older, 2), (std::vector<float>{3, 3}));
  const std::string newer = load_cross_device_ops_plugin(path_of("newer"));
  EXPECT_EQ(make_op(newer, 2)->determinism(), Determinism::kRunToRun);
  EXPECT_EQ(sums_of(newer, 2), (std::vector<float>{3, 3}));
}

TEST(Plugin, WhatIsNoPluginIsRefusedWithTheReason) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"no_symbol", {"is no plugin", TUTTI_PLUGIN_SYMBOL}},
      {"version_2", {"version 2", "expected version 1", "try"}},
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
  expect_error(ErrorCode::kAlreadyExists, {path_of("taken"), "'ring' is taken"},
               [] { load_cross_device_ops_plugin(path_of("taken")); });
  EXPECT_EQ(registered_cross_device_ops(), before);
}

TEST(Plugin, FilesThatAreMissingOrNoLibraryAreNamed) {
  expect_error(ErrorCode::kNotFound, {"'./nowhere.so'", "no such file"},
               [] { load_cross_device_ops_plugin("./nowhere.so"); });
  expect_error(kInvalid, {"'nowhere.so'", "cannot be loaded", "try a path"},
               [] { load_cross_device_ops_plugin("nowhere.so"); });
  const std::string text = ::testing::TempDir() + "/tutti_no_library.so";
  std::ofstream(text) << "not a library";
  expect_error(kInvalid, {text, "expected a shared library"},
               [&] { load_cross_device_ops_plugin(text); });
}

TEST(Plugin, ItsErrorsKeepCodeAndText) {
  const std::string fails = load_cross_device_ops_plugin(path_of("create_fails"));
  expect_error(ErrorCode::kResourceExhausted,
               {"plugin_create_fails", "create failed: no fabric", path_of("create_fails")},
               [&] { make_op(fails, 2); });
  const std::string silent = load_cross_device_ops_plugin(path_of("create_is_silent"));
  expect_error(ErrorCode::kInternal, {"code 0", "it says: nothing"}, [&] { make_op(silent, 2); });
  const std::string late = load_cross_device_ops_plugin(path_of("reduce_fails"));
  expect_error(ErrorCode::kDeadlineExceeded, {"all_reduce failed: peer 3 is silent for -1 ms"},
               [&] { sums_of(late, 2); });
  const std::string odd = load_cross_device_ops_plugin(path_of("odd_code"));
  expect_error(ErrorCode::kInternal, {"all_reduce failed with code 99", "xxxx"},
               [&] { sums_of(odd, 2); });
  const std::string grade = load_cross_device_ops_plugin(path_of("odd_grade"));
  expect_error(ErrorCode::kInternal, {"determinism() returned 7", "from 0 to 2"},
               [&] { make_op(grade, 2); });
}

}  // namespace plugin_test
}  // namespace tutti
