// A client's stream of calls to a server.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/generic/generic_stub.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calls.pb.h"
#include "cluster/grpc/stream_to_server.h"
#include "cluster/rpc/call_identity.h"
#include "cluster/rpc/call_messages.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// gRPC's threads read and write one message at a time; its end is waited for outside of them.
/// Opens with the constructor. Threads: any.
class ClientStream final : public StreamToServer<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  /// `received` gets answers, one at a time.
  ClientStream(const std::shared_ptr<grpc::Channel>& channel, RpcMethod method,
               const v1::Caller& caller, std::function<void(CallMessage)> received)
      : path_(path_of(method)), received_(std::move(received)), stub_(channel) {
    context_.AddMetadata(kCallerKey, caller.SerializeAsString());
    stub_.PrepareBidiStreamingCall(&context_, path_, grpc::StubOptions(), this);
    start();
  }
  ~ClientStream() override { stop(); }

  /// Waits until the server welcomes the stream; nothing: it does not (wait_for_end() says why), or
  /// not yet.
  std::optional<v1::CalledServer> wait_for_server(TimePoint deadline) {
    MutexLock lock(mutex_);
    changed_.wait_until(mutex_, deadline,
                        [this]() TUTTI_REQUIRES(mutex_) { return server_ || !is_open_; });
    return server_;
  }
  /// Hands a call over and does not wait. A broken stream swallows it.
  void send(CallMessage message) {
    std::vector<CallMessage> sent;  // ends after the lock
    const OwnersEndLater later;
    MutexLock lock(mutex_);
    if (!is_open_ || !can_write_ || has_released_) return;
    writer_.push(std::move(message));
    if (!is_writing_) write_next(sent);
  }
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
  CallReader reader_{CallReader::Side::kClient, 0};  // gRPC's reading thread's
  std::optional<v1::CalledServer> server_ TUTTI_GUARDED_BY(mutex_);
  CallWriter writer_ TUTTI_GUARDED_BY(mutex_);
  grpc::ByteBuffer outgoing_;
  std::optional<TimePoint> leaves_by_ TUTTI_GUARDED_BY(mutex_);
  std::string reason_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
