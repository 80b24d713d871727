// Simulated server processes of a coordinator's job: objects that clients reach through connections
// and that tests can kill.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/client/server_link.h"
#include "strategy/parameter_server/coordinator/server_group.h"
#include "strategy/parameter_server/server/server_store.h"
#include "tests/strategy/parameter_server/mortal_workers.h"
#include "tests/strategy/parameter_server/store_helpers.h"
#include "tests/support/hang_watchdog.h"
#include "tools/launch/job_plan.h"
#include "tutti/core/random.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"

namespace tutti::server_processes {

using namespace std::chrono_literals;

/// Service that sends some batches twice, the second time as a separate call.
class RepeatingService final : public internal::VariableService {
 public:
  RepeatingService(std::shared_ptr<VariableService> service, double share, std::uint64_t seed)
      : service_(std::move(service)), share_(share), random_({.seed = seed}) {}
  std::string name() const override { return service_->name(); }
  std::shared_ptr<internal::PendingAnswers> start(internal::OperationBatch batch) override {
    const std::uint64_t number = num_batches_.fetch_add(1);
    const bool is_repeated = static_cast<double>(random_.below(number, 1000)) < 1000 * share_;
    auto answers = service_->start(batch);
    if (is_repeated) (void)service_->start(std::move(batch));
    return answers;
  }

 private:
  const std::shared_ptr<VariableService> service_;
  const double share_;
  const RandomStream random_;
  std::atomic<std::uint64_t> num_batches_{0};
};

/// All simulated processes of job "ps". Thread-safe, except for start() and kill().
class ServerProcesses {
 public:
  explicit ServerProcesses(int count)
      : ports_(launch::free_ports(count)), processes_(static_cast<std::size_t>(count)) {
    for (int i = 0; i < count; ++i) start(i);
  }
  int count() const { return static_cast<int>(processes_.size()); }
  void start(int server) {
    auto process = std::make_unique<Process>(server);
    RpcServerOptions options;
    options.address = address(server);
    options.self = {"ps", server, options.address};
    options.job_id = "test";
    options.incarnation = num_started_++;
    process->rpc = RpcServer::start(options, {{RpcMethod::kApply, &process->handler}});
    processes_[static_cast<std::size_t>(server)] = std::move(process);
  }
  void kill(int server) { processes_[static_cast<std::size_t>(server)].reset(); }

  /// Returns one client per server. The clients encode data as workers and the chief do, and send
  /// the fraction `repeated` of their batches twice.
  std::vector<std::shared_ptr<internal::VariableService>> services(double repeated) const {
    std::vector<std::shared_ptr<internal::VariableService>> services;
    for (int i = 0; i < count(); ++i) {
      internal::RemoteService::Options options{concat("grpc://", address(i))};
      options.client.self = {"chief", 0, ""};
      options.client.server = {"ps", i, address(i)};
      options.client.job_id = "test";
      options.client.connect_timeout = 10s;
      options.patience = 60s;
      options.outlives_restarts = true;
      services.push_back(std::make_shared<RepeatingService>(
          std::make_shared<internal::RemoteService>(std::move(options)), repeated,
          static_cast<std::uint64_t>(i)));
    }
    return services;
  }

 private:
  struct Process {
    explicit Process(int server) : store(concat("ps ", server), 0, /*is_open=*/false) {}
    internal::VariableStore store;
    internal::VariableHandler handler{store};
    std::unique_ptr<RpcServer> rpc;
  };
  std::string address(int server) const {
    return concat("127.0.0.1:", ports_[static_cast<std::size_t>(server)]);
  }

  const std::vector<int> ports_;
  std::uint64_t num_started_ = 0;
  std::vector<std::unique_ptr<Process>> processes_;
};

/// Job whose workers are threads and whose servers are reached over RPC. Every closure adds 1 to a
/// number and to a row on each server, in two messages.
class CountingJob final : public CoordinatedStrategy {
 public:
  static constexpr std::int64_t kRows = 7;
  std::atomic<bool> fails_from_now_on{false};  // makes every closure fail

  explicit CountingJob(ServerProcesses& processes, double repeated = 0.0)
      : processes_(processes),
        servers_(std::make_shared<internal::ParameterServers>(processes.services(repeated), 60s)),
        group_(servers_, 60s) {
    group_.begin();
    for (int i = 0; i < processes_.count(); ++i) {
      const auto made = servers_->link(i).read(
          {internal::CreateShard{number(i), Tensor::scalar(0, DType::kInt64)},
           internal::CreateShard{rows(i), Tensor::zeros({kRows}, DType::kInt64)}});
      (void)made->wait(store_tests::soon());
      servers_->note_made({{i, number(i)}, {i, rows(i)}});
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
  internal::ServerGroup* server_group() override { return &group_; }
  std::unique_ptr<internal::WorkerLink> connect_worker(int worker,
                                                       internal::StepRegistry& registry) override {
    return std::make_unique<testing::MortalWorker>(worker, *this, registry);
  }

  ClusterCoordinator begin(const std::string& folder, Duration interval = 30s) {
    ClusterCoordinatorOptions options;
    options.most_attempts = 1000;  // because tests kill workers on purpose
    options.checkpoint_folder = folder;
    options.checkpoint_interval = interval;
    ClusterCoordinator coordinator(*this, options);
    coordinator.define("count", [this](std::int64_t closure) {
      if (fails_from_now_on.load()) fail(ErrorCode::kOutOfRange, "the dataset has ended");
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
  /// Schedules `count` closures and waits for them.
  static void count_more(ClusterCoordinator& coordinator, int count) {
    for (int i = 0; i < count; ++i) (void)schedule(coordinator);
    coordinator.join();
  }
  /// Reads the current value of a shard, as a chief does.
  Tensor read(int server, const internal::ShardSpec& spec) {
    return servers_->read_current([&] {
      const auto answers = servers_->link(server).read({internal::ReadShard{spec.id()}});
      return *internal::from_server([&] { return answers->wait(store_tests::soon()); }).at(0).value;
    });
  }
  void expect_counted(std::int64_t closures) {
    for (int i = 0; i < processes_.count(); ++i) {
      EXPECT_EQ(read(i, number(i)).item_int(), closures) << "ps " << i;
      const Tensor by_row = read(i, rows(i));
      for (std::int64_t row = 0; row < kRows; ++row) {
        EXPECT_EQ(by_row.host_span<std::int64_t>()[static_cast<std::size_t>(row)],
                  (closures - row + kRows - 1) / kRows)
            << "ps " << i << ", row " << row;
      }
    }
  }
  /// Kills a server and reports its loss to the server group.
  void kill(int server) {
    processes_.kill(server);
    group_.note_loss(concat("ps ", server, ": killed"));
  }
  void replace(int server) {
    kill(server);
    processes_.start(server);
  }
  internal::ParameterServers& servers() { return *servers_; }
  static internal::ShardSpec number(int server) {
    return store_tests::whole(concat("number ", server), {}, DType::kInt64);
  }
  static internal::ShardSpec rows(int server) {
    return store_tests::whole(concat("rows ", server), {kRows}, DType::kInt64);
  }

 private:
  ServerProcesses& processes_;
  const std::shared_ptr<internal::ParameterServers> servers_;
  internal::ServerGroup group_;
};

}  // namespace tutti::server_processes
