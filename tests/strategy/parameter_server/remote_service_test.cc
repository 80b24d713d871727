// A variable store behind a connection: the same answers, errors with names, clients that leave.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/client/server_link.h"

#include <memory>
#include <utility>

#include "cluster/rpc/rpc_server.h"
#include "tests/strategy/parameter_server/packet_helpers.h"
#include "tutti/core/executor.h"

namespace tutti {
namespace {
namespace remote_service {

using namespace store_tests;
using internal::RemoteService;
using internal::VariableHandler;

/// A call whose packets are cut into pieces of 100 bytes on both ways.
class CutCall final : public RpcCall {
 public:
  CutCall(RpcPeer peer, const Packet& request)
      : peer_(std::move(peer)), request_(cut(request, 100)) {}
  const RpcPeer& peer() const override { return peer_; }
  const Packet& request() const override { return request_; }
  void reply(Packet packet) override { answer->set(cut(packet, 100)); }
  void fail(const Error& failed) override {
    answer->set_error(failed.with_context("ps 3 (nowhere)"));
  }
  const std::shared_ptr<RpcReply> answer =
      std::make_shared<RpcReply>(std::make_shared<std::string>("ps 3 (nowhere)"));

 private:
  RpcPeer peer_;
  Packet request_;
};

/// Hands each call to a handler `repeats` times, as a connection that breaks would.
class CutClient final : public RpcClient {
 public:
  CutClient(RpcHandler& handler, int repeats) : handler_(handler), repeats_(repeats) {}
  std::shared_ptr<RpcReply> start(Packet request) override {
    std::shared_ptr<CutCall> call;
    for (int i = 0; i < repeats_; ++i) {
      call = std::make_shared<CutCall>(peer(), request);
      try {
        handler_.take(call);
      } catch (const Error& error) {
        call->fail(error);
      }
    }
    return call->answer;
  }
  void fail_all(const Error&) override {}
  std::uint64_t server_incarnation() const override { return 0; }
  std::string server_name() const override { return "ps 3 (nowhere)"; }
  static RpcPeer peer() { return {{"worker", 1, ""}, 0, 77, "here"}; }

 private:
  RpcHandler& handler_;
  const int repeats_;
};

TEST(RemoteService, GivesTheAnswersOfTheStore) {
  VariableStore store("ps 3");
  VariableHandler handler(store);
  RemoteService service(std::make_shared<CutClient>(handler, 1));
  EXPECT_EQ(service.name(), "ps 3 (nowhere)");
  Client client(service, 1);
  const ShardSpec spec = whole("w", {50, 70});
  const Tensor value = Tensor::full({50, 70}, 1.5);
  client.call({CreateShard{spec, Tensor::zeros({50, 70})}});
  const auto answers = client.call({AssignShard{spec.id(), AssignOp::kAdd, value},
                                    ReadShard{spec.id()}, ReadRows{spec.id(), rows_of({7})}});
  expect_same_bits(*answers[1].value, value);
  expect_same_bits(*answers[2].value, value.detached_rows(7, 1));
  EXPECT_EQ(answers[0].version, 2u);
  EXPECT_FALSE(client.call({ReadShard{spec.id(), 2}})[0].value.has_value());
}

TEST(RemoteService, CallsThatComeAgainChangeNothing) {
  VariableStore store("ps 3");
  VariableHandler handler(store);
  RemoteService service(std::make_shared<CutClient>(handler, 3));
  Client client(service, 1);
  const ShardId id = whole("w", {}).id();
  client.call({CreateShard{whole("w", {}), Tensor(0.0f)}});
  for (int i = 0; i < 10; ++i) client.call({AssignShard{id, AssignOp::kAdd, Tensor(1.0f)}});
  expect_tensor(client.read(id), {}, {10});
  EXPECT_EQ(store.statistics().num_applied_before, 20u);
}

TEST(RemoteService, ErrorsNameTheServer) {
  VariableStore store("ps 3");
  VariableHandler handler(store);
  RemoteService service(std::make_shared<CutClient>(handler, 1));
  Client client(service, 1);
  EXPECT_ERROR(client.call({ReadShard{5}}), kNotFound,
               "ps 3 (nowhere): operation 0 of 1: there is no shard");
  const auto unsendable = client.start({AssignShard{5, AssignOp::kAdd, Tensor()}});
  EXPECT_TRUE(unsendable->is_ready());
  EXPECT_ERROR((void)unsendable->wait(soon()), kInvalidArgument, "ps 3 (nowhere)", "undefined");
  CutCall garbage(CutClient::peer(), Packet{{std::byte{9}}, {}});
  EXPECT_ERROR(handler.take(std::make_shared<CutCall>(garbage)), kDataLoss, "OperationBatch");
}

TEST(RemoteService, AClientThatLeftIsForgotten) {
  VariableStore store("ps 3");
  VariableHandler handler(store);
  RemoteService service(std::make_shared<CutClient>(handler, 1));
  Client client(service, 1);
  const ShardId id = whole("w", {}).id();
  client.call({CreateShard{whole("w", {}), Tensor(0.0f)}});
  client.call({AssignShard{id, AssignOp::kAdd, Tensor(1.0f)}});
  const auto waiting = client.start({ReadShard{id, 0, 1}});
  EXPECT_FALSE(waiting->is_ready());
  handler.client_left(CutClient::peer());
  store.fail_waiting_reads(Error(ErrorCode::kAborted, "nobody waits"));
  EXPECT_FALSE(waiting->is_ready());
  // Its changes are still known: a call may be on its way.
  OperationBatch late;
  late.stream = {UpdateStream::Kind::kClient, 1, 0};
  late.operations = {AssignShard{id, AssignOp::kAdd, Tensor(1.0f)}};
  EXPECT_TRUE(store.start(late)->wait(soon())[0].was_applied_before);
}

/// A server of variables, reached by calls.
struct Served {
  std::shared_ptr<RemoteService> connect() const {
    RpcClientOptions options;
    options.self = {"worker", 0, ""};
    return std::make_shared<RemoteService>(
        RpcClient::connect(server->target(), RpcMethod::kApply, options));
  }
  VariableStore store{"ps 0"};
  VariableHandler handler{store};
  std::unique_ptr<RpcServer> server = RpcServer::start({}, {{RpcMethod::kApply, &handler}});
};

TEST(RemoteService, TwoClientsCountToTwoThousandOverGrpc) {
  Served served;
  const ShardSpec spec = whole("w", {1000});
  std::vector<std::unique_ptr<Thread>> threads;
  for (int number = 0; number < 2; ++number) {
    threads.push_back(Executor::system().start("client", [&served, &spec, number] {
      const auto service = served.connect();
      Client client(*service, static_cast<std::uint64_t>(number + 1));
      client.call({CreateShard{spec, Tensor::zeros({1000})}});
      std::vector<std::shared_ptr<PendingAnswers>> pending;
      for (int i = 0; i < 1000; ++i) {
        pending.push_back(
            client.start({AssignShard{spec.id(), AssignOp::kAdd, Tensor::ones({1000})}}));
      }
      for (const auto& each : pending) (void)each->wait(soon());
    }));
  }
  for (const auto& thread : threads) thread->join();
  Client reader(served.store, 9);
  expect_same_bits(reader.read(spec.id()), Tensor::full({1000}, 2000.0));
}

TEST(RemoteService, ReadsWaitForAStepOverGrpc) {
  Served served;
  const auto one = served.connect(), two = served.connect();
  Client first(*one, 1), second(*two, 2);
  const ShardSpec spec = whole("w", {3});
  first.call({CreateShard{spec, Tensor::zeros({3})}});
  const auto gradient = [&](int rank) {
    UpdateShard update{spec.id(), {}, R"({"rule":"sgd","momentum":0.0,"nesterov":false})"};
    update.scalars.learning_rate = 1.0;
    update.gradient = Tensor::full({3}, rank + 1.0);
    update.sync = SyncSpec{0, rank, 2, 2, 2.0};
    return update;
  };
  const auto waiting = first.start({gradient(0), ReadShard{spec.id(), 0, 1}});
  (void)first.read(spec.id());  // later calls are answered first
  EXPECT_FALSE(waiting->is_ready());
  second.call({gradient(1)});
  expect_tensor(*waiting->wait(soon())[1].value, {3}, {-1.5, -1.5, -1.5});
}

}  // namespace remote_service
}  // namespace
}  // namespace tutti
