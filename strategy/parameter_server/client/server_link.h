// Link to one parameter server: collects changes, and sends them before the next read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cluster/rpc/rpc_client.h"
#include "strategy/parameter_server/protocol/variable_service.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/client/closure_context.h"

namespace tutti::internal {

/// Parameter server in another process, to which batches are sent as calls. A batch's tensors are
/// sent from their own memory, which is kept until the reply arrives. After a connection breaks,
/// this class reconnects and resends unanswered batches in order; no change is applied twice
/// (AppliedTable). wait() throws errors that occur while sending. Only one thread may wait for the
/// replies to a batch. Thread-safe.
class RemoteService final : public VariableService {
 public:
  struct Options {
    std::string target = {};  // "grpc://host:port"
    RpcClientOptions client = {};
    /// Time for which a server may be unreachable before calls to it end with an error.
    Duration patience = durations::kSilentAfter;
    /// If true, calls wait for a restarted server; otherwise a restart ends them with kAborted.
    bool outlives_restarts = false;
  };
  /// Connects. Throws the same errors as RpcClient::connect().
  explicit RemoteService(Options options);
  ~RemoteService() override;

  std::string name() const override;
  std::shared_ptr<PendingAnswers> start(OperationBatch batch) override;
  /// Ends all pending and later calls with this error.
  void fail_all(const Error& error);

 private:
  std::shared_ptr<RpcClient> client() const;
  std::shared_ptr<RpcClient> end(const Error& error);
  void run();
  bool replace(const std::shared_ptr<RpcClient>& broken);

  const Options options_;
  const std::shared_ptr<Interruption> interruption_ = std::make_shared<Interruption>();
  mutable Mutex mutex_;  // held while calls are sent, which keeps their order
  std::shared_ptr<RpcClient> client_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> ended_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<Thread> thread_;  // reconnects
};

/// Identity under which a thread changes values.
struct UpdateOrigin {
  UpdateStream stream = {};
  /// Attempt number of the closure. An earlier attempt may still be running in this process; its
  /// changes are numbered separately.
  int attempt = 0;
  std::uint64_t finished_below = 0;
  std::uint64_t run = 0;

  /// Returns true if both updates come from the same client or from the same attempt at a closure;
  /// their replicas may differ.
  bool is_with(const UpdateOrigin& other) const {
    return stream.kind == other.stream.kind && stream.id == other.stream.id &&
           attempt == other.attempt;
  }
};

/// Returns the identity of the closure that this thread is running. Outside closures, returns the
/// identity of client `client`, with one stream for each replica of a running step.
UpdateOrigin current_update_origin(std::uint64_t client);

/// This process's link to one server. A server applies the requests of a process in the order in
/// which they were sent, and a read first sends the collected changes of all threads. Therefore, if
/// one thread changes a value and another thread reads it later (after a barrier, say), the reader
/// sees the change. Thread-safe.
class ServerLink {
 public:
  /// `client`: random number that identifies this process.
  ServerLink(std::shared_ptr<VariableService> service, std::uint64_t client);

  /// Adds a change on behalf of the calling thread. The change is sent with the next read by any
  /// thread, by send_changes(), or when many changes have accumulated.
  void change(Operation operation);
  void send_changes();
  /// Sends all changes, then these reads. `answer_bytes` holds the maximum size of the reply to
  /// each read, or is empty. Long replies arrive in several messages, so that the server can
  /// prepare one while sending another.
  std::shared_ptr<PendingAnswers> read(std::vector<Operation> reads,
                                       std::span<const std::size_t> answer_bytes = {});
  /// Waits until the server has applied all changes of this client, or of the closure that the
  /// calling thread runs. Throws the error of the first change that failed; the changes after it
  /// were still sent.
  void settle(TimePoint deadline);
  /// Drops the streams of the calling thread's closure (or client), with their collected changes;
  /// called when the closure will make no more changes.
  void end_stream();
  /// Restarts the numbering of changes outside closures, with the new client id `client`, because
  /// the server's state was replaced. Drops the collected changes.
  void restart(std::uint64_t client);

 private:
  struct Message {
    std::shared_ptr<PendingAnswers> answers = {};
    std::uint64_t first_ordinal = 0;
  };
  /// Changes in one stream.
  struct Lane {
    UpdateOrigin origin = {};
    std::uint64_t next_ordinal = 0;
    std::vector<Operation> gathered = {};
    std::size_t num_sent_last =
        0;  // operations in the last message; capacity to reserve for the next one
    std::size_t gathered_bytes = 0;
    std::deque<Message> under_way = {};
  };
  Lane& lane_of_thread() TUTTI_REQUIRES(mutex_);
  void send(Lane& lane) TUTTI_REQUIRES(mutex_);
  static OperationBatch batch_of(const Lane& lane);
  static void wait_for_last(const std::deque<Message>& messages, TimePoint deadline);
  void rewind(const std::pair<UpdateStream, int>& key, std::uint64_t ordinal);

  const std::shared_ptr<VariableService> service_;
  Mutex mutex_;  // held while batches are sent, to keep them in call order
  std::uint64_t client_ TUTTI_GUARDED_BY(mutex_);
  /// Keyed by stream and attempt.
  std::map<std::pair<UpdateStream, int>, Lane> lanes_ TUTTI_GUARDED_BY(mutex_);
};

/// Returns true for errors of the server or the connection, as opposed to errors of the request.
inline bool is_of_infrastructure(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kDeadlineExceeded ||
         code == ErrorCode::kDataLoss;
}

/// Calls `wait` and rethrows server failures as OriginError.
template <class Wait>
auto from_server(const Wait& wait) {
  try {
    return wait();
  } catch (const Error& error) {
    if (!is_of_infrastructure(error.code())) throw;
    throw OriginError(ErrorOrigin::kServer, error.code(), error.message());
  }
}

}  // namespace tutti::internal
