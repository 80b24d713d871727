// A stream of calls on the client's side.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calls.pb.h"
#include "tutti/cluster/rpc/call_messages.h"
#include "tutti/cluster/rpc/rpc_server.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Opens with the constructor; gRPC's threads call On...(). The destructor cancels it and waits for
/// gRPC to let go: not on one of gRPC's threads, which must not end the last channel. Threads: any,
/// all others.
class ClientStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  /// `received` gets answers, one at a time.
  ClientStream(const std::shared_ptr<grpc::Channel>& channel, RpcMethod method,
               const v1::Caller& caller, std::function<void(CallMessage)> received);
  ~ClientStream() override;

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
  void cancel();
  /// How it ended. Cancels it at the deadline.
  grpc::Status wait_for_end(TimePoint deadline);
  /// Of the stream that ended: whether the server itself refused it.
  bool is_refused() const;

  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnWritesDoneDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void write_next(std::vector<CallMessage>& sent) TUTTI_REQUIRES(mutex_);
  void release() TUTTI_REQUIRES(mutex_);

  const std::string path_;
  const std::function<void(CallMessage)> received_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  CallReader reader_;  // gRPC's reading thread's
  Event done_;

  Mutex mutex_;
  CondVar changed_;
  std::optional<v1::CalledServer> server_ TUTTI_GUARDED_BY(mutex_);
  CallWriter writer_ TUTTI_GUARDED_BY(mutex_);
  grpc::ByteBuffer outgoing_;
  std::optional<grpc::ByteBuffer> prepared_ TUTTI_GUARDED_BY(mutex_);  // the message after it
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool can_write_ TUTTI_GUARDED_BY(mutex_) = true;
  bool is_open_ TUTTI_GUARDED_BY(mutex_) = true;
  std::optional<TimePoint> leaves_by_ TUTTI_GUARDED_BY(mutex_);
  bool has_released_ TUTTI_GUARDED_BY(mutex_) = false;
  std::string reason_ TUTTI_GUARDED_BY(mutex_);
  grpc::Status status_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
