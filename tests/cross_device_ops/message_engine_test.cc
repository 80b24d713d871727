// Collectives over messages among threads: results, bits, bytes sent.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/algorithm.h"
#include "tests/cross_device_ops/engine_helpers.h"
#include "tests/cross_device_ops/traffic.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/random.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti {
namespace message_engine_test {
using namespace engine_tests;
using internal::message_algorithms;
using internal::message_engine;
using testing::expect_error;

constexpr int kWorlds[] = {1, 2, 3, 5, 7, 8, 16};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

/// Small whole numbers: exact in every type and order. Products stay below 2^10.
double value_of(ReduceOp op, DType dtype, int rank, std::size_t i) {
  const auto mixed = static_cast<int>((static_cast<std::size_t>(rank) * 7 + i * 3) % 11);
  if (dtype == DType::kBool) return mixed % 3 == 0 ? 1.0 : 0.0;
  if (op == ReduceOp::kProduct) return mixed == 0 ? 2.0 : 1.0;
  return dtype == DType::kUInt8 ? mixed : mixed - 4;
}

double reference(ReduceOp op, DType dtype, int size, std::size_t i) {
  double result = value_of(op, dtype, 0, i);
  for (int r = 1; r < size; ++r) {
    const double value = value_of(op, dtype, r, i);
    if (op == ReduceOp::kSum) result += value;
    if (op == ReduceOp::kProduct) result *= value;
    if (op == ReduceOp::kMin) result = std::min(result, value);
    if (op == ReduceOp::kMax) result = std::max(result, value);
  }
  return result;
}

void fill(TypedBytes& data, ReduceOp op, int rank, std::size_t first = 0) {
  for (std::size_t i = 0; i < data.count(); ++i) {
    data.set(i, value_of(op, data.dtype(), rank, first + i));
  }
}

void expect_reference(const TypedBytes& data, ReduceOp op, int size, std::size_t first = 0) {
  for (std::size_t i = 0; i < data.count(); ++i) {
    const double expected = reference(op, data.dtype(), size, first + i);
    if (data.get(i) != expected) {
      fail(ErrorCode::kInternal, op, " of ", data.dtype(), ", ", data.count(),
           " elements: element ", i, " is ", data.get(i), ", expected ", expected);
    }
  }
}

/// body(engine) on every rank's thread.
void with_engines(std::string_view algorithm, int size,
                  const std::function<void(CollectiveEngine&)>& body) {
  const Transports transports = in_process_transports(size);
  expect_no_errors(on_ranks(size, [&](int rank) {
    const auto engine = message_engine(transports[static_cast<std::size_t>(rank)], algorithm);
    body(*engine);
  }));
}

template <class Body>
void for_supported(const CollectiveEngine& engine, Collective collective, const Body& body) {
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : kOps) {
      if (engine.supports(collective, op, dtype)) body(op, dtype);
    }
  }
}

TEST(MessageEngine, AllReduceEqualsPlainLoops) {
  for (const std::string& name : message_algorithms()) {
    for (const int size : kWorlds) {
      SCOPED_TRACE(concat(name, ", ", size, " ranks"));
      with_engines(name, size, [&](CollectiveEngine& engine) {
        std::uint64_t sequence = 0;
        for_supported(engine, Collective::kAllReduce, [&](ReduceOp op, DType dtype) {
          for (const std::size_t count : {0, 1, 13, 1021}) {
            const std::size_t offset = sequence % 3;  // 1: not aligned
            TypedBytes data(dtype, count, offset);
            fill(data, op, engine.rank());
            all_reduce_call(data, op).run(engine, sequence++);
            expect_reference(data, op, size);

            TypedBytes input(dtype, count), output(dtype, count, offset);
            fill(input, op, engine.rank());
            const TypedBytes before = input;
            TestCall call = all_reduce_call(output, op);
            call.inputs = {input.input()};
            call.run(engine, sequence++);
            expect_reference(output, op, size);
            if (!input.same_bytes(before)) fail(ErrorCode::kInternal, "the input was changed");
          }
        });
      });
    }
  }
}

TEST(MessageEngine, LargeBuffersTravelInSegments) {
  for (const std::string& name : message_algorithms()) {
    for (const int size : {2, 3, 5}) {
      SCOPED_TRACE(concat(name, ", ", size, " ranks"));
      with_engines(name, size, [&](CollectiveEngine& engine) {
        TypedBytes data(DType::kFloat64, 200'003);
        for (std::size_t i = 0; i < data.count(); ++i) {
          const auto value = static_cast<double>((i + static_cast<std::size_t>(engine.rank())) % 7);
          std::memcpy(data.data() + i * sizeof(double), &value, sizeof(double));
        }
        all_reduce_call(data).run(engine, 0);
        for (std::size_t i = 0; i < data.count(); ++i) {
          double expected = 0;
          for (std::size_t r = 0; r < static_cast<std::size_t>(size); ++r) {
            expected += static_cast<double>((i + r) % 7);
          }
          double actual = 0;
          std::memcpy(&actual, data.data() + i * sizeof(double), sizeof(double));
          if (actual != expected) fail(ErrorCode::kInternal, "element ", i, " is ", actual);
        }
      });
    }
  }
}

TEST(MessageEngine, SeveralBuffersAreCombinedAsOne) {
  for (const std::string& name : message_algorithms()) {
    with_engines(name, 3, [&](CollectiveEngine& engine) {
      std::vector<TypedBytes> list;
      for (const std::size_t count : {5, 0, 1000, 17}) list.emplace_back(DType::kInt64, count, 1);
      TestCall call{.op = ReduceOp::kMax, .dtype = DType::kInt64};
      for (TypedBytes& data : list) {
        fill(data, ReduceOp::kMax, engine.rank());
        call.count += data.count();
        call.inputs.push_back(data.input());
        call.outputs.push_back(data.elements());
      }
      call.run(engine, 0);
      for (const TypedBytes& data : list) expect_reference(data, ReduceOp::kMax, 3);
    });
  }
}

TEST(MessageEngine, OtherReductionsEqualPlainLoops) {
  for (const std::string& name : message_algorithms()) {
    for (const int size : kWorlds) {
      SCOPED_TRACE(concat(name, ", ", size, " ranks"));
      with_engines(name, size, [&](CollectiveEngine& engine) {
        const auto own = static_cast<std::size_t>(engine.rank());
        std::uint64_t sequence = 0;
        for_supported(engine, Collective::kReduce, [&](ReduceOp op, DType dtype) {
          for (const std::size_t count : {0, 1, 1021}) {
            TypedBytes input(dtype, count), output(dtype, count);
            fill(input, op, engine.rank());
            const TypedBytes before = input;
            TestCall call{.collective = Collective::kReduce, .op = op, .dtype = dtype};
            call.root = static_cast<int>(sequence) % size;
            call.count = count;
            call.inputs = {input.input()};
            if (call.root == engine.rank()) call.outputs = {output.elements()};
            call.run(engine, sequence++);
            if (call.root == engine.rank()) expect_reference(output, op, size);
            if (!input.same_bytes(before)) fail(ErrorCode::kInternal, "the input was changed");

            TestCall scatter{.collective = Collective::kReduceScatter, .op = op, .dtype = dtype};
            scatter.counts.assign(static_cast<std::size_t>(size), 0);
            for (std::size_t i = 0; i < count; ++i) ++scatter.counts[i * i % scatter.counts.size()];
            const std::size_t first = std::accumulate(
                scatter.counts.begin(), scatter.counts.begin() + engine.rank(), std::size_t{0});
            TypedBytes part(dtype, scatter.counts[own]);
            scatter.count = count;
            scatter.inputs = {input.input()};
            scatter.outputs = {part.elements()};
            scatter.run(engine, sequence++);
            expect_reference(part, op, size, first);
          }
        });
      });
    }
  }
}

TEST(MessageEngine, CopiesOfEveryType) {
  for (const std::string& name : message_algorithms()) {
    for (const int size : kWorlds) {
      SCOPED_TRACE(concat(name, ", ", size, " ranks"));
      const auto n = static_cast<std::size_t>(size);
      with_engines(name, size, [&](CollectiveEngine& engine) {
        const auto own = static_cast<std::size_t>(engine.rank());
        const auto expect = [](double actual, double expected) {
          if (actual != expected) fail(ErrorCode::kInternal, "got ", actual, " for ", expected);
        };
        std::uint64_t sequence = 0;
        for (const DType dtype : kAllDTypes) {
          const auto value = [&](std::size_t rank, std::size_t i) {
            return value_of(ReduceOp::kMax, dtype, static_cast<int>(rank), i);
          };
          TypedBytes data(dtype, dtype == DType::kFloat64 ? 40'003 : 1'003);
          fill(data, ReduceOp::kMax, engine.rank());
          const std::size_t root = sequence % n;
          TestCall{.collective = Collective::kBroadcast,
                   .dtype = dtype,
                   .root = static_cast<int>(root),
                   .count = data.count(),
                   .outputs = {data.elements()}}
              .run(engine, sequence++);
          for (std::size_t i = 0; i < data.count(); ++i) expect(data.get(i), value(root, i));

          TestCall gather{.collective = Collective::kAllGather, .dtype = dtype};
          for (std::size_t r = 0; r < n; ++r) gather.counts.push_back(r * 31 % 7);
          gather.count = std::accumulate(gather.counts.begin(), gather.counts.end(), 0u);
          TypedBytes input(dtype, gather.counts[own]), output(dtype, gather.count, 1);
          fill(input, ReduceOp::kMax, engine.rank());
          gather.inputs = {input.input()};
          gather.outputs = {output.elements()};
          gather.run(engine, sequence++);
          for (std::size_t r = 0, place = 0; r < n; ++r) {
            for (std::size_t i = 0; i < gather.counts[r]; ++i) {
              expect(output.get(place++), value(r, i));
            }
          }

          // Rank r sends (r + 2 s) % 4 elements, those from 10 s on, to rank s.
          TestCall exchange{.collective = Collective::kAllToAll, .dtype = dtype};
          for (std::size_t s = 0; s < n; ++s) {
            exchange.counts.push_back((own + 2 * s) % 4);
            exchange.receive_counts.push_back((s + 2 * own) % 4);
          }
          const auto sum = [](const auto& v) { return std::accumulate(v.begin(), v.end(), 0u); };
          TypedBytes sent(dtype, sum(exchange.counts));
          TypedBytes received(dtype, sum(exchange.receive_counts));
          for (std::size_t s = 0, place = 0; s < n; ++s) {
            for (std::size_t i = 0; i < exchange.counts[s]; ++i) {
              sent.set(place++, value(own, 10 * s + i));
            }
          }
          exchange.inputs = {sent.input()};
          exchange.outputs = {received.elements()};
          exchange.run(engine, sequence++);
          for (std::size_t s = 0, place = 0; s < n; ++s) {
            for (std::size_t i = 0; i < exchange.receive_counts[s]; ++i) {
              expect(received.get(place++), value(s, 10 * own + i));
            }
          }
          TestCall{.collective = Collective::kBarrier}.run(engine, sequence++);
        }
      });
    }
  }
}

TEST(MessageEngine, AllGatherInPlaceAmongMoreRanksThanReceivesArePosted) {
  for (const std::string& name : message_algorithms()) {
    with_engines(name, 16, [&](CollectiveEngine& engine) {
      TypedBytes all(DType::kInt32, 160);
      const auto own = static_cast<std::size_t>(engine.rank()) * 10;
      for (std::size_t i = own; i < own + 10; ++i) all.set(i, static_cast<double>(i));
      TestCall call{.collective = Collective::kAllGather, .dtype = DType::kInt32, .count = 160};
      call.inputs = {{all.data() + own * sizeof(std::int32_t), 10, DType::kInt32}};
      call.outputs = {all.elements()};
      call.counts.assign(16, 10);
      call.run(engine, 0, in_time(std::chrono::seconds(60)));
      for (std::size_t i = 0; i < 160; ++i) {
        if (all.get(i) != static_cast<double>(i)) fail(ErrorCode::kInternal, "element ", i);
      }
    });
  }
}

/// Magnitudes far apart, signed zeros: another order of operands gives other bits.
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
    if (!data.same_bytes(expected)) fail(ErrorCode::kInternal, "other bits");
  });
}

TEST(MessageEngine, CanonicalGradesHaveTheBitsOfTheTree) {
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

TEST(MessageEngine, TheRingHasTheBitsOfTheRingAmongLocalBuffers) {
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
    if (!data.same_bytes(local[0])) fail(ErrorCode::kInternal, "other bits");
  });
}

TEST(MessageEngine, SendsWhatItsScheduleSaysAndOneHeader) {
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
          const bool greets = greets_with_data(schedule, (rank + 1) % size);
          const TransportStats before = transport.stats();
          TypedBytes data(DType::kFloat32, count);
          all_reduce_call(data).run(*engine, sequence++);
          const TransportStats after = transport.stats();
          const std::uint64_t header = size == 1 ? 0 : internal::kEncodedHeaderBytes;
          const std::uint64_t alone = size == 1 || greets ? 0 : 1;
          if (after.messages_sent - before.messages_sent != expected.messages + alone ||
              after.bytes_sent - before.bytes_sent != expected.elements * 4 + header) {
            fail(ErrorCode::kInternal, algorithm.name, ", rank ", rank, " of ", size, ", ", count,
                 " elements: ", after.messages_sent - before.messages_sent, " messages and ",
                 after.bytes_sent - before.bytes_sent, " bytes");
          }
        }
      }));
    }
  }
}

TEST(MessageEngine, GroupsWorkAtOnceFromSeveralThreads) {
  constexpr int kSize = 6;
  for (const std::string& name : message_algorithms()) {
    const Transports transports = in_process_transports(kSize);
    // Two threads per rank: one for its group of the even or odd ranks, one for its pair.
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
        fail(ErrorCode::kInternal, "another rank");
      }
      for (std::uint64_t call = 0; call < 50; ++call) {
        TypedBytes data(DType::kInt64, 100);
        for (std::size_t i = 0; i < 100; ++i) data.set(i, rank + static_cast<double>(call));
        all_reduce_call(data).run(*engine, call);
        double expected = 0;
        for (const int member : members) expected += member + static_cast<double>(call);
        if (data.get(99) != expected) fail(ErrorCode::kInternal, "got ", data.get(99));
      }
    }));
  }
}

TEST(MessageEngine, NamesAndGrades) {
  const auto transport = in_process_transports(1)[0];
  for (const std::string& name : message_algorithms()) {
    const auto engine = message_engine(transport, name);
    EXPECT_EQ(engine->name(), name);
    const bool once = name == "canonical" || name == "reduction_to_one_device" || name == "auto";
    EXPECT_EQ(engine->supports(Collective::kAllReduce, ReduceOp::kSum, DType::kFloat16), once);
    EXPECT_TRUE(engine->supports(Collective::kBroadcast, ReduceOp::kSum, DType::kFloat16));
    EXPECT_TRUE(engine->supports(Collective::kReduce, ReduceOp::kMax, DType::kBool));
    EXPECT_FALSE(engine->supports(Collective::kReduce, ReduceOp::kSum, DType::kBool));
    EXPECT_EQ(engine->determinism(),
              name == "ring" ? Determinism::kRunToRun : Determinism::kCanonical);
  }
  expect_error(ErrorCode::kNotFound, {"'gossip'", "canonical, ring, halving_doubling"},
               [&] { message_engine(transport, "gossip"); });
}

}  // namespace message_engine_test
}  // namespace tutti
