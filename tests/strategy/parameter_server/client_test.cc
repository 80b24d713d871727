// Tests the client side of parameter servers: links to servers, remote stores, steps of workers,
// serialized update rules, and initial values.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/rpc_server.h"
#include "strategy/parameter_server/client/first_values.h"
#include "strategy/parameter_server/client/parameter_servers.h"
#include "strategy/parameter_server/client/replica_steps.h"
#include "strategy/parameter_server/client/server_link.h"
#include "tests/cluster/control_job.h"
#include "tests/strategy/parameter_server/store_helpers.h"
#include "tests/support/chaos_proxy.h"
#include "tests/support/ranks.h"
#include "tests/support/waiting.h"
#include "tools/launch/job_plan.h"
#include "tutti/strategy/parameter_server/session/server.h"

namespace tutti {
namespace {
namespace ps_client {

using namespace std::chrono_literals;
using namespace store_tests;
using internal::FirstValues;
using internal::ReadCache;
using internal::RemoteService;
using internal::ReplicaSteps;
using internal::ServerLink;
using Steps = std::vector<std::uint64_t>;

/// Store that counts the operations of each batch.
class Counting final : public VariableService {
 public:
  std::string name() const override { return store_.name(); }
  std::shared_ptr<PendingAnswers> start(OperationBatch batch) override {
    batches.push_back(batch.operations.size());
    return store_.start(std::move(batch));
  }
  std::vector<std::size_t> batches;

 private:
  VariableStore store_{"ps 0"};
};

/// Link to a store with `count` scalars; scalar i has the value i.
struct Linked {
  explicit Linked(int count) {
    std::vector<Operation> creations;
    for (int i = 0; i < count; ++i) {
      const ShardSpec spec = whole(concat("v", i), {});
      creations.push_back(CreateShard{spec, Tensor(static_cast<float>(i))});
      ids.push_back(spec.id());
    }
    (void)link.read(std::move(creations))->wait(soon());
    service->batches.clear();
  }
  std::vector<Operation> reads() const {
    std::vector<Operation> all;
    for (const ShardId id : ids) all.push_back(ReadShard{id});
    return all;
  }
  /// Starts a read of all scalars; `bytes` is the expected size of each value.
  std::shared_ptr<PendingAnswers> read(std::size_t bytes) {
    return link.read(reads(), std::vector<std::size_t>(ids.size(), bytes));
  }
  std::shared_ptr<Counting> service = std::make_shared<Counting>();
  ServerLink link{service, 1};
  std::vector<ShardId> ids;
};

void expect_numbers(const std::vector<OperationAnswer>& answers, std::size_t count) {
  ASSERT_EQ(answers.size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    expect_tensor(*answers[i].value, {}, {static_cast<double>(i)});
  }
}

TEST(ServerLink, LargeReadIsSplitIntoOrderedRequests) {
  Linked linked(10);
  const auto answers = linked.read(std::size_t{400} << 10);
  EXPECT_EQ(linked.service->batches, (std::vector<std::size_t>{3, 3, 3, 1}));
  EXPECT_TRUE(answers->is_ready());
  expect_numbers(answers->wait(soon()), 10);
}

TEST(ServerLink, SmallReadUsesSingleRequest) {
  Linked linked(10);
  expect_numbers(linked.link.read(linked.reads())->wait(soon()), 10);
  expect_numbers(linked.read(100)->wait(soon()), 10);
  EXPECT_EQ(linked.service->batches, (std::vector<std::size_t>{10, 10}));
}

TEST(ServerLink, ReadIsSplitIntoAtMost32Requests) {
  Linked linked(1000);
  expect_numbers(linked.read(std::size_t{64} << 20)->wait(soon()), 1000);
  EXPECT_EQ(linked.service->batches.size(), 32u);
  EXPECT_EQ(linked.service->batches.front(), 32u);  // 1000 / 32, rounded up
  EXPECT_EQ(linked.service->batches.back(), 8u);
}

TEST(ServerLink, SplitReadSeesEarlierChanges) {
  Linked linked(4);
  linked.link.change(addition(linked.ids[3], Tensor(10.0f)));
  const auto answers = linked.read(std::size_t{1} << 20)->wait(soon());
  EXPECT_EQ(linked.service->batches, (std::vector<std::size_t>{1, 1, 1, 1, 1}));
  expect_tensor(*answers[3].value, {}, {13});
}

TEST(ServerLink, FailureOfOneRequestFailsSplitRead) {
  Linked linked(3);
  linked.ids[2] = 5;
  const auto answers = linked.read(std::size_t{1} << 20);
  EXPECT_ERROR((void)answers->wait(soon()), kNotFound, "ps 0", "there is no shard with the id 5");
}

/// Store that applies every batch, and loses the reply to the next batch if `loses_next` is set.
class LosingAnswers final : public VariableService {
 public:
  std::string name() const override { return store.name(); }
  std::shared_ptr<PendingAnswers> start(OperationBatch batch) override {
    auto answers = store.start(std::move(batch));
    if (!std::exchange(loses_next, false)) return answers;
    auto lost = std::make_shared<internal::AwaitedAnswers>(store.name());
    lost->set_result({{}, Error(ErrorCode::kUnavailable, "the connection broke")});
    return lost;
  }
  VariableStore store{"ps 0"};
  bool loses_next = false;
};

TEST(ServerLink, ChangeAfterLostResponseIsNotTreatedAsDuplicate) {
  const auto service = std::make_shared<LosingAnswers>();
  ServerLink link(service, 1);
  const ShardId id = Client(service->store, 2).create(whole("w", {}), Tensor(0.0F));
  link.change(addition(id, Tensor(1.0F)));
  service->loses_next = true;
  EXPECT_ERROR(link.settle(soon()), kUnavailable, "ps 0: the connection broke");
  link.change(addition(id, Tensor(10.0F)));
  link.settle(soon());
  EXPECT_EQ(Client(service->store, 2).read(id).item(), 11.0F);
}

struct Worker {
  ReplicaSteps steps{1, 3, 2};
  const std::shared_ptr<ReadCache> w = std::make_shared<ReadCache>();
  const std::shared_ptr<ReadCache> b = std::make_shared<ReadCache>();
  const std::shared_ptr<ReadCache> rate = std::make_shared<ReadCache>();  // no step updates it

  void read(const Steps& of_w, const Steps& of_b) {
    steps.begin_step();
    steps.note_read(rate, Steps{0});
    steps.note_read(w, of_w);
    steps.note_read(b, of_b);
  }
};

TEST(ReplicaStepsTest, GradientsBelongToStepThatReadVariables) {
  Worker worker;
  worker.read({0, 0}, {0});
  EXPECT_EQ(worker.steps.at_least(worker.w), 0u);
  const auto first = worker.steps.assign_step(worker.w);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->step, 0u);
  EXPECT_EQ(first->rank, 1);
  EXPECT_EQ(first->num_ranks, 3);
  EXPECT_EQ(first->num_to_aggregate, 2);
  EXPECT_EQ(first->divisor, 2.0 / 3.0);
  EXPECT_EQ(worker.steps.assign_step(worker.b)->step, 0u);
  EXPECT_EQ(worker.steps.at_least(worker.w), 1u);
  EXPECT_EQ(worker.steps.at_least(worker.rate), 0u);
  worker.read({5, 5}, {5});  // the other workers advanced to step 5
  EXPECT_EQ(worker.steps.assign_step(worker.b)->step, 5u);
  EXPECT_EQ(worker.steps.at_least(worker.b), 6u);
}

TEST(ReplicaStepsTest, ReadsOfMixedStepsAreRetriedOrDropped) {
  Worker worker;
  worker.read({0}, {0});
  (void)worker.steps.assign_step(worker.w), (void)worker.steps.assign_step(worker.b);
  worker.read({1}, {2});
  const std::shared_ptr<ReadCache> both[] = {worker.w, worker.b}, rates[] = {worker.rate, worker.b};
  EXPECT_EQ(worker.steps.is_behind(both), 2u);
  EXPECT_FALSE(worker.steps.is_behind(rates));
  EXPECT_FALSE(worker.steps.assign_step(worker.w));
  EXPECT_FALSE(worker.steps.assign_step(worker.b));
  EXPECT_EQ(worker.steps.at_least(worker.w), 1u);
  worker.read({2}, {3});
  worker.steps.note_read(worker.w, Steps{3});  // a second read, now in step 3
  EXPECT_FALSE(worker.steps.is_behind(both));
  EXPECT_EQ(worker.steps.assign_step(worker.w)->step, 3u);
  worker.read({4}, {4});
  worker.steps.note_rows(worker.w, 5);  // rows were read in step 5, but the variable in step 4
  EXPECT_FALSE(worker.steps.assign_step(worker.w));
}

TEST(ReplicaStepsTest, SecondUpdateInOneStepFails) {
  Worker worker;
  worker.read({0}, {0});
  (void)worker.steps.assign_step(worker.w);
  EXPECT_ERROR((void)worker.steps.assign_step(worker.w), kUnimplemented, "twice");
  worker.read({1}, {1});
  EXPECT_TRUE(worker.steps.assign_step(worker.w));
}

TEST(ReplicaStepsTest, FirstStepOfLateWorkerIsSkipped) {
  Worker worker;
  worker.read({7}, {7});  // the rate is still at step 0, so this read might be stale
  EXPECT_FALSE(worker.steps.assign_step(worker.w));
  EXPECT_FALSE(worker.steps.assign_step(worker.b));
  worker.read({7}, {7});
  EXPECT_EQ(worker.steps.assign_step(worker.w)->step, 7u);
}

TEST(RuleTextCache, ReturnsSameTextUntilRuleChanges) {
  internal::ParameterServers servers({}, 1s);
  SgdRule rule(0.5);
  const internal::SharedText first = servers.rule_text(rule);
  EXPECT_EQ(first.text(), describe_update_rule(rule));
  EXPECT_EQ(servers.rule_text(SgdRule()).text(), describe_update_rule(SgdRule()));
  EXPECT_EQ(&servers.rule_text(rule).text(), &first.text());
  rule = SgdRule(0.25);  // same address, new contents
  EXPECT_EQ(servers.rule_text(rule).text(), describe_update_rule(SgdRule(0.25)));
  std::vector<SgdRule> rules;  // more rules than the cache can hold
  for (int i = 0; i < 40; ++i) rules.emplace_back(i / 64.0);
  for (const SgdRule& each : rules)
    EXPECT_EQ(servers.rule_text(each).text(), describe_update_rule(each));
}

class Silent final : public UpdateRule {
 public:
  std::string_view name() const override { return "silent"; }
  std::vector<SlotSpec> slots() const override { return {}; }
  void apply(const UpdateArgs&) const override {}
};

TEST(RuleTextCache, RuleWithoutDescriptionAlwaysFails) {
  internal::ParameterServers servers({}, 1s);
  const Silent rule;
  for (int i = 0; i < 2; ++i) {
    EXPECT_ERROR((void)servers.rule_text(rule), kUnimplemented, "'silent'", "register_update_rule");
  }
}

TEST(FirstValues, MatchVariableStoreBitForBit) {
  FirstValues first("ps 0");
  VariableStore store("ps 0");
  const ShardSpec given{"given", DType::kFloat32, {4, 2}, 1, 2, 2, 2};
  const ShardSpec drawn{"drawn", DType::kFloat32, {6, 2}, 1, 3, 2, 2};
  const ValueGenerator normal{
      .kind = ValueGenerator::Kind::kNormal, .b = 1.0, .key = {.seed = 7}, .shape = {6, 2}};
  Client of_first(first, 1), of_store(store, 1);
  for (Client* client : {&of_first, &of_store}) {
    client->call({CreateShard{given, Tensor::full({2, 2}, 3.0)}, CreateShard{drawn, normal}});
    client->call({CreateShard{given, Tensor::full({2, 2}, 5.0)}});  // the shard already exists
  }
  for (const ShardSpec& spec : {given, drawn}) {
    expect_same_bits(of_first.read(spec.id()), of_store.read(spec.id()));
    const ReadRows row{spec.id(), rows_of({1, 0, 1})};
    expect_same_bits(*of_first.call({row})[0].value, *of_store.call({row})[0].value);
  }
  const auto answer = of_first.call({ReadShard{given.id()}})[0];
  EXPECT_FALSE(of_first.call({ReadShard{given.id(), answer.version}})[0].value.has_value());
}

TEST(FirstValues, UpdatesAreRejected) {
  FirstValues first("ps 1");
  Client client(first, 1);
  const ShardSpec spec = whole("w", {2});
  EXPECT_ERROR(client.read(spec.id()), kNotFound, "ps 1", "no shard");
  client.call({CreateShard{spec, Tensor::ones({2})}});
  EXPECT_ERROR(client.call({addition(spec.id(), Tensor::ones({2}))}), kFailedPrecondition, "ps 1",
               "must not change variables");
  expect_tensor(client.read(spec.id()), {2}, {1.0, 1.0});
}

/// Handler that counts clients that left, clients that were lost, and concurrent calls to take().
class CountingHandler final : public internal::VariableHandler {
 public:
  using VariableHandler::VariableHandler;
  void take(std::shared_ptr<RpcCall> call) override {
    const int num_inside = ++num_inside_;
    most_inside = std::max(most_inside.load(), num_inside);
    if (before_take) before_take();
    VariableHandler::take(std::move(call));
    --num_inside_;
  }
  void client_left(const RpcPeer& peer) override {
    VariableHandler::client_left(peer);
    ++num_left;
  }
  void client_lost(const RpcPeer& peer) override {
    VariableHandler::client_left(peer);
    ++num_lost;
  }
  std::function<void()> before_take = {};  // called before each take(); set before the first call
  std::atomic<int> num_left{0}, num_lost{0}, most_inside{0};

 private:
  std::atomic<int> num_inside_{0};
};

/// Variable server that clients reach over RPC.
struct Served {
  explicit Served(const TlsFiles& tls = {}) : tls(tls) { start(); }
  void start(std::uint64_t incarnation = 0) {
    RpcServerOptions options;
    options.self = {"ps", 3, ""};
    options.tls = tls;
    options.incarnation = incarnation;
    if (!target.empty()) options.address = target.substr(target.find("://") + 3);
    server = RpcServer::start(options, {{RpcMethod::kApply, &handler}});
    target = server->target();
  }
  std::shared_ptr<RemoteService> connect(const std::string& through = "",
                                         bool outlives_restarts = false) const {
    RemoteService::Options options{through.empty() ? target : through};
    options.client.self = {"worker", 1, ""};
    options.client.server = {"ps", 3, ""};
    options.client.tls = tls;
    options.outlives_restarts = outlives_restarts;
    options.patience = outlives_restarts ? 60s : 2s;
    return std::make_shared<RemoteService>(std::move(options));
  }
  const TlsFiles tls;
  std::string target;
  VariableStore store{"ps 3"};
  CountingHandler handler{store};
  std::unique_ptr<RpcServer> server;
};

TEST(RemoteService, ReturnsSameRepliesAsStore) {
  Served served;
  const auto service = served.connect();
  Client client(*service, 1);
  EXPECT_EQ(service->name(), "ps 3 (" + served.target.substr(7) + ")");
  const ShardSpec spec = whole("w", {50, 70});
  const Tensor value = Tensor::full({50, 70}, 1.5);
  client.call({CreateShard{spec, Tensor::zeros({50, 70})}});
  const auto answers = client.call(
      {addition(spec.id(), value), ReadShard{spec.id()}, ReadRows{spec.id(), rows_of({7})}});
  expect_same_bits(*answers[1].value, value);
  expect_same_bits(*answers[2].value, value.detached_rows(7, 1));
  EXPECT_EQ(answers[0].version, 2u);
  EXPECT_FALSE(client.call({ReadShard{spec.id(), 2}})[0].value.has_value());
}

TEST(RemoteService, ErrorsNameServer) {
  Served served;
  const auto service = served.connect();
  Client client(*service, 1);
  EXPECT_ERROR(client.call({ReadShard{5}}), kNotFound,
               "ps 3 (127.0.0.1:", "operation 0 of 1: there is no shard");
  const auto unsendable = client.start({addition(5, Tensor())});
  EXPECT_TRUE(unsendable->is_ready());
  EXPECT_ERROR((void)unsendable->wait(soon()), kInvalidArgument, "ps 3 (127.0.0.1:", "undefined");
}

/// Each change counts once, although batches are sent again after every reconnection.
TEST(RemoteService, ConnectionFaultsNeitherLoseNorRepeatChanges) {
  Served served(control_job::make_certificate("remote_service"));
  testing::ChaosPlan plan;
  plan.seed = 7;
  plan.cut_every = 4 << 20;
  plan.flip_every = 3 << 20;
  plan.half_close_every = 9 << 20;
  plan.most_events = 8;
  plan.spares = 100000;
  const testing::ChaosProxy proxy(*internal::parse_endpoint(served.target.substr(7)), plan);
  const auto service = served.connect(concat("grpc://", proxy.endpoint().to_string()), true);
  Client client(*service, 1);
  const ShardId id = client.create(whole("w", {60000}), Tensor::zeros({60000}));
  std::vector<std::shared_ptr<PendingAnswers>> pending;
  for (int i = 0; i < 150; ++i) {
    pending.push_back(client.start({addition(id, Tensor::ones({60000})), ReadShard{id}}));
  }
  for (int i = 0; i < 150; ++i) {
    const auto answers = pending[static_cast<std::size_t>(i)]->wait(soon());
    // A repeated read may see later changes.
    const float seen = answers[1].value->host_span<float>()[59999];
    EXPECT_TRUE(seen >= static_cast<float>(i + 1) && seen <= 150.0F) << i << ": " << seen;
  }
  expect_same_bits(client.read(id), Tensor::full({60000}, 150.0));
  EXPECT_GE(proxy.num_cuts() + proxy.num_flips() + proxy.num_half_closes(), 3);
}

TEST(RemoteService, CallsFailDuringServerOutageAndThenRecover) {
  Served served;
  const auto service = served.connect();
  Client client(*service, 1);
  const ShardId id = client.create(whole("w", {}), Tensor(1.0F));
  const auto waiting = client.start({ReadShard{id, 0, 1}});
  served.server.reset();
  EXPECT_ERROR((void)waiting->wait(soon()), kUnavailable, "worker 1",
               "ps 3 (127.0.0.1:", "did not reach");
  EXPECT_ERROR(client.read(id), kUnavailable, "ps 3 (127.0.0.1:");
  served.start();
  EXPECT_TRUE(testing::comes_true([&] {
    try {
      return client.read(id).item() == 1.0F;
    } catch (const Error&) {
      return false;
    }
  }));
}

TEST(RemoteService, ServerRestartAbortsCallsUnlessOutlivesRestartsIsSet) {
  for (const bool outlives : {false, true}) {
    Served served;
    const auto service = served.connect("", outlives);
    Client client(*service, 1);
    const ShardId id = client.create(whole("w", {}), Tensor(1.0F));
    const auto waiting = client.start({ReadShard{id, 0, 1}});
    served.server.reset();
    served.start(/*incarnation=*/1);
    if (outlives) {
      UpdateShard update = descent(id, Tensor(1.0F));
      update.sync = SyncSpec{0, 0, 1, 1, 1.0};
      client.call({update});
      EXPECT_EQ(waiting->wait(soon())[0].value->item(), 0.0F);
    } else {
      EXPECT_ERROR((void)waiting->wait(soon()), kAborted,
                   "ps 3 (127.0.0.1:", "was started again (incarnation 1)");
    }
    EXPECT_EQ(client.read(id).item(), outlives ? 0.0F : 1.0F);
  }
}

TEST(RemoteService, ShutsDownImmediatelyDuringReconnect) {
  Served served(control_job::make_certificate("remote_service_end"));
  testing::ChaosProxy proxy(*internal::parse_endpoint(served.target.substr(7)), {});
  for (int i = 0; i < 50; ++i) {
    const auto service = served.connect(concat("grpc://", proxy.endpoint().to_string()));
    Client client(*service, 1);
    EXPECT_ERROR(client.read(5), kNotFound, "ps 3");
    proxy.cut_all();
    // Varies the time of the shutdown: before the client notices the lost connection, during the
    // reconnection, or afterwards.
    Clock::system().sleep_for(std::chrono::microseconds(i % 25 * 100));
  }
}

TEST(RemoteService, DisconnectCancelsCallsButKeepsChangeHistory) {
  Served served;
  auto service = served.connect();
  Client client(*service, 1);
  const ShardId id = client.create(whole("w", {}), Tensor(0.0f));
  client.call({addition(id, Tensor(1.0f))});
  const auto waiting = client.start({ReadShard{id, 0, 1}});
  EXPECT_TRUE(testing::comes_true([&] { return served.store.counts().num_batches == 3; }));
  service.reset();
  EXPECT_ERROR((void)waiting->wait(soon()), kCancelled, "ps 3");
  // The server remembers the client's changes, because a call may still be in transit.
  OperationBatch late;
  late.stream = {UpdateStream::Kind::kClient, 1, 0};
  late.operations = {addition(id, Tensor(1.0f))};
  EXPECT_TRUE(served.store.start(late)->wait(soon())[0].was_applied_before);
}

TEST(RemoteService, DestructorDisconnectsGracefully) {
  Served served;
  {
    const auto service = served.connect();
    (void)Client(*service, 1).create(whole("w", {}), Tensor(0.0f));
  }
  EXPECT_TRUE(testing::comes_true([&] { return served.handler.num_left == 1; }));
  EXPECT_EQ(served.handler.num_lost, 0);
}

/// The server handles calls from a broken connection before calls from the next connection.
TEST(RemoteService, CallsBeforeReconnectPrecedeLaterCalls) {
  Served served(control_job::make_certificate("remote_service_order"));
  std::atomic<int> num_taken{0};
  Event open;
  served.handler.before_take = [&] {
    if (++num_taken == 2) open.wait_until(TimePoint::max());
  };
  testing::ChaosProxy proxy(*internal::parse_endpoint(served.target.substr(7)), {});
  const auto service = served.connect(concat("grpc://", proxy.endpoint().to_string()), true);
  Client client(*service, 1);
  const ShardId id = client.create(whole("w", {60000}), Tensor::zeros({60000}));
  const auto changed = client.start({addition(id, Tensor::ones({60000}))});
  const auto read = client.start({ReadShard{id}});
  EXPECT_TRUE(testing::comes_true([&] { return num_taken == 2; }));
  proxy.cut_all();
  EXPECT_TRUE(testing::comes_true([&] { return proxy.num_accepted() == 2; }));
  Clock::system().sleep_for(300ms);  // gives later calls time to overtake earlier ones
  open.set();
  (void)changed->wait(soon());
  expect_same_bits(*read->wait(soon())[0].value, Tensor::ones({60000}));
  EXPECT_EQ(served.handler.most_inside, 1);
}

TEST(RemoteService, ServerKeepsServingReconnectedIdleClient) {
  const std::string address = concat("127.0.0.1:", launch::free_ports(1).front());
  ServerOptions serving;
  serving.tls = control_job::make_certificate("remote_service_idle");
  Server server(ClusterSpec({{"ps", {address}}, {"worker", {"127.0.0.1:1"}}}), "ps", 0, serving);
  testing::ChaosProxy proxy(*internal::parse_endpoint(address), {});
  RemoteService::Options options{concat("grpc://", proxy.endpoint().to_string())};
  options.client.self = {"worker", 0, ""};
  options.client.server = {"ps", 0, ""};
  options.client.tls = serving.tls;
  options.patience = 60s;
  std::optional<RemoteService> service(options);
  Client client(*service, 1);
  const ShardId id = client.create(whole("w", {}), Tensor(2.0f));
  Event over;
  const auto thread = Executor::system().start("join", [&] {
    server.join();
    over.set();
  });
  proxy.cut_all();
  EXPECT_TRUE(testing::comes_true([&] { return proxy.num_accepted() == 2; }));
  EXPECT_FALSE(
      over.wait_until(deadline_after(Clock::system().now(), durations::kUnreachableAfter + 1s)));
  EXPECT_EQ(client.read(id).item(), 2.0f);
  service.reset();
  EXPECT_TRUE(over.wait_until(soon()));
}

TEST(RemoteService, ConcurrentIncrementsOverGrpcAreAllCounted) {
  Served served;
  const ShardSpec spec = whole("w", {1000});
  expect_on_ranks(2, [&](int number) {
    const auto service = served.connect();
    Client client(*service, static_cast<std::uint64_t>(number + 1));
    client.create(spec, Tensor::zeros({1000}));
    std::vector<std::shared_ptr<PendingAnswers>> pending;
    for (int i = 0; i < 1000; ++i) {
      pending.push_back(client.start({addition(spec.id(), Tensor::ones({1000}))}));
    }
    for (const auto& each : pending) (void)each->wait(soon());
  });
  Client reader(served.store, 9);
  expect_same_bits(reader.read(spec.id()), Tensor::full({1000}, 2000.0));
}

TEST(RemoteService, ReadOverGrpcWaitsForStep) {
  Served served;
  const auto one = served.connect(), two = served.connect();
  Client first(*one, 1), second(*two, 2);
  const ShardId id = first.create(whole("w", {3}), Tensor::zeros({3}));
  const auto gradient = [&](int rank) {
    UpdateShard update = descent(id, Tensor::full({3}, rank + 1.0));
    update.sync = SyncSpec{0, rank, 2, 2, 2.0};
    return update;
  };
  const auto waiting = first.start({gradient(0), ReadShard{id, 0, 1}});
  (void)first.read(id);  // a later call is answered before the waiting one
  EXPECT_FALSE(waiting->is_ready());
  second.call({gradient(1)});
  expect_tensor(*waiting->wait(soon())[1].value, {3}, {-1.5, -1.5, -1.5});
}

}  // namespace ps_client
}  // namespace
}  // namespace tutti
