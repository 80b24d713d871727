// Collectives over messages when something is wrong: mismatches, missing ranks, aborts, questions.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cross_device_ops/engine_helpers.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace message_engine_errors_test {
using namespace engine_tests;
using internal::message_algorithms;
using internal::message_engine;
using internal::Mismatch;

/// Every rank makes `call`, but `wrong` another one, which differs in `kind`.
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
  if (wrong && kind == Mismatch::kCompression) header.compression = 1;
  engine.run(call.call(), header, late());
}

TEST(MessageEngine, EveryMismatchOfEveryRankIsSeenByAll) {
  for (const std::string& name : message_algorithms()) {
    for (const int size : {2, 3, 4, 7}) {
      for (int kind = 0; kind <= static_cast<int>(Mismatch::kCompression); ++kind) {
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

TEST(MessageEngine, EveryOperationSeesAnotherOneOrName) {
  constexpr int kSize = 5;
  for (int number = 0; number < 7; ++number) {
    const auto collective = static_cast<Collective>(number);
    if (collective == Collective::kAllGather || collective == Collective::kReduceScatter ||
        collective == Collective::kAllToAll) {
      continue;  // below: they need counts
    }
    for (const Mismatch kind : {Mismatch::kOperation, Mismatch::kName}) {
      for (int wrong = 0; wrong < kSize; ++wrong) {
        const Transports transports = in_process_transports(kSize);
        const auto errors = on_ranks(kSize, [&](int rank) {
          const auto engine = message_engine(transports[static_cast<std::size_t>(rank)], "tree");
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

TEST(MessageEngine, PartsOfAnotherLengthAreAMismatchOnAllRanks) {
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
          if (rank == wrong) call.counts[n / 2] = 11;  // all_to_all: sends one too many
          call.inputs = {all.input()};
          call.outputs = {out.elements()};
          CollectiveHeader header = call.header(rank, 0);
          if (collective != Collective::kAllToAll) {
            header.count += rank == wrong ? 1 : 0;
          } else if (rank == wrong && n / 2 == static_cast<std::size_t>(rank)) {
            call.receive_counts[n / 2] = 11;  // to itself it is no mismatch
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
  const std::string wanted = concat(" before the deadline; rank ", group.missing, " did not come");
  EXPECT_NE(first.find(wanted), std::string::npos)
      << group.name << " rank " << rank << ": " << first;
  EXPECT_EQ(message_of(1, late()), first);  // the group stays closed
}

TEST(MessageEngine, ARankThatNeverComesIsNamedByAllOthers) {
  std::vector<LonelyGroup> groups;
  std::vector<std::pair<std::size_t, int>> ranks;  // of which group
  for (const std::string& name : message_algorithms()) {
    for (const auto& [size, missing] : {std::pair{2, 1}, {3, 0}, {5, 2}, {5, 3}}) {
      for (int r = 0; r < size; ++r) {
        if (r != missing) ranks.emplace_back(groups.size(), r);
      }
      groups.push_back({name, size, missing, in_process_transports(size)});
    }
  }
  // All at once: they wait most of the time.
  expect_no_errors(on_ranks(static_cast<int>(ranks.size()), [&](int i) {
    const auto& [group, rank] = ranks[static_cast<std::size_t>(i)];
    expect_missing_is_named(groups[group], rank);
  }));
}

TEST(MessageEngine, ARankThatComputesAnswersAndIsNamed) {
  const Transports transports = in_process_transports(3);
  const auto errors = on_ranks(3, [&](int rank) {
    const auto engine = message_engine(transports[static_cast<std::size_t>(rank)], "tree");
    TypedBytes data(DType::kFloat32, 100);
    if (rank != 1) return all_reduce_call(data).run(*engine, 0, in(std::chrono::seconds(1)));
    // What a thread of its communicator does while its main thread computes.
    for (int i = 0; i < 200; ++i) {
      engine->tend([] { return std::string("is in no collective"); });
      Clock::system().sleep_for(std::chrono::milliseconds(10));
    }
  });
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(errors[static_cast<std::size_t>(rank)]);
    EXPECT_NE(errors[static_cast<std::size_t>(rank)]->message().find("; rank 1 did not come"),
              std::string::npos)
        << errors[static_cast<std::size_t>(rank)]->what();
  }
}

TEST(MessageEngine, WhereaboutsAreWhatRanksSayOfThemselves) {
  const Transports transports = in_process_transports(4);
  Event asked;
  expect_no_errors(on_ranks(3, [&](int rank) {  // rank 3 says nothing
    const auto engine = message_engine(transports[static_cast<std::size_t>(rank)], "ring");
    if (rank > 0) {
      while (!asked.wait_until(in(std::chrono::milliseconds(5)))) {
        engine->tend([rank] { return concat("waits since ", rank, " s"); });
      }
      return;
    }
    std::vector<std::vector<std::string>> answers;
    for (int i = 0; i < 2; ++i) {  // twice: the answer of one question is not that of the next
      answers.push_back(engine->whereabouts(in(std::chrono::seconds(1))));
    }
    asked.set();
    const std::vector<std::string> expected{"", "waits since 1 s", "waits since 2 s",
                                            "does not answer"};
    for (const auto& states : answers) {
      if (states != expected) fail(ErrorCode::kInternal, join(states, "; "));
    }
  }));
}

TEST(MessageEngine, AbortEndsTheCallsOfAllRanks) {
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

TEST(MessageEngine, ARankThatIsGoneEndsTheCallsOfTheOthers) {
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
      EXPECT_NE(errors[rank]->message().find("gone"), std::string::npos) << errors[rank]->what();
    }
  }
}

}  // namespace message_engine_errors_test
}  // namespace tutti
