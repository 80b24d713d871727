// Tests calls between tasks, including calls over connections that break and messages that gRPC
// splits at any byte.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <map>
#include <stdexcept>

#include "cluster/net/socket.h"
#include "cluster/rpc/call_messages.h"
#include "parameter_server.pb.h"
#include "tests/cluster/control_job.h"
#include "tests/cluster/rpc_kit.h"
#include "tests/support/chaos_proxy.h"

namespace tutti::rpc_suite::rpc_calls_test {

using testing::ChaosPlan;
using testing::ChaosProxy;

class RpcCalls : public ::testing::Test {
 protected:
  static std::unique_ptr<RpcServer> serve(RpcHandler& handler) {
    return start_server(server_options(), handler);
  }
  static std::unique_ptr<RpcClient> connect(const RpcServer& server, int index = 0) {
    return RpcClient::connect(server.target(), RpcMethod::kApply, client_options(index));
  }
  /// Server and its only client.
  struct Pair {
    explicit Pair(Handler::Take take = Handler::echo)
        : handler(std::move(take)), server(serve(handler)), client(connect(*server)) {}
    Handler handler;
    const std::unique_ptr<RpcServer> server;
    const std::unique_ptr<RpcClient> client;
  };
  /// Returns an address at which the server can be restarted.
  static std::string address_of(const RpcServer& server) {
    return server.target().substr(server.target().find("://") + 3);
  }

  Keeper keeper_;
};

TEST_F(RpcCalls, HeadersAndPayloadsOfAllLengthsRoundTrip) {
  const Pair pair;
  unsigned seed = 0;
  for (const std::size_t head : {0, 1, 100, 70000}) {
    for (const std::size_t size : {0, 1, 63, 64, 65, 4097, 65535, 65536, 1 << 20, (5 << 20) + 3}) {
      const Packet request{pattern_of(head, ++seed), {shared(pattern_of(size, ++seed))}};
      const Packet answer = pair.client->call(request, late());
      EXPECT_EQ(answer.head, request.head) << head << ", " << size;
      EXPECT_EQ(all_of(answer), all_of(request)) << head << ", " << size;
    }
  }
  const Packet large{pattern_of(4 << 20, 6), {shared(pattern_of(64 << 20, 7))}};
  const Packet answer = pair.client->call(large, late());
  EXPECT_TRUE(answer.head == large.head);
  EXPECT_TRUE(all_of(answer) == all_of(large));
}

TEST_F(RpcCalls, ChunkedPayloadsKeepBytesAndAlignment) {
  const auto check_pieces = [](const Packet& packet) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < packet.payload.size(); ++i) {
      const SharedBytes& piece = packet.payload[i];
      EXPECT_EQ(at % 64, 0u) << "piece " << i;
      EXPECT_TRUE(piece.bytes.size() >= 16 || i + 1 == packet.payload.size());
      EXPECT_TRUE(piece.owner != nullptr || piece.bytes.empty());
      at += piece.bytes.size();
    }
  };
  const Pair pair([&](const std::shared_ptr<RpcCall>& call) {
    check_pieces(call->request());
    Handler::echo(call);
  });
  Packet request = packet("many");
  for (const std::size_t size : {64, 128, 65536, 192, 3 << 20, 64, 1 << 20, 11}) {
    request.payload.push_back(shared(pattern_of(size, static_cast<unsigned>(size))));
  }
  const Packet answer = pair.client->call(request, late());
  check_pieces(answer);
  EXPECT_EQ(all_of(answer), all_of(request));
  // Reads ranges of the payload, some of which begin or end inside slices.
  const Bytes all = all_of(request);
  for (const auto& [first, count] :
       {std::pair<std::size_t, std::size_t>{0, 64}, {100, 65600}, {65000, 3 << 20}, {0, 0}}) {
    const SharedBytes part = payload_range(answer, first, count);
    EXPECT_TRUE(std::equal(part.bytes.begin(), part.bytes.end(),
                           all.begin() + static_cast<std::ptrdiff_t>(first)));
    EXPECT_EQ(part.bytes.size(), count);
  }
  EXPECT_ERROR((void)payload_range(answer, 1, all.size()), kDataLoss, "payload_range");
}

TEST_F(RpcCalls, ThousandsOfSmallAndLargeChunksArriveComplete) {
  const Pair pair;
  Packet request = packet("pieces");
  for (unsigned i = 0; i < 3000; ++i) {
    const bool is_large =
        i % 700 == 699;  // the small buffers between two large ones exceed one message in total
    const std::size_t size = is_large ? (1 << 20) + 64 * i : 64 * (i * 37 % 150 + 1);
    request.payload.push_back(shared(pattern_of(size, i)));
  }
  request.payload.push_back(shared(pattern_of(11, 9)));
  const Packet answer = pair.client->call(request, late());
  EXPECT_TRUE(all_of(answer) == all_of(request));
}

TEST_F(RpcCalls, PendingCallsMayBeAnsweredInAnyOrder) {
  const Pair pair(keeper_.take());
  std::vector<std::shared_ptr<RpcReply>> replies;
  for (int i = 0; i < 300; ++i) replies.push_back(pair.client->start(packet(concat("call ", i))));
  EXPECT_TRUE(comes_true([&] { return keeper_.size() == 300; })) << keeper_.size();
  auto calls = keeper_.release();
  for (const auto& reply : replies) EXPECT_FALSE(reply->is_ready());
  const auto answering = Executor::system().start("answering", [&] {
    for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
      (*call)->reply(packet(concat("answer to ", text_of((*call)->request().head))));
    }
  });
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(text_of(replies[static_cast<std::size_t>(i)]->wait(late()).head),
              concat("answer to call ", i));
  }
  EXPECT_TRUE(replies.front()->is_ready());
  EXPECT_ERROR((void)replies.front()->wait(late()), kFailedPrecondition,
               "has already returned the reply");
}

TEST_F(RpcCalls, CallsFromClientArriveInOrderOneAtATime) {
  std::atomic<int> inside{0};
  Event all_sent;  // set once all requests have been sent
  std::vector<std::string> heads;
  const Pair pair([&](const std::shared_ptr<RpcCall>& call) {
    EXPECT_TRUE(all_sent.wait_until(late()));
    EXPECT_EQ(++inside, 1);
    // Needs no mutex, because requests arrive one at a time.
    heads.push_back(text_of(call->request().head));
    if (heads.size() % 50 == 0) Clock::system().sleep_for(1ms);
    --inside;
    call->reply({});
  });
  std::vector<std::shared_ptr<RpcReply>> replies;
  for (int i = 0; i < 400; ++i) {
    const std::size_t size = i % 10 == 3 ? 300000 : i % 10 == 5 ? 70000 : 10;
    replies.push_back(pair.client->start(packet(std::to_string(i), pattern_of(size, 1))));
  }
  all_sent.set();
  for (const auto& reply : replies) (void)reply->wait(late());
  ASSERT_EQ(heads.size(), 400u);
  for (int i = 0; i < 400; ++i) {
    EXPECT_EQ(heads[static_cast<std::size_t>(i)], std::to_string(i));
  }
}

TEST_F(RpcCalls, ClientsAreServedConcurrentlyAndIdentified) {
  Event second_came;
  Mutex mutex;
  std::map<std::string, RpcPeer> peers;
  Handler handler([&](const std::shared_ptr<RpcCall>& call) {
    {
      MutexLock lock(mutex);
      peers[text_of(call->request().head)] = call->peer();
    }
    // The first client's handler call returns only after the second client's has started.
    const bool is_first = text_of(call->request().head) == "one";
    if (!is_first) second_came.set();
    EXPECT_TRUE(second_came.wait_until(late()));
    call->reply({});
  });
  const auto server = serve(handler);
  const auto first = connect(*server, 0);
  const auto second = connect(*server, 3);
  // Calls of this size are not handled on a gRPC thread, because they would block it.
  const auto one = first->start(packet("one", pattern_of(100000, 1)));
  (void)second->call(packet("two", pattern_of(100000, 1)), late());
  (void)one->wait(late());
  EXPECT_EQ(peers.at("one").task.to_string(), "worker 0");
  EXPECT_EQ(peers.at("two").task.to_string(), "worker 3");
  EXPECT_NE(peers.at("one").client, peers.at("two").client);
  EXPECT_EQ(peers.at("two").to_string(), "worker 3");
}

TEST_F(RpcCalls, ErrorsCarryCodeAndServerName) {
  const Pair pair([&](const std::shared_ptr<RpcCall>& call) {
    const std::string what = text_of(call->request().head);
    if (what == "fail") call->fail(Error(ErrorCode::kNotFound, "no variable 'w'"));
    if (what == "throw") fail(ErrorCode::kOutOfRange, "row 9 of 3");
    if (what == "other") throw std::runtime_error("something else");
    if (what == "twice") {
      call->reply({});
      EXPECT_ERROR(call->reply({}), kFailedPrecondition, "worker 0", "one reply per call");
    }
  });
  const auto ask = [&](std::string_view what) { (void)pair.client->call(packet(what), late()); };
  const std::string name = pair.client->server_name();
  EXPECT_EQ(name, concat("ps 1 (", address_of(*pair.server), ")"));
  EXPECT_ERROR(ask("fail"), kNotFound, name + ": no variable 'w'");
  EXPECT_ERROR(ask("throw"), kOutOfRange, name + ": row 9 of 3");
  EXPECT_ERROR(ask("other"), kInternal, name, "something else");
  EXPECT_ERROR(ask("drop"), kInternal, name, "dropped without a reply");
  ask("twice");
}

TEST_F(RpcCalls, ReplyAfterDeadlineCanStillBeReceived) {
  const Pair pair(keeper_.take());
  const auto reply = pair.client->start(packet("slow"));
  EXPECT_ERROR((void)reply->wait(in(50ms)), kDeadlineExceeded, "worker 0: ps 1 (",
               "did not answer within");
  EXPECT_TRUE(comes_true([&] { return keeper_.size() == 1; }));
  keeper_.release().front()->reply(packet("at last"));
  EXPECT_EQ(text_of(reply->wait(late()).head), "at last");
  (void)pair.client->start(packet("no caller waits"));  // drops the handle of the reply
  EXPECT_TRUE(comes_true([&] { return keeper_.size() == 1; }));
  for (const auto& call : keeper_.release()) call->reply({});
}

TEST_F(RpcCalls, HandlerIsNotifiedOfDisconnectAfterCalls) {
  Handler handler(keeper_.take());
  const auto server = serve(handler);
  std::shared_ptr<RpcReply> reply;
  {
    const auto client = connect(*server, 2);
    reply = client->start(packet("last words"));
    EXPECT_TRUE(comes_true([&] { return keeper_.size() == 1; }));
  }
  EXPECT_ERROR((void)reply->wait(late()), kCancelled, "worker 2", "ps 1 (");
  EXPECT_TRUE(comes_true([&] { return handler.left().size() == 1; }));
  EXPECT_EQ(handler.left().front().task.to_string(), "worker 2");
  for (const auto& call : keeper_.release()) call->reply(packet("to no caller"));
}

TEST_F(RpcCalls, FailAllEndsPendingAndLaterCalls) {
  const Pair pair(keeper_.take());
  const auto before = pair.client->start(packet("before"));
  pair.client->fail_all(Error(ErrorCode::kUnavailable, "ps 1 died: its process is gone"));
  const auto after = pair.client->start(packet("after"));
  for (const auto& reply : {before, after}) {
    EXPECT_ERROR((void)reply->wait(late()), kUnavailable, "ps 1 died: its process is gone");
  }
}

TEST_F(RpcCalls, BrokenConnectionErrorNamesServer) {
  Handler handler(keeper_.take()), echo;
  auto server = serve(handler);
  const auto client = connect(*server);
  EXPECT_EQ(client->why_broken(), std::nullopt);
  const auto reply = client->start(packet("unanswered"));
  EXPECT_TRUE(comes_true([&] { return keeper_.size() == 1; }));
  const std::string address = address_of(*server);
  server.reset();
  for (const auto& call : keeper_.release()) call->reply({});  // these replies are discarded
  const std::string name = "worker 0: ps 1 (" + address + "): the connection broke";
  EXPECT_ERROR((void)reply->wait(late()), kUnavailable, name, "read its log");
  EXPECT_ERROR((void)client->call(packet("later"), late()), kUnavailable, name);
  EXPECT_EQ(client->wait_for_end(), client->why_broken());
  auto again = server_options();
  again.address = address;
  again.incarnation = 1;
  server = start_server(again, echo);
  EXPECT_ERROR((void)client->call(packet("to the next one"), late()), kUnavailable, name);
  const auto next = connect(*server);
  EXPECT_EQ(text_of(next->call(packet("new"), late()).head), "new");
  EXPECT_EQ(next->server_incarnation(), 1u);
  EXPECT_FALSE(next->is_same_process(*client));
}

TEST_F(RpcCalls, UnansweredCallsAreResentInOrderAfterReconnect) {
  std::vector<std::string> heads;
  Handler handler([&](const std::shared_ptr<RpcCall>& call) {
    heads.push_back(text_of(call->request().head));
    keeper_.take()(call);
  });
  auto server = serve(handler);
  auto options = client_options();
  options.keeps_calls = true;
  const auto connect = [&] {
    return RpcClient::connect(server->target(), RpcMethod::kApply, options);
  };
  const auto first = connect();
  std::vector<std::shared_ptr<RpcReply>> replies;
  for (int i = 0; i < 12; ++i) replies.push_back(first->start(packet(std::to_string(i))));
  EXPECT_TRUE(comes_true([&] { return keeper_.size() == 12; }));
  auto calls = keeper_.release();
  calls[3]->reply(packet("answered"));
  EXPECT_EQ(text_of(replies[3]->wait(late()).head), "answered");
  auto again = server_options();
  again.address = address_of(*server);
  server.reset();
  calls.clear();
  heads.clear();
  (void)first->wait_for_end();
  replies.push_back(first->start(packet("12")));  // this call, too, waits for the next connection
  server = start_server(again, handler);
  const auto second = connect();
  second->take_over(*first);
  replies.push_back(second->start(packet("13")));
  EXPECT_TRUE(comes_true([&] { return keeper_.size() == 13; }));
  EXPECT_EQ(join(heads), "0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13");
  for (const auto& call : keeper_.release()) call->reply(packet(text_of(call->request().head)));
  for (int i = 0; i < 14; ++i) {
    if (i == 3) continue;
    EXPECT_EQ(text_of(replies[static_cast<std::size_t>(i)]->wait(late()).head), std::to_string(i));
  }
}

TEST_F(RpcCalls, RefusesUnknownClientsWithReason) {
  Handler handler([](const std::shared_ptr<RpcCall>& call) {
    ADD_FAILURE() << "unexpected call from " << call->peer().to_string();
  });
  auto options = server_options();
  options.job_id = "job a";
  options.secret = JobSecret::generate();
  const auto server = start_server(options, handler);
  const auto expect_refusal = [&](const std::vector<std::string>& parts, const auto& change) {
    auto asking = client_options();
    asking.job_id = options.job_id;
    asking.secret = options.secret;
    change(asking);
    expect_error(ErrorCode::kFailedPrecondition, parts,
                 [&] { (void)RpcClient::connect(server->target(), RpcMethod::kApply, asking); });
  };
  using Options = RpcClientOptions;
  expect_refusal({"worker 0 cannot call ps 1 (", "secret"},
                 [](Options& asking) { asking.secret = JobSecret::generate(); });
  expect_refusal({"worker 0 cannot call ps 1 (", "secret"},
                 [](Options& asking) { asking.secret = JobSecret(); });
  expect_refusal({"two jobs met", "job a", "job b"},
                 [](Options& asking) { asking.job_id = "job b"; });
  expect_refusal({"cannot call ps 2 (", "ps 1 answers there, expected ps 2"},
                 [](Options& asking) { asking.server.index = 2; });
}

TEST_F(RpcCalls, InvalidArgumentsAreRejected) {
  Handler handler([](const std::shared_ptr<RpcCall>& call) {
    call->reply(packet("long", pattern_of(5000, 1)));
  });
  auto options = server_options();
  options.longest_payload = 4096;
  const auto server = start_server(options, handler);
  const auto client = connect(*server);
  EXPECT_INVALID((void)client->start(packet("", pattern_of(4097, 1))), "worker 0: ps 1 (",
                 "4097 of payload", "4096");
  EXPECT_INVALID((void)client->start({Bytes((4 << 20) + 1), {}}), "bytes of head");
  EXPECT_ERROR((void)client->call(packet("x"), late()), kResourceExhausted, "ps 1 (", "and 5000");
  EXPECT_INVALID((void)RpcClient::connect("grpc://127.0.0.1", RpcMethod::kApply, client_options()),
                 "rpc: expected a target grpc://host:port, got 'grpc://127.0.0.1'");
}

TEST_F(RpcCalls, ConnectTimeoutNamesServer) {
  Handler handler;
  auto server = serve(handler);
  const std::string target = server->target(), address = address_of(*server);
  server.reset();
  auto options = client_options();
  options.connect_timeout = 100ms;
  EXPECT_ERROR((void)RpcClient::connect(target, RpcMethod::kApply, options), kDeadlineExceeded,
               "worker 0 did not reach ps 1 (" + address + ") within 0.1 s");
}

TEST_F(RpcCalls, ConnectFailsForUnimplementedMethod) {
  Handler handler;
  const auto server = serve(handler);
  EXPECT_ERROR((void)RpcClient::connect(server->target(), RpcMethod::kRun, client_options()),
               kFailedPrecondition, "cannot call ps 1 (",
               "does not implement /tutti.v1.Worker/Run");
}

TEST_F(RpcCalls, NetworkAddressRequiresSecret) {
  Handler handler;
  auto options = server_options();
  options.address = "192.0.2.1:0";  // a network address; refused before the server listens
  EXPECT_INVALID((void)start_server(options, handler),
                 "RpcServer: other machines reach '192.0.2.1'");
  options.secret = JobSecret::generate();
  EXPECT_ERROR((void)start_server(options, handler), kUnavailable, "192.0.2.1");
  options.address = "127.0.0.1";
  EXPECT_INVALID((void)start_server(options, handler),
                 "expected an address host:port, got '127.0.0.1'");
}

using internal::CallMessage;
using internal::CallReader;
using internal::CallWriter;
using Side = CallReader::Side;

std::string wire_bytes(const grpc::ByteBuffer& message) {
  grpc::Slice whole;
  EXPECT_TRUE(message.DumpToSingleSlice(&whole).ok());
  return {whole.begin(), whole.end()};
}

grpc::ByteBuffer cut_up(const std::string& bytes, std::size_t cut) {
  std::vector<grpc::Slice> slices;
  for (std::size_t i = 0; i < bytes.size(); i += cut) {
    slices.emplace_back(&bytes[i], std::min(cut, bytes.size() - i));
  }
  return {slices.data(), slices.size()};
}

std::vector<std::string> written(CallMessage message) {
  CallWriter writer;
  writer.push(std::move(message));
  std::vector<CallMessage> sent;
  std::vector<std::string> messages;
  while (!writer.is_empty()) messages.push_back(wire_bytes(writer.next(sent)));
  return messages;
}

std::optional<CallMessage> read(const std::vector<std::string>& messages, Side side,
                                std::size_t cut = std::size_t{1} << 30) {
  CallReader reader(side, std::size_t{8} << 20);
  std::optional<CallMessage> got;
  for (const std::string& each : messages) {
    EXPECT_FALSE(got);
    reader.take(cut_up(each, cut));
    got = reader.next();
  }
  return got;
}

TEST(CallMessages, AreReassembledFromAnyChunking) {
  for (const Side side : {Side::kServer, Side::kClient}) {
    for (const std::size_t payload : {0, 5, 16383, 16384, 100001, (1 << 20), (1 << 20) + 1}) {
      for (const std::size_t cut : {997, 65536, 1 << 30}) {
        const CallMessage message{7, packet("head", pattern_of(payload, 3))};
        const auto got = read(written(message), side, cut);
        ASSERT_TRUE(got) << payload;
        EXPECT_EQ(got->call, 7u);
        EXPECT_EQ(got->packet.head, message.packet.head);
        EXPECT_TRUE(all_of(got->packet) == all_of(message.packet)) << payload << " in " << cut;
        const bool is_whole = got->packet.payload.size() == (payload > 0 ? 1 : 0);
        // A request is always assembled in one buffer; a reply may consist of several slices.
        EXPECT_TRUE(is_whole || side == Side::kClient) << payload << " in " << cut;
      }
    }
  }
}

TEST(CallMessages, MatchGeneratedProtobufCode) {
  v1::ApplyRequest request;
  request.set_call(300);
  request.mutable_batch()->set_run(5);
  request.set_tensor_bytes(130);
  request.set_tensors(std::string(130, 'x'));
  const std::string head = request.batch().SerializeAsString();
  const Bytes elements = bytes_of(request.tensors());
  const auto messages = written({300, packet(head, elements)});
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages.front(), request.SerializeAsString());
  const auto got = read({request.SerializeAsString()}, Side::kServer, 10);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->call, 300u);
  EXPECT_EQ(got->packet.head, bytes_of(head));
  EXPECT_EQ(all_of(got->packet), elements);
}

TEST(CallMessages, ErrorsRoundTripWithCodeAndText) {
  v1::ApplyReply reply;
  reply.set_call(4);
  reply.mutable_error()->set_code(static_cast<std::uint32_t>(ErrorCode::kNotFound));
  reply.mutable_error()->set_message("no variable 'w'");
  const auto messages = written({4, {}, Error(ErrorCode::kNotFound, "no variable 'w'")});
  EXPECT_EQ(messages, std::vector{reply.SerializeAsString()});
  const auto got = read(messages, Side::kClient);
  ASSERT_TRUE(got && got->error);
  EXPECT_EQ(got->error->code(), ErrorCode::kNotFound);
  EXPECT_EQ(got->error->message(), "no variable 'w'");
}

TEST(CallMessages, MalformedMessagesAreRefused) {
  const auto refuse = [](const std::vector<std::string>& messages, Side side,
                         const std::string& part) {
    EXPECT_ERROR((void)read(messages, side), kDataLoss, part, "calls.proto");
  };
  v1::ApplyRequest request;
  request.set_call(1);
  request.set_tensor_bytes(10);
  request.set_tensors("12345");
  v1::ApplyRequest more;
  more.set_call(1);
  more.set_tensors("123456");
  refuse({request.SerializeAsString(), more.SerializeAsString()}, Side::kServer,
         "more bytes of tensors than the call announced");
  more.set_tensors("");
  refuse({request.SerializeAsString(), more.SerializeAsString()}, Side::kServer,
         "no bytes of tensors");
  more.set_call(2);
  more.set_tensors("12345");
  refuse({request.SerializeAsString(), more.SerializeAsString()}, Side::kServer, "another call");
  request.set_tensor_bytes((std::uint64_t{8} << 20) + 1);
  refuse({request.SerializeAsString()}, Side::kServer, "8388609 bytes");
  const std::string sound = written({7, packet("head", pattern_of(1000, 3))}).front();
  refuse({sound.substr(0, sound.size() - 1)}, Side::kServer, "length differs from its fields");
  refuse({sound + "x"}, Side::kServer, "length differs from its fields");
  v1::ApplyReply reply;
  reply.mutable_error()->set_code(static_cast<std::uint32_t>(ErrorCode::kNotFound));
  refuse({reply.SerializeAsString()}, Side::kServer, "an error");
  reply.mutable_error()->set_code(0);
  refuse({reply.SerializeAsString()}, Side::kClient, "an error");
}

/// A message with a flipped bit is either refused, or read with a payload that is not longer than
/// the original payload. A fuzzer covers further changes.
TEST(CallMessages, MessagesWithFlippedBitAreReadOrRefused) {
  const std::string sound = written({7, packet("head", pattern_of(300, 3))}).front();
  for (std::size_t bit = 0; bit < 8 * sound.size(); ++bit) {
    std::string changed = sound;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    try {
      const auto got = read({changed}, Side::kServer);
      EXPECT_LE(got ? got->packet.payload_bytes() : 0, 300u);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
    }
  }
}

class RpcFaults : public ::testing::Test {
 protected:
  static internal::Endpoint endpoint_of(const RpcServer& server) {
    return *internal::parse_endpoint(server.target().substr(server.target().find("://") + 3));
  }
  static std::string target_of(const ChaosProxy& proxy) {
    return concat("grpc://", proxy.endpoint().to_string());
  }
  /// Returns options with certificates, which force calls over TCP, where a proxy can interrupt
  /// them.
  RpcServerOptions tcp_server_options() const {
    auto options = server_options();
    options.tls = tls_;
    return options;
  }
  std::unique_ptr<RpcClient> connect(const std::string& target, int index = 0) const {
    auto options = client_options(index);
    options.tls = tls_;
    return RpcClient::connect(target, RpcMethod::kApply, options);
  }
  const TlsFiles tls_ = control_job::make_certificate("rpc_faults");
};

/// Every call, including those after a fault, is answered correctly or ends with kUnavailable.
TEST_F(RpcFaults, CorruptionNeverCausesWrongReplies) {
  Handler handler;
  const auto server = start_server(tcp_server_options(), handler);
  int num_broken = 0;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    ChaosPlan plan;
    plan.seed = seed;
    plan.flip_every = seed % 3 == 0 ? 2 << 20 : 0;
    plan.cut_every = seed % 3 == 1 ? 2 << 20 : 0;
    plan.half_close_every = seed % 3 == 2 ? 2 << 20 : 0;
    plan.most_events = 1;
    plan.spares = 100000;
    const ChaosProxy proxy(endpoint_of(*server), plan);
    const auto client = connect(target_of(proxy));
    std::vector<std::shared_ptr<RpcReply>> replies;
    const auto size_of = [](unsigned i) { return std::size_t{i} * 7919 % 300000; };
    for (unsigned i = 0; i < 60; ++i) {
      replies.push_back(client->start(packet(std::to_string(i), pattern_of(size_of(i), i))));
    }
    bool has_broken = false;
    for (unsigned i = 0; i < 60; ++i) {
      try {
        const Packet answer = replies[i]->wait(late());
        EXPECT_EQ(text_of(answer.head), std::to_string(i));
        EXPECT_TRUE(all_of(answer) == pattern_of(size_of(i), i)) << i;
        EXPECT_FALSE(has_broken) << i;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error.what();
        has_broken = true;
      }
    }
    EXPECT_EQ(client->why_broken().has_value(), has_broken);
    num_broken += has_broken;
  }
  EXPECT_GE(num_broken, 4);
}

TEST_F(RpcFaults, RequestInterruptedByConnectionLossIsNotDelivered) {
  std::atomic<int> num_calls{0};
  Handler handler([&](const std::shared_ptr<RpcCall>& call) {
    ++num_calls;
    Handler::echo(call);
  });
  const auto server = start_server(tcp_server_options(), handler);
  ChaosPlan plan;
  plan.cut_every = 1;
  plan.most_events = 1;
  plan.spares = 20 << 20;
  const ChaosProxy proxy(endpoint_of(*server), plan);
  const auto client = connect(target_of(proxy), 4);
  EXPECT_ERROR((void)client->call(packet("large", pattern_of(32 << 20, 1)), late()), kUnavailable,
               "worker 4", "the connection broke");
  EXPECT_TRUE(comes_true([&] { return handler.left().size() == 1; }));
  EXPECT_EQ(handler.left().front().task.to_string(), "worker 4");
  EXPECT_EQ(num_calls, 0);
}

/// Keep-alive detects a silent connection on the client and, without a pending call, on the server.
TEST_F(RpcFaults, KeepAliveBreaksSilentConnectionWithinSeconds) {
  Handler handler;
  const auto server = start_server(tcp_server_options(), handler);
  ChaosProxy proxy(endpoint_of(*server), {});
  const auto client = connect(target_of(proxy));
  (void)client->call(packet("before"), late());
  const TimePoint begin = Clock::system().now();
  proxy.swallow();
  EXPECT_ERROR((void)client->call(packet("asked"), late()), kUnavailable, "ps 1");
  EXPECT_GE(Clock::system().now() - begin, 1s);
  EXPECT_TRUE(comes_true([&] { return handler.left().size() == 1; }));
}

TEST_F(RpcFaults, ReplyMayShareBytesWithItsRequest) {
  Handler handler([](const std::shared_ptr<RpcCall>& call) {
    Packet answer{call->request().head, {}};
    for (const SharedBytes& piece : call->request().payload) {
      answer.payload.push_back({piece.bytes, call});
    }
    call->reply(std::move(answer));
  });
  const auto server = start_server(tcp_server_options(), handler);
  const auto client = connect(server->target());
  std::vector<std::shared_ptr<RpcReply>> replies;
  for (unsigned i = 0; i < 20; ++i) {
    replies.push_back(client->start(packet(std::to_string(i), pattern_of(300000, i))));
  }
  for (unsigned i = 0; i < 20; ++i) {
    EXPECT_TRUE(all_of(replies[i]->wait(late())) == pattern_of(300000, i)) << i;
  }
}

}  // namespace tutti::rpc_suite::rpc_calls_test
