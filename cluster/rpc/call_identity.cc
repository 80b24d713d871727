// Builds compared as when processes join a job.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/call_identity.h"

#include "cluster/control/job_messages.h"
#include "cluster/net/build.h"

namespace tutti::internal {
namespace {

v1::Member member_of(const MemberTask& task, std::uint64_t incarnation) {
  return to_proto(Member{task, incarnation, "", 0, true});
}

template <class Message>
bool read(const Metadata& metadata, const char* key, Message& message) {
  const auto found = metadata.find(key);
  return found != metadata.end() &&
         message.ParseFromArray(found->second.data(), static_cast<int>(found->second.size()));
}

}  // namespace

const char* path_of(RpcMethod method) {
  switch (method) {
    case RpcMethod::kApply:
      return "/tutti.v1.ParameterServer/Apply";
    case RpcMethod::kOrder:
      return "/tutti.v1.ParameterServer/Order";
    case RpcMethod::kRun:
      return "/tutti.v1.Worker/Run";
    case RpcMethod::kOperate:
      return "/tutti.v1.Session/Operate";
  }
  return "";
}

v1::Caller make_caller(const RpcClientOptions& options, std::uint64_t client) {
  v1::Caller caller;
  *caller.mutable_task() = member_of(options.self, options.incarnation);
  *caller.mutable_build() = make_build(options.job_id, options.secret);
  caller.set_client(client);
  *caller.mutable_server() = member_of(options.server, 0);
  return caller;
}

std::optional<v1::Caller> caller_in(const Metadata& metadata) {
  if (!metadata.contains(kCallerKey)) return std::nullopt;
  v1::Caller caller;
  if (read(metadata, kCallerKey, caller) && caller.client() != 0) return caller;
  fail(ErrorCode::kDataLoss, "rpc: the metadata ", kCallerKey, " is no Caller of calls.proto");
}

std::string refusal_of(const v1::Caller& caller, const RpcServerOptions& options) {
  const MemberTask met = from_proto(caller.task()).task,
                   expected = from_proto(caller.server()).task;
  const v1::Build own = make_build(options.job_id, options.secret);
  if (std::string why = refusal_of(own, options.self.to_string(), caller.build(), met.to_string());
      !why.empty())
    return why;
  if (expected.job.empty() || expected.same_task(options.self)) return "";
  return concat(options.self.job, " ", options.self.index, " answers there, expected ", expected,
                "; check the addresses of the cluster");
}

v1::CalledServer make_called_server(const RpcServerOptions& options, std::uint64_t run) {
  v1::CalledServer server;
  *server.mutable_task() = member_of(options.self, options.incarnation);
  server.set_run(run);
  server.set_longest_tensors(options.longest_payload);
  return server;
}

std::optional<v1::CalledServer> called_server_in(const Metadata& metadata) {
  v1::CalledServer server;
  if (!read(metadata, kServerKey, server) || server.run() == 0) return std::nullopt;
  return server;
}

}  // namespace tutti::internal
