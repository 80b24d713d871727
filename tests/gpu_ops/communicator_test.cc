// Tests communicators on GPU memory, where each rank is a thread with its own stream: equality with
// host results, order in streams, and errors on all ranks.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/communicator.h"

#include <cstring>

#include "tensor/gpu/pinned_memory.h"
#include "tensor/gpu_device.h"
#include "tests/gpu_ops/gpu_ops_helpers.h"
#include "tests/support/ranks.h"
#include "tutti/tensor/half.h"

namespace tutti::testing::communicator_on_gpus_test {

using Communicators = std::vector<std::unique_ptr<Communicator>>;

/// Stream on which tutti does not compute, as if it belonged to another library. Its work runs as
/// late as possible, so work that does not wait for it sees old values.
constexpr StreamId kUsers = StreamId::kCopy;

GpuStream stream_of(int index) {
  return {index, GpuDevice::of(gpu(index)).with_context([](DeviceContext& context) {
            return context.native_stream(kUsers);
          })};
}

/// Values in GPU memory that are written and read on the stream kUsers.
template <class T>
class OnGpu {
 public:
  OnGpu(int index, const std::vector<T>& values)
      : gpu_(GpuDevice::of(gpu(index))),
        count_(values.size()),
        memory_(gpu_.allocate(num_bytes())),
        host_(allocate_pinned(num_bytes())) {
    if (values.empty()) return;
    std::memcpy(host_->data(), values.data(), values.size() * sizeof(T));
    gpu_.with_context([&](DeviceContext& context) {
      context.copy_to_device(memory_->data(), host_->data(), num_bytes(), kUsers);
    });
  }
  ~OnGpu() { gpu_.synchronize(); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  std::span<T> span() const { return {reinterpret_cast<T*>(memory_->data()), count_}; }
  std::vector<T> read() const {
    const auto done = gpu_.with_context([&](DeviceContext& context) {
      context.copy_to_host(host_->data(), memory_->data(), num_bytes(), kUsers);
      return context.record(kUsers);
    });
    gpu_.peers().wait(*done);
    std::vector<T> values(count_);
    if (count_ > 0) std::memcpy(values.data(), host_->data(), count_ * sizeof(T));
    return values;
  }

 private:
  std::size_t num_bytes() const { return std::max<std::size_t>(count_, 1) * sizeof(T); }

  GpuDevice& gpu_;
  const std::size_t count_;
  const BufferRef memory_, host_;
};

/// Same as OnGpu, but the values are in host memory.
template <class T>
class OnHost {
 public:
  OnHost(int, const std::vector<T>& values) : values_(values) {}
  std::span<T> span() { return values_; }
  std::vector<T> read() const { return values_; }

 private:
  std::vector<T> values_;
};

/// Returns one rank's values, which are small enough for sums to be exact in any order.
template <class T>
std::vector<T> numbers_of(int rank, std::size_t count, int seed = 0) {
  std::vector<T> values;
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(static_cast<T>(static_cast<float>((i * 7 + 3) % 11) - 2.0f +
                                    static_cast<float>((rank + seed) % 5)));
  }
  return values;
}

/// Calls every collective on this rank and returns the outputs.
template <template <class> class Memory, class T>
std::vector<std::vector<T>> every_call(Communicator& ranks, int index, const CallOptions& options) {
  const int rank = ranks.rank(), size = ranks.size();
  const auto n = static_cast<std::size_t>(size), own = static_cast<std::size_t>(rank);
  std::vector<std::vector<T>> results;
  const auto keep = [&](auto& memory) { results.push_back(memory.read()); };
  const auto give = [&](std::size_t count) {
    return Memory<T>(index, numbers_of<T>(rank, count, static_cast<int>(results.size())));
  };
  const auto room = [&](std::size_t count) {
    return Memory<T>(index, std::vector<T>(count, T(9)));
  };

  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax}) {
    if (op == ReduceOp::kMean && !is_floating(dtype_of<T>())) continue;
    Memory<T> in_place = give(1000);
    ranks.all_reduce(op, in_place.span(), options);
    keep(in_place);
    Memory<T> from = give(13), to = room(13);
    ranks.all_reduce(op, from.span(), to.span(), options);
    keep(from), keep(to);
    Memory<T> a = give(5), b = give(0), c = give(300);
    const std::vector<Elements> list = {a.span(), b.span(), c.span()};
    ranks.all_reduce(op, list, options);
    keep(a), keep(b), keep(c);
    Memory<T> odd = give(9);  // subspan(1) is misaligned for vector kernels
    ranks.all_reduce(op, odd.span().subspan(1, 7), options);
    keep(odd);
    Memory<T> given = give(17), reduced = room(17);
    ranks.reduce(op, given.span(), reduced.span(), size - 1, options);
    keep(given), keep(reduced);
    Memory<T> whole = give(4 * n), part = room(4);
    ranks.reduce_scatter(op, whole.span(), part.span(), {}, options);
    keep(part);
    std::vector<std::size_t> uneven(n, 3);
    uneven[0] = 0;
    Memory<T> cut = give(3 * n - 3), piece = room(uneven[own]);
    ranks.reduce_scatter(op, cut.span(), piece.span(), uneven, options);
    keep(piece);
  }
  Memory<T> copied = give(21);
  ranks.broadcast(copied.span(), size - 1, options);
  keep(copied);
  Memory<T> mine = give(6), everyones = room(6 * n);
  ranks.all_gather(mine.span(), everyones.span(), {}, options);
  keep(everyones);
  std::vector<std::size_t> counts;
  for (std::size_t r = 0; r < n; ++r) counts.push_back(2 * r);
  Memory<T> some = give(counts[own]), all = room(n * (n - 1));
  ranks.all_gather(some.span(), all.span(), counts, options);
  keep(all);
  Memory<T> sent = give(2 * n), received = room(2 * n);
  ranks.all_to_all(sent.span(), received.span(), {}, {}, options);
  keep(received);
  Memory<T> first = give(40), second = give(50);
  CollectiveHandle one = ranks.start_all_reduce(ReduceOp::kSum, first.span(), options);
  CollectiveHandle two = ranks.start_broadcast(second.span(), 0, options);
  two.wait(), one.wait();
  keep(first), keep(second);
  ranks.barrier(options);
  return results;
}

/// Returns the GPU of a rank. With `shared`, all ranks share one GPU, which NCCL refuses.
int gpu_of_rank(int rank, bool shared) { return shared ? 1 : rank; }

template <class T>
void expect_results_of_hosts(const CommunicatorOptions& options, bool shared) {
  for (const int size : {1, 2, 3}) {
    const Communicators hosts = in_process_communicators(size);
    const Communicators gpus = in_process_communicators(size, options);
    take_nccl_notes();
    expect_on_ranks(size, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      const int index = gpu_of_rank(rank, shared);
      const auto expected = every_call<OnHost, T>(*hosts[r], index, {});
      const auto got = every_call<OnGpu, T>(*gpus[r], index, {.gpu = stream_of(index)});
      ASSERT_EQ(got.size(), expected.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(std::ranges::equal(
            got[i], expected[i],
            [](const T& a, const T& b) { return static_cast<float>(a) == static_cast<float>(b); }))
            << "result " << i << " of rank " << rank << " of " << size;
      }
    });
    const std::string notes = take_nccl_notes();
    const bool by_nccl = size > 1 && !shared && options.gpu_calls == GpuCallsBy::kNccl;
    EXPECT_THAT(notes, Not(HasSubstr("!")));
    for (const char* const call : {"all_reduce rank 1", "reduce rank 1", "broadcast rank 1",
                                   "all_gather rank 1", "reduce_scatter rank 1"}) {
      EXPECT_EQ(notes.find(call) != std::string::npos, by_nccl) << call;
    }
  }
}

TEST(CommunicatorOnGpus, ResultsMatchHostCommunicator) {
  expect_results_of_hosts<float>({}, false);
  expect_results_of_hosts<std::int32_t>({}, false);
  expect_results_of_hosts<BFloat16>({}, false);
  expect_results_of_hosts<double>({.algorithm = "ring"}, false);
  expect_results_of_hosts<float>({.gpu_calls = GpuCallsBy::kHosts}, false);
  expect_results_of_hosts<BFloat16>({.algorithm = "ring", .gpu_calls = GpuCallsBy::kHosts}, false);
  expect_results_of_hosts<float>({}, true);
  expect_results_of_hosts<std::int64_t>({}, true);
}

TEST(CommunicatorOnGpus, HostSumsMatchCanonicalSumsBitForBit) {
  const Communicators hosts = in_process_communicators(3);
  const Communicators gpus = in_process_communicators(3, {.gpu_calls = GpuCallsBy::kHosts});
  expect_on_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::vector<float> values;
    for (int i = 0; i < 999; ++i) {
      values.push_back(1.0f / static_cast<float>(1 + i * (rank + 1)) * (rank == 1 ? -1e3f : 1.0f));
    }
    const OnGpu<float> on_gpu(rank, values);
    hosts[r]->all_reduce(ReduceOp::kSum, std::span(values));
    gpus[r]->all_reduce(ReduceOp::kSum, on_gpu.span(), {.gpu = stream_of(rank)});
    EXPECT_EQ(on_gpu.read(), values);
  });
}

TEST(CommunicatorOnGpus, NcclRounds16BitSumsOnce) {
  const Communicators gpus = in_process_communicators(3);
  expect_on_ranks(3, [&](int rank) {
    Communicator& own = *gpus[static_cast<std::size_t>(rank)];
    const BFloat16 given(rank == 0 ? 256.0 : 1.0);  // bfloat16 cannot represent 257
    const OnGpu<BFloat16> sum(rank, {given}), mean(rank, {given});
    own.all_reduce(ReduceOp::kSum, sum.span(), {.gpu = stream_of(rank)});
    own.all_reduce(ReduceOp::kMean, mean.span(), {.gpu = stream_of(rank)});
    EXPECT_EQ(static_cast<float>(sum.read()[0]), 258.0f);
    EXPECT_EQ(static_cast<float>(mean.read()[0]), 86.0f);
  });
}

TEST(CommunicatorOnGpus, SubgroupReducesOnlyItsRanks) {
  const Communicators gpus = in_process_communicators(3);
  expect_on_ranks(3, [&](int rank) {
    Communicator& own = *gpus[static_cast<std::size_t>(rank)];
    const OnGpu<float> pair(rank, {4.0f});
    const auto group = own.group(rank == 1 ? std::vector<int>{} : std::vector<int>{0, 2});
    if (group) group->all_reduce(ReduceOp::kSum, pair.span(), {.gpu = stream_of(rank)});
    EXPECT_THAT(pair.read(), ElementsAre(rank == 1 ? 4.0f : 8.0f));
  });
}

// Errors.

/// Makes a call that differs on rank 1; returns the errors of all ranks.
template <class Call>
std::vector<std::string> errors_when_rank_1_differs(const Call& call,
                                                    const CommunicatorOptions& options = {}) {
  const Communicators all = in_process_communicators(3, options);
  return errors_of_ranks(3, [&](int rank) {
    Communicator& own = *all[static_cast<std::size_t>(rank)];
    const OnGpu<float> a(rank, {1.0f, 2.0f}), b(rank, {3.0f});
    std::vector<float> host(2);
    call(own, rank == 1, a.span(), b.span(), std::span(host), CallOptions{.gpu = stream_of(rank)});
  });
}

using Floats = std::span<float>;

TEST(CommunicatorOnGpus, HostBufferAmongGpuBuffersCausesMismatchOnEveryRank) {
  for (const GpuCallsBy by : {GpuCallsBy::kNccl, GpuCallsBy::kHosts}) {
    for (const char* const algorithm : {"canonical", "ring"}) {
      EXPECT_THAT(
          errors_when_rank_1_differs(
              [](Communicator& own, bool odd, Floats a, Floats, Floats host, CallOptions options) {
                own.all_reduce(ReduceOp::kSum, odd ? host : a, odd ? CallOptions{} : options);
              },
              {.algorithm = algorithm, .gpu_calls = by}),
          Each(AllOf(HasSubstr("collective mismatch (device)"),
                     HasSubstr(" calls all_reduce(SUM, float32 x 2 on a GPU)"),
                     HasSubstr("rank 1 calls all_reduce(SUM, float32 x 2)"))));
    }
  }
}

TEST(CommunicatorOnGpus, DifferingCallAfterMatchingCallIsReportedAsMismatch) {
  EXPECT_THAT(errors_when_rank_1_differs(
                  [](Communicator& own, bool odd, Floats a, Floats, Floats, CallOptions options) {
                    own.all_reduce(ReduceOp::kSum, a, options);
                    own.all_reduce(ReduceOp::kSum, odd ? a.first(1) : a, options);
                  }),
              Each(AllOf(HasSubstr("collective mismatch (count)"),
                         HasSubstr("float32 x 1 on a GPU"), HasSubstr("communicator_test.cc:"))));
}

TEST(CommunicatorOnGpus, BufferOnWrongDeviceIsReportedOnEveryRank) {
  const auto expect = [](const std::vector<std::string>& errors, const std::string& reason) {
    EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 1: all_reduce: "), HasSubstr(reason)));
    EXPECT_THAT(errors[0], AllOf(HasSubstr("collective mismatch (arguments)"), HasSubstr(reason)));
    EXPECT_EQ(errors[2], errors[0]);
  };
  expect(errors_when_rank_1_differs(
             [](Communicator& own, bool odd, Floats a, Floats, Floats host, CallOptions options) {
               own.all_reduce(ReduceOp::kSum, odd ? host : a, options);
             }),
         "expected memory of gpu:1 (CUDA device 1) as input, got host memory");
  expect(errors_when_rank_1_differs(
             [](Communicator& own, bool odd, Floats a, Floats b, Floats, CallOptions options) {
               const OnGpu<float> other(3, {5.0f});
               const std::vector<Elements> list = {a, odd ? other.span() : b};
               own.all_reduce(ReduceOp::kSum, list, options);
             }),
         "expected memory of gpu:1 (CUDA device 1) as input, got memory of CUDA device 3");
  expect(errors_when_rank_1_differs(
             [](Communicator& own, bool odd, Floats a, Floats, Floats, CallOptions options) {
               own.all_reduce(ReduceOp::kSum, a, options);
               const OnGpu<float> other(3, {5.0f, 6.0f});
               if (odd) options.gpu = stream_of(3);
               own.all_reduce(ReduceOp::kSum, odd ? other.span() : a, options);
             }),
         "expected gpu:1 as in earlier calls to this communicator, got gpu:3");
  expect(errors_when_rank_1_differs(
             [](Communicator& own, bool odd, Floats a, Floats, Floats, CallOptions options) {
               if (odd) options.gpu->gpu = 77;
               own.all_reduce(ReduceOp::kSum, a, options);
             }),
         "gpu:77 is unavailable");
}

/// Rank 0 waits on the host for an NCCL sum that never completes, while rank 1 calls `other`.
/// Returns the error of rank 0. `aborts` is a space and the rank whose NCCL communicator must be
/// aborted, or empty for either rank; the abort ends the simulated work of both ranks.
template <class Other>
std::string error_while_nccl_waits(const CommunicatorOptions& options, const Other& other,
                                   const std::string& aborts = " 0") {
  Communicators all = in_process_communicators(2, options);
  take_nccl_notes();
  const Environment faults("TUTTI_SIMULATED_NCCL", "peer_never:1");
  const auto errors = errors_of_ranks(2, [&](int rank) {
    std::unique_ptr<Communicator>& own = all[static_cast<std::size_t>(rank)];
    const OnGpu<float> a(rank, {1.0f});
    own->all_reduce(ReduceOp::kSum, a.span(), {.gpu = stream_of(rank)});
    if (rank == 1) return other(own);
    try {
      own->barrier({.timeout = std::chrono::seconds(30), .gpu = stream_of(rank)});
    } catch (const Error& error) {
      EXPECT_THAT(take_nccl_notes(), HasSubstr(concat("abort rank", aborts)));
      EXPECT_THROW(own->barrier(), Error);  // the group is closed permanently
      own.reset();                          // makes the GPU usable again
      throw;
    }
  });
  all.clear();
  return errors[0];
}

TEST(CommunicatorOnGpus, AbortEndsNcclCallsOnAllRanks) {
  const auto abort = [](std::unique_ptr<Communicator>& own) {
    own->abort(Error(ErrorCode::kUnavailable, "no more data"));
    own.reset();
  };
  EXPECT_THAT(error_while_nccl_waits({}, abort, ""), HasSubstr("no more data"));
}

TEST(CommunicatorOnGpus, NcclErrorNamesDepartedRank) {
  for (const char* const algorithm : {"canonical", "ring"}) {
    EXPECT_THAT(error_while_nccl_waits({.algorithm = algorithm},
                                       [](std::unique_ptr<Communicator>& own) { own.reset(); }),
                HasSubstr("rank 1"))
        << algorithm;
  }
}

TEST(CommunicatorOnGpus, TimeoutErrorNamesCall) {
  const auto leave_late = [](std::unique_ptr<Communicator>& own) {
    Clock::system().sleep_for(std::chrono::seconds(2));
    own.reset();
  };
  // Both ranks have this timeout. The first rank that times out ends the call on both ranks.
  EXPECT_THAT(error_while_nccl_waits({.timeout = std::chrono::milliseconds(300)}, leave_late, ""),
              AllOf(HasSubstr("all_reduce of 1 x float32 of 2 ranks"), HasSubstr("300 ms")));
}

TEST(CommunicatorOnGpus, BlockedStreamEndsCallAtDeadline) {
  std::vector<std::unique_ptr<OnGpu<float>>> memory(2);  // must outlive the communicators
  const Communicators stuck = in_process_communicators(2);
  const Communicators all = in_process_communicators(
      2, {.timeout = std::chrono::milliseconds(500), .gpu_calls = GpuCallsBy::kHosts});
  const Environment faults("TUTTI_SIMULATED_NCCL", "peer_never:1");
  EXPECT_THAT(
      errors_of_ranks(
          2,
          [&](int rank) {
            const auto r = static_cast<std::size_t>(rank);
            const CallOptions options{.gpu = stream_of(rank)};
            memory[r] = std::make_unique<OnGpu<float>>(rank, std::vector<float>{1.0f, 2.0f});
            stuck[r]->all_reduce(ReduceOp::kSum, memory[r]->span(), options);
            all[r]->all_reduce(ReduceOp::kSum, memory[r]->span(), options);
          }),
      Each(HasSubstr("did not reach this call before the deadline")));
  for (const auto& each : stuck) each->abort(Error(ErrorCode::kAborted, "the test has ended"));
}

TEST(CommunicatorOnGpus, FallsBackToHostWhenNcclCannotConnect) {
  const Environment faults("TUTTI_SIMULATED_NCCL", "init_never:1");
  const Communicators all =
      in_process_communicators(2, {.timeout = std::chrono::milliseconds(1000)});
  expect_on_ranks(2, [&](int rank) {
    Communicator& own = *all[static_cast<std::size_t>(rank)];
    const OnGpu<float> a(rank, {1.0f, 2.0f});
    own.all_reduce(ReduceOp::kSum, a.span(), {.gpu = stream_of(rank)});
    EXPECT_THAT(a.read(), ElementsAre(2.0f, 4.0f));
  });
}

}  // namespace tutti::testing::communicator_on_gpus_test
