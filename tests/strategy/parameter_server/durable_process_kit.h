// Server processes of a coordinator's job as objects that can be killed, behind connections.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/client/parameter_servers.h"
#include "strategy/parameter_server/client/server_link.h"
#include "strategy/parameter_server/coordinator/remote_servers.h"
#include "strategy/parameter_server/server/durable_handler.h"
#include "tests/strategy/parameter_server/durable_helpers.h"
#include "tests/strategy/parameter_server/mortal_workers.h"
#include "tests/support/hang_watchdog.h"
#include "tools/launch/job_plan.h"
#include "tutti/core/random.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"

namespace tutti::durable_tests {

using namespace std::chrono_literals;

/// Sends some calls twice: the second as another call, with the same bytes.
class RepeatingClient final : public RpcClient {
 public:
  RepeatingClient(std::unique_ptr<RpcClient> client, double share, std::uint64_t seed)
      : client_(std::move(client)), share_(share), random_({.seed = seed}) {}
  std::shared_ptr<RpcReply> start(Packet request) override {
    const std::uint64_t number = num_calls_.fetch_add(1);
    const bool is_repeated = static_cast<double>(random_.below(number, 1000)) < 1000 * share_;
    Packet again = is_repeated ? request : Packet();
    auto reply = client_->start(std::move(request));
    if (is_repeated) (void)client_->start(std::move(again));
    return reply;
  }
  void fail_all(const Error& error) override { client_->fail_all(error); }
  std::uint64_t server_incarnation() const override { return client_->server_incarnation(); }
  std::string server_name() const override { return client_->server_name(); }
  std::optional<std::string> why_away() const override { return client_->why_away(); }
  std::optional<TimePoint> away_since() const override { return client_->away_since(); }

 private:
  const std::unique_ptr<RpcClient> client_;
  const double share_;
  const RandomStream random_;
  std::atomic<std::uint64_t> num_calls_{0};
};

/// All processes of job ps. Threads: any.
class ServerProcesses {
 public:
  explicit ServerProcesses(int count)
      : ports_(launch::free_ports(count)), lives_(static_cast<std::size_t>(count)) {
    for (int i = 0; i < count; ++i) start(i);
  }
  int count() const { return static_cast<int>(lives_.size()); }
  void start(int server) {
    auto life = std::make_unique<Life>(server, count());
    RpcServerOptions options;
    options.address = address(server);
    options.self = {"ps", server, options.address};
    options.job_id = "test";
    options.incarnation = num_started_.fetch_add(1);
    life->rpc = RpcServer::start(options, {{RpcMethod::kApply, &life->handler},
                                           {RpcMethod::kOrder, &life->handler.orders()}});
    lives_[static_cast<std::size_t>(server)] = std::move(life);
  }
  void kill(int server) { lives_[static_cast<std::size_t>(server)].reset(); }
  void restart(int server) {
    kill(server);
    start(server);
  }
  internal::DurableHandler& handler(int server) {
    return lives_[static_cast<std::size_t>(server)]->handler;
  }

  RpcClientOptions client_options(int server) const {
    RpcClientOptions client;
    client.self = {"chief", 0, ""};
    client.server = {"ps", server, address(server)};
    client.job_id = "test";
    client.connect_timeout = 50ms;
    return client;
  }
  std::string target(int server) const { return "grpc://" + address(server); }
  /// As data of workers and chief travel.
  std::vector<std::shared_ptr<internal::VariableService>> services(double repeated = 0.0) const {
    std::vector<std::shared_ptr<internal::VariableService>> services;
    for (int i = 0; i < count(); ++i) {
      RpcClientOptions client = client_options(i);
      client.connect_timeout = 10s;
      client.patience = 60s;
      client.survives_restarts = true;
      services.push_back(
          std::make_shared<internal::RemoteService>(std::make_shared<RepeatingClient>(
              RpcClient::connect(target(i), RpcMethod::kApply, client), repeated,
              static_cast<std::uint64_t>(i))));
    }
    return services;
  }
  std::unique_ptr<internal::RemoteServers> group(std::uint64_t run = 1, Duration patience = 60s,
                                                 Duration look_every = 5ms) const {
    std::vector<internal::RemoteServerOptions> all;
    for (int i = 0; i < count(); ++i) {
      internal::RemoteServerOptions options;
      options.link.name = concat("ps ", i);
      options.run = run;
      RpcClientOptions client = client_options(i);
      client.patience = 100ms;
      options.link.connect = [client, target = target(i)] {
        return RpcClient::connect(target, RpcMethod::kOrder, client);
      };
      options.look_every = look_every;
      all.push_back(std::move(options));
    }
    return std::make_unique<internal::RemoteServers>(std::move(all), patience);
  }

 private:
  struct Life {
    Life(int server, int count) : handler(concat("ps ", server), server, count) {}
    internal::DurableHandler handler;
    std::unique_ptr<RpcServer> rpc;
  };
  std::string address(int server) const {
    return concat("127.0.0.1:", ports_[static_cast<std::size_t>(server)]);
  }

  const std::vector<int> ports_;
  std::atomic<std::uint64_t> num_started_{0};
  std::vector<std::unique_ptr<Life>> lives_;
};

/// A job whose workers are threads and whose servers are behind connections. Every closure adds 1
/// to a number on each server, and to a row on ps 1, twice.
class DurableJob final : public CoordinatedStrategy {
 public:
  static constexpr std::int64_t kRows = 7;

  explicit DurableJob(ServerProcesses& processes, double repeated = 0.0)
      : processes_(processes), group_(processes.group()) {
    group_->wait_for_all(store_tests::soon());
    servers_ = std::make_shared<internal::ParameterServers>(processes.services(repeated), 1s);
    group_->when_loaded([servers = servers_] { servers->begin_anew(); });
    for (int i = 0; i < processes_.count(); ++i) {
      const auto made = servers_->link(i).read(
          {internal::CreateShard{number(i), Tensor::scalar(0, DType::kInt64)},
           internal::CreateShard{rows(i), Tensor::zeros({kRows}, DType::kInt64)}});
      (void)made->wait(store_tests::soon());
    }
  }

  int num_workers() const override { return 3; }
  void run_closure(const std::function<void()>& body) override {
    servers_->begin_step();
    struct End {
      ~End() {
        servers.end_stream();
        servers.end_step();
      }
      internal::ParameterServers& servers;
    } const end{*servers_};
    body();
    servers_->settle();
  }
  internal::ServerGroup* server_group() override { return group_.get(); }
  std::unique_ptr<internal::WorkerLink> connect_worker(int worker,
                                                       internal::StepRegistry& registry) override {
    return std::make_unique<testing::MortalWorker>(worker, *this, registry);
  }

  /// Its journal's events are counted.
  ClusterCoordinator begin(const std::string& folder, std::uint64_t every_closures) {
    ClusterCoordinatorOptions options;
    options.most_attempts = options.most_workers_lost = 1000;  // here all the dying is on purpose
    options.snapshots.folder = folder;
    options.snapshots.every_closures = every_closures;
    options.journal = [this](std::span<const std::byte> record) {
      internal::RecordReader in("record", record.size(), internal::source_of(record));
      const internal::ClosureEvent event = internal::decode_event(in.get());
      num_taken_over += std::holds_alternative<internal::events::TookOver>(event) ? 1 : 0;
    };
    ClusterCoordinator coordinator(*this, options);
    coordinator.define("count", [this](std::int64_t closure) {
      const Tensor one = Tensor::scalar(1, DType::kInt64);
      for (int i = 0; i < processes_.count(); ++i) {
        servers_->change(i, internal::AssignShard{number(i).id(), AssignOp::kAdd, one});
        servers_->link(i).send_changes();
        servers_->change(i, internal::ScatterShard{rows(i).id(), ScatterOp::kAdd,
                                                   store_tests::rows_of({closure % kRows}),
                                                   Tensor::full({1}, 1.0, DType::kInt64)});
      }
      return closure * closure;
    });
    coordinator.start();
    return coordinator;
  }
  static RemoteValue schedule(ClusterCoordinator& coordinator) {
    return coordinator.schedule("count", static_cast<std::int64_t>(coordinator.num_scheduled()));
  }
  std::int64_t counted(int server) {
    const auto answers = servers_->link(server).read({internal::ReadShard{number(server).id()}});
    return answers->wait(store_tests::soon()).at(0).value->item_int();
  }
  void expect_counted(std::int64_t closures) {
    for (int i = 0; i < processes_.count(); ++i) {
      EXPECT_EQ(counted(i), closures) << "ps " << i;
      const auto answers = servers_->link(i).read({internal::ReadShard{rows(i).id()}});
      const Tensor by_row = *answers->wait(store_tests::soon()).at(0).value;
      for (std::int64_t row = 0; row < kRows; ++row) {
        EXPECT_EQ(by_row.host_span<std::int64_t>()[static_cast<std::size_t>(row)],
                  (closures - row + kRows - 1) / kRows)
            << "ps " << i << ", row " << row;
      }
    }
  }
  void wait_until_all_live() const {
    while (group_->lost() && Clock::system().now() < store_tests::soon()) {
      Clock::system().sleep_for(1ms);
    }
    EXPECT_EQ(group_->lost(), std::nullopt);
  }
  /// Kills and starts it, and waits until the job has got over it.
  void replace(int server) {
    const int before = num_taken_over;
    processes_.restart(server);
    while (num_taken_over == before) Clock::system().sleep_for(1ms);
    wait_until_all_live();
  }
  std::atomic<int> num_taken_over{0};
  static internal::ShardSpec number(int server) {
    return store_tests::whole(concat("number ", server), {}, DType::kInt64);
  }
  static internal::ShardSpec rows(int server) {
    return store_tests::whole(concat("rows ", server), {kRows}, DType::kInt64);
  }

 private:
  ServerProcesses& processes_;
  std::unique_ptr<internal::RemoteServers> group_;
  std::shared_ptr<internal::ParameterServers> servers_;
};

}  // namespace tutti::durable_tests
