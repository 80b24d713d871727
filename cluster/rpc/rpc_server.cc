// The services of cluster/proto whose methods are streams of calls, on one gRPC server.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/rpc_server.h"

#include <utility>

#include "cluster/grpc/grpc_server.h"
#include "cluster/rpc/server_core.h"
#include "parameter_server.grpc.pb.h"
#include "session.grpc.pb.h"
#include "worker.grpc.pb.h"

namespace tutti {
namespace {

using internal::ServerCore;
/// Heads are parsed where they are understood, and tensors stay where they lie.
using Stream = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

class ParameterServerService final
    : public v1::ParameterServer::WithRawCallbackMethod_Apply<
          v1::ParameterServer::WithRawCallbackMethod_Order<v1::ParameterServer::Service>> {
 public:
  explicit ParameterServerService(ServerCore& core) : core_(core) {}
  Stream* Apply(grpc::CallbackServerContext* context) override {
    return core_.accept(RpcMethod::kApply, *context);
  }
  Stream* Order(grpc::CallbackServerContext* context) override {
    return core_.accept(RpcMethod::kOrder, *context);
  }

 private:
  ServerCore& core_;
};

class WorkerService final : public v1::Worker::WithRawCallbackMethod_Run<v1::Worker::Service> {
 public:
  explicit WorkerService(ServerCore& core) : core_(core) {}
  Stream* Run(grpc::CallbackServerContext* context) override {
    return core_.accept(RpcMethod::kRun, *context);
  }

 private:
  ServerCore& core_;
};

class SessionService final
    : public v1::Session::WithRawCallbackMethod_Operate<v1::Session::Service> {
 public:
  explicit SessionService(ServerCore& core) : core_(core) {}
  Stream* Operate(grpc::CallbackServerContext* context) override {
    return core_.accept(RpcMethod::kOperate, *context);
  }

 private:
  ServerCore& core_;
};

class GrpcRpcServer final : public RpcServer {
 public:
  GrpcRpcServer(const RpcServerOptions& options, RpcHandlers handlers,
                const internal::Endpoint& endpoint)
      : core_(options, std::move(handlers)),
        server_({endpoint, options.secret, options.tls, internal::kLongestMessage, true},
                {&parameter_server_, &worker_, &session_}) {}
  ~GrpcRpcServer() override {
    core_.cancel_all();
    server_.shutdown(durations::kOneTry);
  }
  std::string target() const override { return concat("grpc://", server_.endpoint().to_string()); }

 private:
  ServerCore core_;
  ParameterServerService parameter_server_{core_};
  WorkerService worker_{core_};
  SessionService session_{core_};
  internal::GrpcServer server_;
};

}  // namespace

std::unique_ptr<RpcServer> RpcServer::start(const RpcServerOptions& options, RpcHandlers handlers) {
  if (options.bytes_per_client == 0 || options.longest_payload == 0) {
    fail(ErrorCode::kInvalidArgument,
         "RpcServer: expected bytes_per_client and longest_payload above 0");
  }
  const internal::Endpoint endpoint =
      internal::checked_listen_address("RpcServer", options.address,
                                       {.has_secret = options.secret.is_set(),
                                        .has_tls = options.tls.is_set(),
                                        .allow_insecure_network = options.allow_insecure_network});
  return std::make_unique<GrpcRpcServer>(options, std::move(handlers), endpoint);
}

}  // namespace tutti
