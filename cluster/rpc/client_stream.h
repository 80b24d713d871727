// A stream of calls on the client's side.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/generic/generic_stub.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calls.pb.h"
#include "tutti/cluster/grpc/stream_to_server.h"
#include "tutti/cluster/rpc/call_messages.h"
#include "tutti/cluster/rpc/rpc_server.h"

namespace tutti::internal {

/// Opens with the constructor.
class ClientStream final : public StreamToServer<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  /// `received` gets answers, one at a time.
  ClientStream(const std::shared_ptr<grpc::Channel>& channel, RpcMethod method,
               const v1::Caller& caller, std::function<void(CallMessage)> received);
  ~ClientStream() override { stop(); }

  /// Waits until the server welcomes the stream; nothing: it does not (wait_for_end() says why), or
  /// not yet.
  std::optional<v1::CalledServer> wait_for_server(TimePoint deadline);
  /// Hands a call over and does not wait. A broken stream swallows it.
  void send(CallMessage message);
  /// Waits until the stream has ended, and says why.
  std::string serve();
  /// Half-closes it after all that was sent, and asks for no more answers; serve() returns at
  /// `deadline` at the latest.
  void leave(TimePoint deadline);

  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;

 private:
  void write_next(std::vector<CallMessage>& sent) TUTTI_REQUIRES(mutex_);

  const std::string path_;
  const std::function<void(CallMessage)> received_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::ByteBuffer incoming_;
  CallReader reader_;  // gRPC's reading thread's
  std::optional<v1::CalledServer> server_ TUTTI_GUARDED_BY(mutex_);
  CallWriter writer_ TUTTI_GUARDED_BY(mutex_);
  grpc::ByteBuffer outgoing_;
  std::optional<TimePoint> leaves_by_ TUTTI_GUARDED_BY(mutex_);
  std::string reason_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
