// Compares pushes to and pulls from a parameter server with a bare gRPC stream of equal size.
// SPDX-License-Identifier: Apache-2.0
//
// Usage: push_pull_bench [ROUNDS [JOB [TURN]]]. Client and server are threads of this process; the
// job has a secret, so both authenticate and every byte has a checksum. Each round measures
// everything once; the table has medians, and ratios to the bare stream within a round. JOB
// ("1,000") and TURN ("calls update") select the jobs and the turns whose names contain them. The
// bare stream is always measured.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/rpc/contender.h"
#include "cluster/rpc/rpc_client.h"
#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/client/server_link.h"
#include "strategy/parameter_server/server/server_store.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/optimizer/update_rule_spec.h"

namespace tutti::rpc_bench {
namespace {

using internal::AssignShard;
using internal::CreateShard;
using internal::Operation;
using internal::ReadShard;
using internal::ShardId;
using internal::ShardSpec;
using internal::UpdateShard;
using internal::VariableHandler;

TimePoint now() { return Clock::system().now(); }
TimePoint soon() { return deadline_after(now(), std::chrono::seconds(60)); }

struct Job {
  const char* name;
  std::int64_t bytes;  // size of each variable in bytes
  int variables;
  int in_a_row;  // number of consecutive pushes or pulls of all variables, without waits in between
  int times;
};
constexpr Job kDense = {"64 MiB, four in a row", std::int64_t{64} << 20, 1, 4, 1};
constexpr Job kDenseSingle = {"64 MiB, one at a time", std::int64_t{64} << 20, 1, 1, 2};
constexpr Job kMany = {"1,000 variables of 4 KiB", 4096, 1000, 1, 5};
constexpr Job kSmall = {"1 KiB there and back", 1024, 1, 1, 200};

/// Server that stores variables, and its client.
class Servant {
 public:
  Servant() : handler_(store_) {
    const JobSecret secret = JobSecret::generate();
    RpcServerOptions serving;
    serving.secret = secret;
    server_ = RpcServer::start(serving, {{RpcMethod::kApply, &handler_}});
    internal::RemoteService::Options calling{server_->target()};
    calling.client.self = {"worker", 0, ""};
    calling.client.secret = secret;
    service_ = std::make_shared<internal::RemoteService>(std::move(calling));
    link_ = std::make_unique<internal::ServerLink>(service_, 1);
  }

  std::string name() const { return "calls"; }

  void create(const Job& job) {
    ids_.clear();
    const Shape shape{job.bytes / 4};
    std::vector<Operation> operations;
    for (int i = 0; i < job.variables; ++i) {
      const ShardSpec spec{concat(job.name, i), DType::kFloat32, shape, 0, 1, 0, shape.dim(0)};
      ids_.push_back(spec.id());  // the same ids that clients use for variables
      operations.push_back(CreateShard{spec, Tensor::zeros(shape)});
    }
    (void)link_->read(std::move(operations))->wait(soon());
    value_ = Tensor::full(shape, 0.5);
  }
  void update(const Job& job) {
    for (int i = 0; i < job.in_a_row; ++i) send_updates();
    link_->settle(soon());
  }
  void assign(const Job& job) {
    for (int i = 0; i < job.in_a_row; ++i) {
      for (const ShardId id : ids_) {
        link_->change(AssignShard{id, AssignOp::kAssign, value_});
      }
      link_->send_changes();
    }
    link_->settle(soon());
  }
  void pull(const Job& job) {
    std::vector<std::shared_ptr<internal::PendingAnswers>> pending;
    for (int i = 0; i < job.in_a_row; ++i) pending.push_back(start_pull(job));
    for (const auto& each : pending) take(job, *each);
  }
  /// Runs one step: pushes gradients and pulls the updated values.
  void update_and_pull(const Job& job) {
    send_updates();
    take(job, *start_pull(job));
    link_->settle(soon());
  }

 private:
  void send_updates() {
    for (const ShardId id : ids_) {
      UpdateShard update;
      update.shard = id;
      update.rule = rule_;
      update.scalars.learning_rate = 0.1;
      update.gradient = value_;
      link_->change(std::move(update));
    }
    link_->send_changes();
  }
  std::shared_ptr<internal::PendingAnswers> start_pull(const Job& job) {
    std::vector<Operation> reads;
    for (const ShardId id : ids_) reads.push_back(ReadShard{id});
    const std::vector<std::size_t> bytes(reads.size(), static_cast<std::size_t>(job.bytes));
    return link_->read(std::move(reads), bytes);
  }
  void take(const Job& job, internal::PendingAnswers& pending) const {
    const auto answers = pending.wait(soon());
    const bool is_whole =
        answers.size() == ids_.size() && answers.back().value->num_elements() * 4 == job.bytes;
    if (!is_whole) fail(ErrorCode::kDataLoss, "push_pull_bench: a pull did not return all values");
  }

  // a shared string, as in optimizers
  const internal::SharedText rule_ = describe_update_rule(SgdRule());
  internal::VariableStore store_{"ps 0"};
  VariableHandler handler_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<internal::RemoteService> service_;
  std::unique_ptr<internal::ServerLink> link_;
  std::vector<ShardId> ids_;
  Tensor value_;
};

/// One kind of measurement, and its times in each round.
struct Turn {
  std::string name;
  std::function<void()> once;
  int times_bytes = 1;  // bytes moved, as a multiple of the bare stream's
  std::vector<double> seconds = {}, ratios = {};
};

double quantile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1))];
}

void print(const Job& job, const Turn& turn) {
  const double seconds = quantile(turn.seconds, 0.5);
  const auto bytes = static_cast<double>(job.bytes) * job.variables * turn.times_bytes;
  std::printf("  %-18s %10.1f us  %6.2f GB/s  %5.2f of the bare stream's time (%.2f .. %.2f)\n",
              turn.name.c_str(), 1e6 * seconds, bytes / seconds / 1e9, quantile(turn.ratios, 0.5),
              quantile(turn.ratios, 0.0), quantile(turn.ratios, 1.0));
}

/// Measures every turn in each round. If there is a bare stream, it is the first turn.
void measure(const Job& job, std::vector<Turn> turns, int rounds) {
  for (int round = -1; round < rounds; ++round) {  // round -1 is a warm-up
    std::vector<double> taken;
    for (const Turn& turn : turns) {
      const TimePoint begin = now();
      for (int i = 0; i < job.times; ++i) turn.once();
      taken.push_back(seconds_between(begin, now()) / (job.times * job.in_a_row));
    }
    for (std::size_t i = 0; i < taken.size() && round >= 0; ++i) {
      turns[i].seconds.push_back(taken[i]);
      turns[i].ratios.push_back(taken[i] / taken.front() / turns[i].times_bytes);
    }
  }
  std::printf("%s\n", job.name);
  for (const Turn& turn : turns) print(job, turn);
}

void run(int rounds, const std::string& wanted_job, const std::string& wanted_turn) {
  const auto bare = bare_grpc_stream();
  std::vector<std::unique_ptr<Servant>> servants;
  servants.push_back(std::make_unique<Servant>());
  for (const Job& job : {kDense, kDenseSingle, kMany, kSmall}) {
    if (std::string(job.name).find(wanted_job) == std::string::npos) continue;
    std::vector<Turn> turns;
    if (bare) {
      const auto bytes = static_cast<std::size_t>(job.bytes * job.variables);
      turns.push_back({bare->name(), [&job, &bare, bytes] {
                         bare->exchange(bytes, job.in_a_row, job.in_a_row);
                       }});
    }
    for (const auto& servant : servants) {
      servant->create(job);
      Servant& own = *servant;
      turns.push_back({own.name() + " update", [&] { own.update(job); }});
      turns.push_back({own.name() + " assign", [&] { own.assign(job); }});
      turns.push_back({own.name() + " pull", [&] { own.pull(job); }});
      // This measurement cannot run several times in a row, because each step waits for the values
      // that it pulls.
      if (job.in_a_row > 1) continue;
      turns.push_back({own.name() + " update+pull", [&] { own.update_and_pull(job); }, 2});
    }
    std::erase_if(turns, [&](const Turn& turn) {
      const bool is_bare = bare && turn.name == bare->name();
      return !is_bare && turn.name.find(wanted_turn) == std::string::npos;
    });
    if (!turns.empty()) measure(job, std::move(turns), rounds);
  }
  std::printf(
      "goals: 64 MiB take at most 1.18 times as long as the bare stream (0.85 of its speed),\n"
      "1,000 variables at most 1.50 times as long, and a push of 1 KiB at most 135 us\n");
}

}  // namespace
}  // namespace tutti::rpc_bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  if (argc > 4 || rounds < 1) {
    std::fprintf(stderr, "usage: %s [ROUNDS [JOB [TURN]]]\n", argv[0]);
    return 2;
  }
  try {
    tutti::rpc_bench::run(rounds, argc > 2 ? argv[2] : "", argc > 3 ? argv[3] : "");
    return 0;
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "push_pull_bench: %s\n", error.what());
    return 1;
  }
}
