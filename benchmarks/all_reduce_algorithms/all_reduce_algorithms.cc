// Times all_reduce under each algorithm: what the table of "auto" was made from.
// SPDX-License-Identifier: Apache-2.0
//
//     all_reduce_algorithms tcp 2 3 4 8       (or in_process, local; then numbers of ranks)
//
// Ranks are threads of this process; tcp: over the loopback device. The algorithms take turns, so
// that a busy machine disturbs all alike. Prints the median time of a call in microseconds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tutti/cluster/tcp/tcp_transport.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/algorithms/algorithm.h"
#include "tutti/cross_device_ops/algorithms/message_engine.h"
#include "tutti/cross_device_ops/in_process/in_process_store.h"
#include "tutti/cross_device_ops/in_process/in_process_transport.h"
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
    buffers.push_back({reinterpret_cast<std::byte*>(values.data()), values.size(),
                       DType::kFloat32, devices.back()});
  }
  std::map<std::string, std::unique_ptr<CrossDeviceOps>> operations;
  for (const std::string& name : names()) {
    operations[name] =
        build_cross_device_ops(make_cross_device_ops(name), Group{size, 0, devices});
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

void time_messages(const std::string& medium, int size) {
  InProcessStore store;
  std::vector<std::shared_ptr<Transport>> transports(static_cast<std::size_t>(size));
  if (medium == "in_process") transports = in_process_transports(size);
  std::vector<std::unique_ptr<Thread>> threads;
  for (int r = 0; r < size; ++r) {
    threads.push_back(Executor::system().start(concat("rank-", r), [&, r] {
      auto transport = transports[static_cast<std::size_t>(r)];
      if (!transport) transport = tcp_transport(r, size, store);
      run_rank(std::move(transport));
    }));
  }
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  const std::string medium = argc > 1 ? argv[1] : "";
  if (argc < 3 || (medium != "tcp" && medium != "in_process" && medium != "local")) {
    std::fprintf(stderr, "usage: %s tcp|in_process|local RANKS...\n", argv[0]);
    return 2;
  }
  std::printf("%s, float32, median microseconds per call\n%3s %10s", medium.c_str(), "n", "bytes");
  for (const std::string& name : tutti::names()) std::printf(" %12.12s", name.c_str());
  std::printf("\n");
  for (int i = 2; i < argc; ++i) {
    const int size = std::atoi(argv[i]);
    if (medium != "local") {
      tutti::time_messages(medium, size);
      continue;
    }
    for (const std::size_t bytes : tutti::kSizes) {
      tutti::print(size, bytes, tutti::time_local(size, bytes));
    }
  }
  return 0;
}
