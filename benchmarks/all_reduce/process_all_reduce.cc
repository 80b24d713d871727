// Times all_reduce between processes of this machine: float32 sums of one buffer each, in place.
// SPDX-License-Identifier: Apache-2.0
//
// process_all_reduce RANKS HOW FIRST LAST (sizes from FIRST to LAST bytes, each 4 times the
// previous one). HOW: shm-shared (buffers in memory that the ranks share), shm-private (separate
// buffers), tcp, tcp-bare (2 ranks exchange and add over a plain connection, the lower bound of
// tcp). A barrier precedes each call. A call's time is that of the slowest process; the result is
// the median of all calls.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <optional>

#include "benchmarks/all_reduce/bare_exchange.h"
#include "benchmarks/all_reduce/call_plan.h"
#include "cross_device_ops/shared/host_memory.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cluster/key_value_stores.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/communicator.h"

namespace {

using namespace tutti;
using namespace tutti::benchmarks;

constexpr std::string_view kBare = "tcp-bare";

class Rank {
 public:
  Rank(int rank, int size, const std::string& how, const std::string& folder, std::size_t most)
      : store_(folder) {
    const ConnectOptions options{.way = parse_way(how.substr(0, 3))};
    transport_ = connect_ranks(rank, size, store_, options).transport;
    communicator_ = make_communicator(transport_, {});
    const bool is_shared = how == "shm-shared";
    memory_ = is_shared ? allocator_in(transport_->host_memory())->allocate(most)
                        : BufferRef::allocate(most);
    std::fill_n(memory_->data(), most, std::byte{0});
  }

  float* values() const { return reinterpret_cast<float*>(memory_->data()); }
  void barrier() { communicator_->barrier(); }
  void sum(std::size_t bytes) {
    communicator_->all_reduce(ReduceOp::kSum,
                              Elements(memory_->data(), bytes / sizeof(float), DType::kFloat32));
  }
  double largest(double value) {
    communicator_->all_reduce(ReduceOp::kMax, Elements(std::span(&value, 1)));
    return value;
  }

 private:
  FileKeyValueStore store_;
  std::shared_ptr<Transport> transport_;
  std::unique_ptr<Communicator> communicator_;
  BufferRef memory_;
};

/// Rank that sums with BareExchange (tcp-bare), the lower bound for tcp.
class BareRank {
 public:
  BareRank(int rank, BareExchange& exchange, std::size_t most)
      : rank_(rank), exchange_(exchange), values_(most / sizeof(float)) {}

  float* values() { return values_.data(); }
  void barrier() { exchange_.barrier(rank_); }
  void sum(std::size_t bytes) { exchange_.sum(rank_, values_.data(), bytes / sizeof(float)); }
  double largest(double value) { return exchange_.largest(rank_, value); }

 private:
  const int rank_;
  BareExchange& exchange_;
  std::vector<float> values_;
};

template <class AnyRank>
double time_of(AnyRank& own, std::size_t bytes, int calls) {
  std::vector<double> times;
  for (int i = 0; i < calls + calls / 10 + 2; ++i) {
    own.barrier();
    const TimePoint begin = Clock::system().now();
    own.sum(bytes);
    const double seconds = own.largest(seconds_between(begin, Clock::system().now()));
    if (i >= calls / 10 + 2) times.push_back(seconds);
  }
  return median(times);
}

/// Returns true if one call computes the right sums on all ranks. Leaves zeros in the buffer.
template <class AnyRank>
bool is_right(AnyRank& own, int rank, int size, std::size_t bytes) {
  float* const values = own.values();
  const std::size_t count = bytes / sizeof(float);
  for (std::size_t i = 0; i < count; ++i) values[i] = float(rank + 1) + float(i % 7);
  own.sum(bytes);
  bool right = true;
  const auto n = static_cast<float>(size);
  for (std::size_t i = 0; i < count; ++i) {
    right = right && values[i] == n * (n + 1) / 2 + n * float(i % 7);
  }
  std::fill_n(values, count, 0.0f);
  return own.largest(right ? 0.0 : 1.0) == 0.0;
}

void pin_to_core(int rank) {
  cpu_set_t allowed, own;
  ::sched_getaffinity(0, sizeof(allowed), &allowed);
  const int which = rank % CPU_COUNT(&allowed);
  int core = 0;
  for (int seen = -1; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed) && ++seen == which) break;
  }
  CPU_ZERO(&own);
  CPU_SET(core, &own);
  ::sched_setaffinity(0, sizeof(own), &own);
}

template <class AnyRank>
void measure(AnyRank& own, int rank, int size, const std::string& how,
             const std::vector<std::size_t>& sizes) {
  // Pins ranks only after they have connected: a rank that is pinned when it connects would assume
  // that all ranks share its core.
  if (size <= num_hardware_threads()) pin_to_core(rank);
  for (const std::size_t bytes : sizes) {
    const bool right = is_right(own, rank, size, bytes);
    const double seconds = time_of(own, bytes, num_calls(bytes));
    if (rank == 0) report(how, bytes, seconds, right);
  }
}

void run(int rank, int size, const std::string& how, const std::string& folder,
         const std::vector<std::size_t>& sizes) {
  Rank own(rank, size, how, folder, sizes.back());
  measure(own, rank, size, "tutti/" + how, sizes);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::size_t> sizes = sizes_from(argc, argv, 3);
  const int size = argc > 2 ? std::atoi(argv[1]) : 0;
  const std::string how = argc > 2 ? argv[2] : "";
  if (sizes.empty() || size < 2 || (how == kBare && size != 2)) {
    std::cerr << "usage: process_all_reduce RANKS shm-shared|shm-private|tcp|tcp-bare FIRST LAST "
                 "(tcp-bare: 2 ranks)\n";
    return 2;
  }
  const auto folder =
      std::filesystem::temp_directory_path() / ("process_all_reduce-" + std::to_string(::getpid()));
  std::optional<BareExchange> bare;
  if (how == kBare) bare.emplace();
  int rank = 0;
  for (int r = 1; r < size && rank == 0; ++r) {
    if (::fork() == 0) rank = r;
  }
  int status = 0;
  try {
    if (bare) {
      BareRank own(rank, *bare, sizes.back());
      measure(own, rank, size, how, sizes);
    } else {
      run(rank, size, how, folder.string(), sizes);
    }
  } catch (const std::exception& error) {
    std::cerr << "process_all_reduce: rank " << rank << ": " << error.what() << "\n";
    status = 1;
  }
  while (rank == 0 && ::wait(nullptr) > 0) continue;
  if (rank == 0) std::filesystem::remove_all(folder);
  return status;
}
