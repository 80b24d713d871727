// Plugins in shared libraries: a good one is an operation like any other, a bad one a clear error.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/registry.h"

#include <gmock/gmock.h>

#include <fstream>
#include <functional>
#include <numeric>

#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/plugin/abi_cross_device_ops.h"
#include "tests/cross_device_ops/cdo_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace plugin_test {
using namespace cdo_tests;
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

TEST(Plugin, SaysWhetherItIsSliceable) {
  const auto canonical = make_op(load_cross_device_ops_plugin(path_of("canonical")), 2);
  EXPECT_TRUE(canonical->sliceable());
  EXPECT_EQ(canonical->determinism(), Determinism::kCanonical);
  for (const char* const kind : {"good", "older"}) {
    EXPECT_FALSE(make_op(load_cross_device_ops_plugin(path_of(kind)), 2)->sliceable()) << kind;
  }
}

TEST(Plugin, IsToldGroupAndOptionsAndWritesIntoTheLog) {
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

TEST(Plugin, TablesOfOtherVersionsAreReadByTheirSize) {
  const std::string older = load_cross_device_ops_plugin(path_of("older"));
  EXPECT_EQ(make_op(older, 2)->determinism(), Determinism::kNone);  // the default
  EXPECT_EQ(sums_of(older, 2), (std::vector<float>{3, 3}));
  const std::string newer = load_cross_device_ops_plugin(path_of("newer"));
  EXPECT_EQ(make_op(newer, 2)->determinism(), Determinism::kRunToRun);
  EXPECT_EQ(sums_of(newer, 2), (std::vector<float>{3, 3}));
  // From before plugins could span processes.
  const std::string one_process = load_cross_device_ops_plugin(path_of("one_process"));
  const auto op = make_op(one_process, 2);
  EXPECT_EQ(sums_of(one_process, 2), (std::vector<float>{3, 3}));
  EXPECT_FALSE(op->spans_processes());
  EXPECT_TRUE(op->provides(Collective::kAllReduce));
  EXPECT_FALSE(op->provides(Collective::kBroadcast));
  EXPECT_ERROR(build_cross_device_ops(make_cross_device_ops(one_process), {4, 0, cpus(2)}),
               kUnimplemented, "plugin_one_process", "within one process", "got 4");
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
  EXPECT_ERROR(load_cross_device_ops_plugin(path_of("taken")), kAlreadyExists, path_of("taken"),
               "'ring' is taken");
  EXPECT_EQ(registered_cross_device_ops(), before);
}

TEST(Plugin, FilesThatAreMissingOrNoLibraryAreNamed) {
  EXPECT_ERROR(load_cross_device_ops_plugin("./nowhere.so"), kNotFound, "'./nowhere.so'",
               "no such file");
  EXPECT_INVALID(load_cross_device_ops_plugin("nowhere.so"), "'nowhere.so'", "cannot be loaded",
                 "try a path");
  const std::string text = ::testing::TempDir() + "/tutti_no_library.so";
  std::ofstream(text) << "not a library";
  EXPECT_INVALID(load_cross_device_ops_plugin(text), text, "expected a shared library");
}

TEST(Plugin, ItsErrorsKeepCodeAndText) {
  const std::string fails = load_cross_device_ops_plugin(path_of("create_fails"));
  EXPECT_ERROR(make_op(fails, 2), kResourceExhausted, "plugin_create_fails",
               "create failed: no fabric", path_of("create_fails"));
  const std::string silent = load_cross_device_ops_plugin(path_of("create_is_silent"));
  EXPECT_ERROR(make_op(silent, 2), kInternal, "code 0", "it says: nothing");
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

TEST(Plugin, MembersBeyondTheLengthOfItsTableAreNotRead) {
  const std::string name = load_cross_device_ops_plugin(path_of("without_options"));
  EXPECT_EQ(sums_of(name, 3), (std::vector<float>{6, 6, 6}));
  EXPECT_EQ(make_op(name, 2)->max_relative_error(), 0.0);
  EXPECT_INVALID(make_cross_device_ops(name, {}, "k=1"), "plugin_without_options has no option 'k'",
                 "takes none");
}

using internal::carry_out_unchecked;

constexpr int kProcesses = 2, kReplicas = 2, kMembers = kProcesses * kReplicas;

// As two processes of two replicas each would: threads that share nothing but the store.
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

// A process's part of a call: as many values per replica as given, member m's are 10m, 10m+1, ...
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

TEST(PluginBetweenProcesses, AllCollectivesOfItsOwnReachAllMembers) {
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

    const std::size_t counts[] = {0, 2, 1, 1};  // member r's input, or its part
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

TEST(PluginBetweenProcesses, WhatItDoesNotBringCannotBeComposed) {
  const std::string name = load_cross_device_ops_plugin(path_of("store_all_reduce"));
  run_processes(name, {}, [](CrossDeviceOps& op, int first) {
    EXPECT_FALSE(op.provides(Collective::kBroadcast));
    Lists all(first, 2);
    const std::size_t counts[] = {1, 1, 1, 1};
    expect_error(ErrorCode::kUnimplemented, {"all_gather between processes", "of its own"}, [&] {
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

TEST(PluginBetweenProcesses, DeadlinesAndAbortsEndACall) {
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

TEST(PluginBetweenProcesses, ItNeedsTheGroupsStore) {
  const std::string name = load_cross_device_ops_plugin(path_of("store"));
  EXPECT_INVALID(build_cross_device_ops(make_cross_device_ops(name), {4, 0, cpus(2)}),
                 "plugin_store", "key-value store", "Group::store");
  EXPECT_ERROR(make_op(name, 2), kFailedPrecondition,
               "the group has no store");  // one process: it may do without, this one does not
}

}  // namespace plugin_test
}  // namespace tutti
