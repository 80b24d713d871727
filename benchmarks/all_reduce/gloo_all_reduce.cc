// Times Gloo's all-reduce between processes over TCP on this machine: float32 sums of one buffer.
// SPDX-License-Identifier: Apache-2.0
//
// gloo_all_reduce RANKS ALGORITHM FIRST LAST (sizes from FIRST to LAST bytes, each 4 times the
// previous one). Algorithms: ring_chunked, halving_doubling (the older classes), new_ring,
// new_bcube (gloo::allreduce, used by torch.distributed). A barrier precedes each call. A call's
// time is that of the slowest process.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>

#include "benchmarks/all_reduce/call_plan.h"
#include "tutti/core/clock.h"

namespace {

using namespace tutti::benchmarks;
using Context = std::shared_ptr<gloo::rendezvous::Context>;

constexpr int kMostCalls = 2'000;
constexpr int kMostRanks = 16;

/// Memory that the processes of one measurement share.
struct Board {
  double seconds[kMostRanks][kMostCalls];
  bool right[kMostRanks];
};

Context connect(const std::string& folder, int rank, int num_ranks) {
  gloo::transport::tcp::attr address;
  address.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(address);
  auto store = std::make_shared<gloo::rendezvous::FileStore>(folder);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, num_ranks);
#ifdef GLOO_OLD  // before 2023, Gloo received the store by reference
  context->connectFullMesh(*store, device);
#else
  context->connectFullMesh(store, device);
#endif
  return context;
}

std::function<void()> call_of(const std::string& algorithm, const Context& context,
                              std::vector<float>& data, int count) {
  std::vector<float*> pointers = {data.data()};
  if (algorithm == "ring_chunked") {
    auto ring = std::make_shared<gloo::AllreduceRingChunked<float>>(context, pointers, count);
    return [ring] { ring->run(); };
  }
  if (algorithm == "halving_doubling") {
    auto halving =
        std::make_shared<gloo::AllreduceHalvingDoubling<float>>(context, pointers, count);
    return [halving] { halving->run(); };
  }
  const auto kind = algorithm == "new_ring" ? gloo::AllreduceOptions::Algorithm::RING
                                            : gloo::AllreduceOptions::Algorithm::BCUBE;
  return [&data, context, count, kind] {
    gloo::AllreduceOptions options(context);
    options.setOutput(data.data(), static_cast<std::size_t>(count));
    options.setAlgorithm(kind);
    options.setReduceFunction([](void* out, const void* a, const void* b, std::size_t n) {
      gloo::sum<float>(out, a, b, n);
    });
    gloo::allreduce(options);
  };
}

void measure(const std::string& algorithm, const Context& context, Board& board,
             const std::vector<std::size_t>& sizes) {
  const int rank = context->rank, num_ranks = context->size;
  gloo::BarrierAllToAll barrier(context);
  std::vector<float> data(sizes.back() / sizeof(float));
  for (const std::size_t size : sizes) {
    const auto count = static_cast<int>(size / sizeof(float));
    const auto call = call_of(algorithm, context, data, count);
    std::fill_n(data.begin(), count, static_cast<float>(rank + 1));
    call();
    const float expected = static_cast<float>(num_ranks * (num_ranks + 1)) / 2.0f;
    board.right[rank] = std::all_of(data.begin(), data.begin() + count,
                                    [&](float value) { return value == expected; });
    std::fill_n(data.begin(), count, 0.0f);
    const int calls = num_calls(size), warm_up = calls / 10 + 2;
    for (int i = 0; i < warm_up + calls; ++i) {
      barrier.run();
      const tutti::TimePoint begin = tutti::Clock::system().now();
      call();
      if (i < warm_up) continue;
      board.seconds[rank][i - warm_up] =
          tutti::seconds_between(begin, tutti::Clock::system().now());
    }
    barrier.run();
    if (rank == 0) {
      std::vector<double> times(static_cast<std::size_t>(calls));
      bool right = true;
      for (int r = 0; r < num_ranks; ++r) {
        right = right && board.right[r];
        for (int i = 0; i < calls; ++i) {
          auto& slowest = times[static_cast<std::size_t>(i)];
          slowest = std::max(slowest, board.seconds[r][i]);
        }
      }
      report("gloo " + algorithm, size, median(times), right);
    }
    barrier.run();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int num_ranks = argc > 1 ? std::atoi(argv[1]) : 0;
  const std::vector<std::size_t> sizes = sizes_from(argc, argv, 3);
  if (sizes.empty() || num_ranks < 1 || num_ranks > kMostRanks) {
    std::fprintf(stderr, "usage: gloo_all_reduce RANKS ALGORITHM FIRST LAST\n");
    return 2;
  }
  char folder[] = "/tmp/gloo_all_reduce_XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  int rank = 0;
  for (int r = 1; r < num_ranks && rank == 0; ++r) {
    if (fork() == 0) rank = r;
  }
  int code = 0;
  try {
    measure(argv[2], connect(folder, rank, num_ranks), *static_cast<Board*>(memory), sizes);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_all_reduce: rank %d: %s\n", rank, error.what());
    code = 1;
  }
  std::fflush(stdout);
  if (rank != 0) _exit(code);
  for (int status = 0; wait(&status) > 0;) code = code == 0 && status != 0 ? 1 : code;
  std::filesystem::remove_all(folder);
  std::fflush(stdout);
  _exit(code);  // also ends Gloo's threads; runs no destructors
}
