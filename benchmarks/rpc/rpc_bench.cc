// Compares calls with a bare gRPC stream: the time per small call, and the bytes per second of
// large calls.
// SPDX-License-Identifier: Apache-2.0
//
// Usage: rpc_bench [ROUNDS]. Client and server are threads of this process. Each round measures
// everything once; the table has medians, and ratios to the bare stream within a round.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <vector>

#include "benchmarks/rpc/contender.h"
#include "cluster/rpc/rpc_client.h"
#include "cluster/rpc/rpc_server.h"

namespace tutti::rpc_bench {
namespace {

class Calls final : public Contender, private RpcHandler {
 public:
  Calls() {
    server_ = RpcServer::start({}, {{RpcMethod::kApply, this}});
    client_ = RpcClient::connect(server_->target(), RpcMethod::kApply, {});
  }
  ~Calls() override {
    client_.reset();
    server_.reset();
  }
  std::string name() const override { return "calls"; }

  void exchange(std::size_t bytes, int count, int at_once) override {
    if (memory_->size() < bytes) memory_ = std::make_shared<std::vector<std::byte>>(bytes);
    const SharedBytes payload{std::span<const std::byte>(*memory_).first(bytes), memory_};
    std::deque<std::shared_ptr<RpcReply>> under_way;
    for (int i = 0; i < count; ++i) {
      if (static_cast<int>(under_way.size()) == at_once) take_first(under_way);
      under_way.push_back(client_->start({{}, {payload}}));
    }
    while (!under_way.empty()) take_first(under_way);
  }

 private:
  static void take_first(std::deque<std::shared_ptr<RpcReply>>& under_way) {
    (void)under_way.front()->wait(deadline_after(Clock::system().now(), std::chrono::seconds(60)));
    under_way.pop_front();
  }
  void take(std::shared_ptr<RpcCall> call) override {
    const bool echoes = call->request().payload_bytes() <= kLongestEcho;
    call->reply({{}, echoes ? call->request().payload : std::vector<SharedBytes>()});
  }

  std::shared_ptr<std::vector<std::byte>> memory_ = std::make_shared<std::vector<std::byte>>();
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<RpcClient> client_;
};

/// Kind of call that a contender makes in each round.
struct Load {
  const char* name;
  std::size_t bytes;
  int count, at_once;
};
constexpr Load kLoads[] = {
    {"1 KiB there and back", 1024, 300, 1},
    {"4 MiB streamed", std::size_t{4} << 20, 24, 4},
    {"64 MiB streamed", std::size_t{64} << 20, 4, 2},
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double seconds_of(Contender& contender, const Load& load) {
  const TimePoint begin = Clock::system().now();
  contender.exchange(load.bytes, load.count, load.at_once);
  return seconds_between(begin, Clock::system().now()) / load.count;
}

std::string speed(const Load& load, double seconds) {
  char text[64];
  if (load.at_once == 1) {
    std::snprintf(text, sizeof(text), "%9.1f us", 1e6 * seconds);
  } else {
    std::snprintf(text, sizeof(text), "%7.2f GB/s",
                  static_cast<double>(load.bytes) / seconds / 1e9);
  }
  return text;
}

void run(int rounds) {
  std::vector<std::unique_ptr<Contender>> contenders;
  if (auto bare = bare_grpc_stream()) contenders.push_back(std::move(bare));
  contenders.push_back(std::make_unique<Calls>());
  for (const Load& load : kLoads) {
    std::vector<std::vector<double>> seconds(contenders.size()), ratios(contenders.size());
    for (int round = -1; round < rounds; ++round) {  // round -1 is a warm-up
      std::vector<double> now;
      for (const auto& contender : contenders) now.push_back(seconds_of(*contender, load));
      for (std::size_t i = 0; i < now.size() && round >= 0; ++i) {
        seconds[i].push_back(now[i]);
        ratios[i].push_back(now[0] / now[i]);
      }
    }
    std::printf("%s\n", load.name);
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      std::printf("  %-10s %s  %5.2f times as fast as %s\n", contenders[i]->name().c_str(),
                  speed(load, median(seconds[i])).c_str(), median(ratios[i]),
                  contenders[0]->name().c_str());
    }
  }
}

}  // namespace
}  // namespace tutti::rpc_bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  if (argc > 2 || rounds < 1) {
    std::fprintf(stderr, "usage: %s [ROUNDS]\n", argv[0]);
    return 2;
  }
  tutti::rpc_bench::run(rounds);
  return 0;
}
