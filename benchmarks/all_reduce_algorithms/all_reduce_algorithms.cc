// Times all_reduce under each algorithm; source of the table of "auto".
// SPDX-License-Identifier: Apache-2.0
//
//     all_reduce_algorithms local 2 3 4 8           all buffers by one thread; numbers of ranks
//     all_reduce_algorithms in_process 2 3 4 8      ranks are threads
//     for r in 0 1; do all_reduce_algorithms tcp $r 2 /tmp/store & done; wait     rank, ranks,
//     folder
//
// The algorithms alternate, so that a busy machine disturbs all alike. Prints the median time of a
// call in microseconds, measured on rank 0.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "cross_device_ops/algorithms/algorithm.h"
#include "cross_device_ops/collective_engine.h"
#include "cross_device_ops/in_process/in_process_transport.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cluster/key_value_stores.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti {
namespace {

constexpr std::size_t kSizes[] = {4,       1 << 10, 1 << 13, 1 << 15, 1 << 16,
                                  1 << 18, 1 << 20, 1 << 22, 1 << 24};
using Times = std::map<std::string, std::vector<double>>;

int rounds_for(std::size_t bytes) { return bytes > (1 << 20) ? 9 : bytes > (1 << 16) ? 25 : 101; }

std::vector<std::string> names() {
  std::vector<std::string> list;
  for (const internal::Algorithm& algorithm : internal::algorithms()) {
    list.emplace_back(algorithm.name);
  }
  return list;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double microseconds_since(TimePoint begin) {
  return seconds_between(begin, Clock::system().now()) * 1e6;
}

void print(int size, std::size_t bytes, const Times& times) {
  std::printf("%3d %10zu", size, bytes);
  for (const std::string& name : names()) std::printf(" %12.1f", median(times.at(name)));
  std::printf("\n");
  std::fflush(stdout);
}

Times time_local(int size, std::size_t bytes) {
  std::vector<std::vector<float>> data(static_cast<std::size_t>(size),
                                       std::vector<float>(bytes / sizeof(float), 1.0f));
  std::vector<ReplicaBuffer> buffers;
  std::vector<Device> devices;
  for (int r = 0; r < size; ++r) {
    auto& values = data[static_cast<std::size_t>(r)];
    devices.push_back({DeviceType::kCpu, r});
    buffers.push_back({reinterpret_cast<std::byte*>(values.data()), values.size(), DType::kFloat32,
                       devices.back()});
  }
  std::map<std::string, std::unique_ptr<CrossDeviceOps>> operations;
  for (const std::string& name : names()) {
    operations[name] = build_cross_device_ops(make_cross_device_ops(name), Group{size, 0, devices});
  }
  Times times;
  for (int round = 0; round < rounds_for(bytes); ++round) {
    for (auto& [name, operation] : operations) {
      const TimePoint begin = Clock::system().now();
      operation->all_reduce_in_place(ReduceOp::kMax, buffers);
      times[name].push_back(microseconds_since(begin));
    }
  }
  return times;
}

void run_rank(std::shared_ptr<Transport> transport) {
  std::map<std::string, std::unique_ptr<internal::CollectiveEngine>> engines;
  for (const std::string& name : names()) engines[name] = internal::message_engine(transport, name);
  std::uint64_t sequence = 0;
  const auto call = [&](const std::string& name, Collective collective, std::span<float> values) {
    internal::CollectiveHeader header;
    header.sequence = sequence++;
    header.collective = collective;
    header.rank = transport->rank();
    header.count = values.size();
    const Elements data(values);
    const ConstElements input = data;
    CollectiveCall request;
    request.collective = collective;
    request.count = values.size();
    request.inputs = {&input, 1};
    request.outputs = {&data, 1};
    engines[name]->run(request, header,
                       deadline_after(Clock::system().now(), std::chrono::seconds(60)));
  };
  for (const std::size_t bytes : kSizes) {
    std::vector<float> values(bytes / sizeof(float), 0.0f);
    Times times;
    for (int round = -2; round < rounds_for(bytes); ++round) {
      for (const std::string& name : names()) {
        call(name, Collective::kBarrier, {});
        const TimePoint begin = Clock::system().now();
        call(name, Collective::kAllReduce, values);
        if (round >= 0) times[name].push_back(microseconds_since(begin));
      }
    }
    if (transport->rank() == 0) print(transport->size(), bytes, times);
  }
}

void time_threads(int size) {
  const auto transports = in_process_transports(size, false);
  std::vector<std::unique_ptr<Thread>> threads;
  for (const auto& transport : transports) {
    threads.push_back(Executor::system().start(concat("rank-", transport->rank()),
                                               [transport] { run_rank(transport); }));
  }
}

void print_columns(const std::string& medium) {
  std::printf("%s, float32, median microseconds per call\n%3s %10s", medium.c_str(), "n", "bytes");
  for (const std::string& name : names()) std::printf(" %12.12s", name.c_str());
  std::printf("\n");
}

int run_program(const std::vector<std::string>& arguments) {
  const std::string medium = arguments.empty() ? "" : arguments[0];
  if (medium == "tcp" && arguments.size() == 4) {
    const int rank = std::stoi(arguments[1]);
    if (rank == 0) print_columns(medium);
    FileKeyValueStore store(arguments[3]);
    const ConnectOptions by_tcp{.way = ConnectOptions::Way::kTcp};
    run_rank(connect_ranks(rank, std::stoi(arguments[2]), store, by_tcp).transport);
    return 0;
  }
  if (arguments.size() < 2 || (medium != "in_process" && medium != "local")) {
    std::fprintf(stderr, "expected: local|in_process RANKS..., or tcp RANK RANKS FOLDER\n");
    return 2;
  }
  print_columns(medium);
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const int size = std::stoi(arguments[i]);
    if (medium == "in_process") {
      time_threads(size);
      continue;
    }
    for (const std::size_t bytes : kSizes) print(size, bytes, time_local(size, bytes));
  }
  return 0;
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) { return tutti::run_program({argv + 1, argv + argc}); }
