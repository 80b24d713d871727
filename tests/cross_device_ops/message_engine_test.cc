// Tests collectives that exchange messages between threads: result bits, segments, bytes sent,
// mismatches, and missing ranks.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/algorithm.h"
#include "tests/cross_device_ops/engine_helpers.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/random.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::message_engine_test {
using namespace engine_tests;
using internal::message_algorithms;
using internal::message_engine;
using internal::Mismatch;

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

/// Runs body(engine) on each rank's thread.
void with_engines(std::string_view algorithm, int size,
                  const std::function<void(CollectiveEngine&)>& body) {
  const Transports transports = in_process_transports(size);
  expect_no_errors(on_ranks(size, [&](int rank) {
    const auto engine = message_engine(transports[static_cast<std::size_t>(rank)], algorithm);
    body(*engine);
  }));
}

TEST(MessageEngine, LargeBuffersAreSentInSegments) {
  for (const std::string& name : message_algorithms()) {
    for (const int size : {2, 3, 5}) {
      SCOPED_TRACE(concat(name, ", ", size, " ranks"));
      with_engines(name, size, [&](CollectiveEngine& engine) {
        TypedBytes data(DType::kFloat64, 200'003);
        for (std::size_t i = 0; i < data.count(); ++i) {
          data.set(i, static_cast<double>((i + static_cast<std::size_t>(engine.rank())) % 7));
        }
        all_reduce_call(data).run(engine, 0);
        for (std::size_t i = 0; i < data.count(); ++i) {
          double expected = 0;
          for (std::size_t r = 0; r < static_cast<std::size_t>(size); ++r) {
            expected += static_cast<double>((i + r) % 7);
          }
          if (data.get(i) == expected) continue;
          fail(ErrorCode::kInternal, "element ", i, ": expected ", expected, ", got ", data.get(i));
        }
      });
    }
  }
}

TEST(MessageEngine, AllGatherWorksInPlaceWithMoreRanksThanPostedReceives) {
  for (const std::string& name : message_algorithms()) {
    with_engines(name, 16, [&](CollectiveEngine& engine) {
      TypedBytes all(DType::kInt32, 160);
      const auto own = static_cast<std::size_t>(engine.rank()) * 10;
      for (std::size_t i = own; i < own + 10; ++i) all.set(i, static_cast<double>(i));
      TestCall call{.collective = Collective::kAllGather, .dtype = DType::kInt32, .count = 160};
      call.inputs = {{all.data() + own * sizeof(std::int32_t), 10, DType::kInt32}};
      call.outputs = {all.elements()};
      call.counts.assign(16, 10);
      call.run(engine, 0, late());
      for (std::size_t i = 0; i < 160; ++i) {
        if (all.get(i) == static_cast<double>(i)) continue;
        fail(ErrorCode::kInternal, "element ", i, ": expected ", i, ", got ", all.get(i));
      }
    });
  }
}

/// Values of widely different magnitudes, and signed zeros, so that a different order of operands
/// changes the bits.
const std::vector<std::vector<double>>& wild_values() {
  static const auto values = [] {
    std::vector<std::vector<double>> all(11, std::vector<double>(20'011));
    for (std::size_t r = 0; r < all.size(); ++r) {
      const RandomStream stream(RandomKey{17, kUserPurpose, r});
      for (std::size_t i = 0; i < all[r].size(); ++i) {
        const double zero = (r + i / 5) % 2 == 0 ? 0.0 : -0.0;
        const double number = stream.normal(i) * std::pow(10.0, (r * 3 + i) % 5);
        all[r][i] = i % 5 == 0 ? zero : number;
      }
    }
    return all;
  }();
  return values;
}

void fill_wildly(TypedBytes& data, int rank) {
  const std::vector<double>& values = wild_values()[static_cast<std::size_t>(rank)];
  for (std::size_t i = 0; i < data.count(); ++i) data.set(i, values[i]);
}

void expect_tree_bits(std::string_view name, int size, ReduceOp op, DType dtype,
                      std::size_t count) {
  SCOPED_TRACE(concat(name, ", ", size, " ranks, ", op, " of ", count, " x ", dtype));
  std::vector<TypedBytes> values;
  std::vector<const std::byte*> starts;
  for (int r = 0; r < size; ++r) {
    values.emplace_back(dtype, count);
    fill_wildly(values.back(), r);
  }
  for (const TypedBytes& value : values) starts.push_back(value.data());
  TypedBytes expected(dtype, count);
  reduce_along_tree(op, dtype, starts, expected.data(), count);
  with_engines(name, size, [&](CollectiveEngine& engine) {
    if (!engine.supports(Collective::kAllReduce, op, dtype)) return;
    TypedBytes& data = values[static_cast<std::size_t>(engine.rank())];
    all_reduce_call(data, op).run(engine, 0);
    if (!data.same_bytes(expected)) fail(ErrorCode::kInternal, "the bits differ from the tree's");
  });
}

TEST(MessageEngine, CanonicalAlgorithmsMatchTreeBitwise) {
  for (const std::string& name : message_algorithms()) {
    if (name == "ring") continue;
    for (const int size : {2, 3, 5, 6, 7, 8, 11}) {
      for (const ReduceOp op : kOps) {
        for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
          expect_tree_bits(name, size, op, dtype, 257);
        }
      }
      expect_tree_bits(name, size, ReduceOp::kSum, DType::kFloat32, 20'011);
    }
  }
}

TEST(MessageEngine, RingMatchesLocalRingBitwise) {
  constexpr int kSize = 5;
  constexpr std::size_t kCount = 1003;
  std::vector<TypedBytes> local;
  std::vector<ReplicaBuffer> buffers;
  for (int r = 0; r < kSize; ++r) {
    local.emplace_back(DType::kFloat32, kCount);
    fill_wildly(local.back(), r);
  }
  std::vector<Device> devices;
  for (int r = 0; r < kSize; ++r) {
    devices.push_back({DeviceType::kCpu, r});
    TypedBytes& data = local[static_cast<std::size_t>(r)];
    buffers.push_back({data.data(), kCount, DType::kFloat32, devices.back()});
  }
  build_cross_device_ops(make_cross_device_ops("ring"), Group{kSize, 0, devices})
      ->all_reduce_in_place(ReduceOp::kSum, buffers);
  with_engines("ring", kSize, [&](CollectiveEngine& engine) {
    TypedBytes data(DType::kFloat32, kCount);
    fill_wildly(data, engine.rank());
    all_reduce_call(data).run(engine, 0);
    if (!data.same_bytes(local[0])) fail(ErrorCode::kInternal, "the bits differ from local[0]");
  });
}

TEST(MessageEngine, SendsScheduledMessagesPlusOneHeader) {
  for (const internal::Algorithm& algorithm : internal::algorithms()) {
    for (const int size : {1, 2, 3, 6, 8}) {
      const Transports transports = in_process_transports(size);
      expect_no_errors(on_ranks(size, [&](int rank) {
        Transport& transport = *transports[static_cast<std::size_t>(rank)];
        const auto engine =
            message_engine(transports[static_cast<std::size_t>(rank)], algorithm.name);
        std::uint64_t sequence = 0;
        for (const std::size_t count : {0, 1, 1000, 200'000}) {
          internal::CallShape shape{.size = size, .rank = rank, .count = count};
          const internal::Schedule schedule = make_schedule(algorithm, shape);
          const Traffic expected = traffic_of(schedule);
          const bool greets = begins_with_send(schedule, (rank + 1) % size);
          const TransportStats before = transport.stats();
          TypedBytes data(DType::kFloat32, count);
          all_reduce_call(data).run(*engine, sequence++);
          const TransportStats after = transport.stats();
          const std::uint64_t header = size == 1 ? 0 : internal::kEncodedHeaderBytes;
          const std::uint64_t alone = size == 1 || greets ? 0 : 1;
          if (after.messages_sent - before.messages_sent != expected.messages + alone ||
              after.bytes_sent - before.bytes_sent != expected.elements * 4 + header) {
            fail(ErrorCode::kInternal, algorithm.name, ", rank ", rank, " of ", size, ", ", count,
                 " elements: expected ", expected.messages + alone, " messages and ",
                 expected.elements * 4 + header, " bytes, sent ",
                 after.messages_sent - before.messages_sent, " and ",
                 after.bytes_sent - before.bytes_sent);
          }
        }
      }));
    }
  }
}

TEST(MessageEngine, GroupsRunConcurrentlyOnSeveralThreads) {
  constexpr int kSize = 6;
  for (const std::string& name : message_algorithms()) {
    const Transports transports = in_process_transports(kSize);
    // Each rank has two threads: one for its group of even or odd ranks, one for its pair of ranks.
    std::vector<std::unique_ptr<CollectiveEngine>> engines;
    for (const auto& transport : transports) engines.push_back(message_engine(transport, name));
    expect_no_errors(on_ranks(2 * kSize, [&](int thread) {
      const int rank = thread / 2;
      CollectiveEngine& whole = *engines[static_cast<std::size_t>(rank)];
      const std::vector<int> members = thread % 2 == 0
                                           ? std::vector{rank % 2, rank % 2 + 2, rank % 2 + 4}
                                           : std::vector{rank / 2 * 2, rank / 2 * 2 + 1};
      const auto engine = whole.subgroup(members, static_cast<std::uint32_t>(1 + thread % 2));
      if (members[static_cast<std::size_t>(engine->rank())] != rank) {
        fail(ErrorCode::kInternal, "subgroup: engine->rank() is not the position of rank ", rank);
      }
      for (std::uint64_t call = 0; call < 50; ++call) {
        TypedBytes data(DType::kInt64, 100);
        for (std::size_t i = 0; i < 100; ++i) data.set(i, rank + static_cast<double>(call));
        all_reduce_call(data).run(*engine, call);
        double expected = 0;
        for (const int member : members) expected += member + static_cast<double>(call);
        if (data.get(99) == expected) continue;
        fail(ErrorCode::kInternal, "sum: expected ", expected, ", got ", data.get(99));
      }
    }));
  }
}

TEST(MessageEngine, ReportsNameAndSupportedReductions) {
  const auto transport = in_process_transports(1)[0];
  for (const std::string& name : message_algorithms()) {
    const auto engine = message_engine(transport, name);
    EXPECT_EQ(engine->name(), name);
    const bool once = name == "canonical" || name == "reduction_to_one_device";
    EXPECT_EQ(engine->supports(Collective::kAllReduce, ReduceOp::kSum, DType::kFloat16), once);
    EXPECT_TRUE(engine->supports(Collective::kBroadcast, ReduceOp::kSum, DType::kFloat16));
    EXPECT_TRUE(engine->supports(Collective::kReduce, ReduceOp::kMax, DType::kBool));
    EXPECT_FALSE(engine->supports(Collective::kReduce, ReduceOp::kSum, DType::kBool));
    EXPECT_EQ(engine->determinism(),
              name == "ring" ? Determinism::kRunToRun : Determinism::kCanonical);
  }
  EXPECT_ERROR(message_engine(transport, "gossip"), kNotFound, "'gossip'",
               "canonical, ring, hierarchical_copy");
}

/// Runs a collective on one rank. If `wrong`, this rank's call differs from those of the other
/// ranks in the property that `kind` names.
void run_with_mismatch(CollectiveEngine& engine, Mismatch kind, Collective collective, bool wrong) {
  TypedBytes input(DType::kFloat32, 300), output(DType::kFloat32, 300);
  TypedBytes longer(DType::kFloat32, 301), wider(DType::kFloat64, 300);
  const bool reduces = collective == Collective::kReduce;
  TestCall call{.collective = collective, .count = 300};
  call.inputs = {input.input()};
  call.outputs = {output.elements()};
  call.root = reduces || collective == Collective::kBroadcast ? 1 : 0;
  CollectiveHeader header = call.header(engine.rank(), 17);
  if (wrong && kind == Mismatch::kOperation) {
    call.collective =
        collective == Collective::kBarrier ? Collective::kAllReduce : Collective::kBarrier;
    header.collective = call.collective;
  }
  if (wrong && kind == Mismatch::kReduceOp) call.op = header.op = ReduceOp::kMax;
  if (wrong && kind == Mismatch::kDType) {
    call.dtype = header.dtype = DType::kFloat64;
    call.inputs = {wider.input()};
    call.outputs = {wider.elements()};
  }
  if (wrong && kind == Mismatch::kCount) {
    call.count = header.count = 301;
    call.inputs = {longer.input()};
    call.outputs = {longer.elements()};
  }
  if (wrong && kind == Mismatch::kDevice) header.on_gpu = 1;
  if (wrong && kind == Mismatch::kRoot) call.root = header.root = 0;
  if (wrong && kind == Mismatch::kGroup) header.group = 5;
  if (wrong && kind == Mismatch::kOrder) header.sequence = 18;
  if (wrong && kind == Mismatch::kShape) header.shape_hash = 9;
  if (!wrong && kind == Mismatch::kShape) header.shape_hash = 8;
  if (wrong && kind == Mismatch::kName) header.name_hash = 9;
  engine.run(call.call(), header, late());
}

TEST(MessageEngine, EveryMismatchIsReportedOnAllRanks) {
  for (const std::string& name : message_algorithms()) {
    for (const int size : {2, 3, 4, 7}) {
      for (int kind = 0; kind <= static_cast<int>(Mismatch::kName); ++kind) {
        const auto mismatch = static_cast<Mismatch>(kind);
        Collective collective = Collective::kAllReduce;
        if (mismatch == Mismatch::kRoot) {
          collective = size % 2 == 0 ? Collective::kReduce : Collective::kBroadcast;
        }
        for (int wrong = 0; wrong < size; ++wrong) {
          SCOPED_TRACE(concat(name, ", ", size, " ranks, ", to_string(mismatch), " of ", wrong));
          const Transports transports = in_process_transports(size);
          const auto errors = on_ranks(size, [&](int rank) {
            const auto engine = message_engine(transports[static_cast<std::size_t>(rank)], name);
            run_with_mismatch(*engine, mismatch, collective, rank == wrong);
          });
          for (const auto& error : errors) {
            ASSERT_TRUE(error);
            EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument) << error->what();
            const std::string start =
                concat("collective mismatch (", to_string(mismatch), "): rank ");
            EXPECT_EQ(error->message().find(start), 0u) << error->what();
            EXPECT_NE(error->message().find(concat("rank ", wrong, " calls ")), std::string::npos)
                << error->what();
          }
        }
      }
    }
  }
}

TEST(MessageEngine, EveryCollectiveDetectsDifferentOperationOrName) {
  constexpr int kSize = 5;
  for (int number = 0; number < 7; ++number) {
    const auto collective = static_cast<Collective>(number);
    if (collective == Collective::kAllGather || collective == Collective::kReduceScatter ||
        collective == Collective::kAllToAll) {
      continue;  // takes counts, so DifferentChunkLengthsFailOnAllRanks tests it
    }
    for (const Mismatch kind : {Mismatch::kOperation, Mismatch::kName}) {
      for (int wrong = 0; wrong < kSize; ++wrong) {
        const Transports transports = in_process_transports(kSize);
        const auto errors = on_ranks(kSize, [&](int rank) {
          const auto engine =
              message_engine(transports[static_cast<std::size_t>(rank)], "hierarchical_copy");
          run_with_mismatch(*engine, kind, collective, rank == wrong);
        });
        for (const auto& error : errors) {
          ASSERT_TRUE(error) << to_string(collective) << " " << wrong;
          EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument) << error->what();
        }
      }
    }
  }
}

TEST(MessageEngine, DifferentChunkLengthsFailOnAllRanks) {
  for (const int size : {2, 3, 5}) {
    const auto n = static_cast<std::size_t>(size);
    for (int wrong = 0; wrong < size; ++wrong) {
      for (const auto collective :
           {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllToAll}) {
        const Transports transports = in_process_transports(size);
        const auto errors = on_ranks(size, [&](int rank) {
          const auto engine = message_engine(transports[static_cast<std::size_t>(rank)], "ring");
          TypedBytes all(DType::kInt32, 10 * n + 1), out(DType::kInt32, 10 * n + 1);
          TestCall call{.collective = collective, .dtype = DType::kInt32, .count = 10 * n};
          call.counts.assign(n, 10);
          call.receive_counts.assign(n, 10);
          if (rank == wrong) call.counts[n / 2] = 11;  // in all_to_all, sends one element too many
          call.inputs = {all.input()};
          call.outputs = {out.elements()};
          CollectiveHeader header = call.header(rank, 0);
          if (collective != Collective::kAllToAll) {
            header.count += rank == wrong ? 1 : 0;
          } else if (rank == wrong && n / 2 == static_cast<std::size_t>(rank)) {
            call.receive_counts[n / 2] = 11;  // a rank's chunk for itself always matches
          }
          engine->run(call.call(), header, late());
        });
        if (collective == Collective::kAllToAll && wrong == size / 2) {
          expect_no_errors(errors);
          continue;
        }
        for (const auto& error : errors) {
          ASSERT_TRUE(error) << to_string(collective) << ", " << size << " ranks, wrong " << wrong;
          EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument) << error->what();
          EXPECT_EQ(error->message().find("collective mismatch (count)"), 0u) << error->what();
        }
      }
    }
  }
}

struct LonelyGroup {
  std::string name;
  int size;
  int missing;
  Transports transports;
};

void expect_missing_is_named(const LonelyGroup& group, int rank) {
  const auto engine = message_engine(group.transports[static_cast<std::size_t>(rank)], group.name);
  TypedBytes data(DType::kFloat32, 100);
  const TestCall call = all_reduce_call(data);
  const auto message_of = [&](std::uint64_t sequence, TimePoint deadline) -> std::string {
    try {
      call.run(*engine, sequence, deadline);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kDeadlineExceeded) return error.message();
      throw;
    }
    return "no error";
  };
  const std::string first = message_of(0, in(std::chrono::milliseconds(50)));
  const std::string wanted = concat(" before the deadline; rank ", group.missing, " did not join");
  EXPECT_NE(first.find(wanted), std::string::npos)
      << group.name << " rank " << rank << ": " << first;
  EXPECT_EQ(message_of(1, late()), first);  // the group remains unusable
}

TEST(MessageEngine, TimeoutOnAllRanksNamesMissingRank) {
  std::vector<LonelyGroup> groups;
  std::vector<std::pair<std::size_t, int>> ranks;  // pairs of group index and rank
  for (const std::string& name : message_algorithms()) {
    for (const auto& [size, missing] : {std::pair{2, 1}, {3, 0}, {5, 2}, {5, 3}}) {
      for (int r = 0; r < size; ++r) {
        if (r != missing) ranks.emplace_back(groups.size(), r);
      }
      groups.push_back({name, size, missing, in_process_transports(size)});
    }
  }
  // The groups run concurrently to save time, because they mostly wait.
  expect_no_errors(on_ranks(static_cast<int>(ranks.size()), [&](int i) {
    const auto& [group, rank] = ranks[static_cast<std::size_t>(i)];
    expect_missing_is_named(groups[group], rank);
  }));
}

TEST(MessageEngine, BusyRankAnswersQueriesAndIsReported) {
  const Transports transports = in_process_transports(3);
  const auto errors = on_ranks(3, [&](int rank) {
    const auto engine =
        message_engine(transports[static_cast<std::size_t>(rank)], "hierarchical_copy");
    TypedBytes data(DType::kFloat32, 100);
    if (rank != 1) return all_reduce_call(data).run(*engine, 0, in(std::chrono::seconds(1)));
    // Rank 1 acts like a communicator's thread while the main thread computes.
    for (int i = 0; i < 200; ++i) {
      engine->answer_state_queries([] { return std::string("is in no collective"); });
      Clock::system().sleep_for(std::chrono::milliseconds(10));
    }
  });
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(errors[static_cast<std::size_t>(rank)]);
    EXPECT_NE(errors[static_cast<std::size_t>(rank)]->message().find("; rank 1 did not join"),
              std::string::npos)
        << errors[static_cast<std::size_t>(rank)]->what();
  }
}

TEST(MessageEngine, ReturnsStateOfEachRank) {
  const Transports transports = in_process_transports(4);
  Event asked;
  expect_no_errors(on_ranks(3, [&](int rank) {  // rank 3 never answers
    const auto engine = message_engine(transports[static_cast<std::size_t>(rank)], "ring");
    if (rank > 0) {
      while (!asked.wait_until(in(std::chrono::milliseconds(5)))) {
        engine->answer_state_queries([rank] { return concat("has waited ", rank, " s"); });
      }
      return;
    }
    std::vector<std::vector<std::string>> answers;
    // replies to the first request must not be mistaken for replies to the second
    for (int i = 0; i < 2; ++i) {
      answers.push_back(engine->states_of_ranks(in(std::chrono::seconds(1))));
    }
    asked.set();
    const std::vector<std::string> expected{"", "has waited 1 s", "has waited 2 s",
                                            "does not answer"};
    for (const auto& states : answers) {
      if (states != expected) fail(ErrorCode::kInternal, "unexpected states: ", join(states, "; "));
    }
  }));
}

TEST(MessageEngine, AbortEndsCallsOfAllRanks) {
  for (const std::string& name : message_algorithms()) {
    const Transports transports = in_process_transports(4);
    const auto errors = on_ranks(4, [&](int rank) {
      const auto engine = message_engine(transports[static_cast<std::size_t>(rank)], name);
      if (rank == 2) engine->abort(Error(ErrorCode::kInternal, "the house is on fire"));
      TypedBytes data(DType::kFloat32, 100);
      all_reduce_call(data).run(*engine, 0);
    });
    for (const auto& error : errors) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code(), ErrorCode::kAborted);
      EXPECT_NE(error->message().find("the house is on fire"), std::string::npos);
    }
  }
}

TEST(MessageEngine, ExitOfOneRankEndsCallsOnAllRanks) {
  for (const std::string& name : message_algorithms()) {
    Transports transports = in_process_transports(4);
    const auto errors = on_ranks(4, [&](int rank) {
      auto& transport = transports[static_cast<std::size_t>(rank)];
      if (rank == 2) return transport.reset();
      const auto engine = message_engine(std::move(transport), name);
      TypedBytes data(DType::kFloat32, 100);
      all_reduce_call(data).run(*engine, 0);
    });
    for (const std::size_t rank : {0, 1, 3}) {
      ASSERT_TRUE(errors[rank]) << name;
      const ErrorCode code = errors[rank]->code();
      EXPECT_TRUE(code == ErrorCode::kUnavailable || code == ErrorCode::kAborted);
      EXPECT_NE(errors[rank]->message().find("has exited"), std::string::npos)
          << errors[rank]->what();
    }
  }
}

}  // namespace tutti::message_engine_test
