// Serves a variable store to other tasks: packets in, packets out.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/variable_handler.h"

#include <utility>

namespace tutti::internal {
namespace {

void answer(RpcCall& call, const BatchResult& result) {
  if (result.error) return call.fail(*result.error);
  try {
    call.reply(encode(result.answers));
  } catch (const Error& error) {
    call.fail(error);
  }
}

}  // namespace

void VariableHandler::take(std::shared_ptr<RpcCall> call) {
  OperationBatch batch = decode_batch(call->request());
  serve(std::move(call), std::move(batch));
}

void VariableHandler::serve(std::shared_ptr<RpcCall> call, OperationBatch batch) {
  const std::uint64_t client = call->peer().client;
  note_stream(call->peer(), batch.stream);
  store_.apply(std::move(batch), client,
               [call = std::move(call)](BatchResult result) { answer(*call, result); });
}

void VariableHandler::note_stream(const RpcPeer& peer, const UpdateStream& stream) {
  if (stream.kind != UpdateStream::Kind::kClient) return;
  const MutexLock lock(mutex_);
  streams_[peer.client].insert(stream.id);
}

void VariableHandler::client_left(const RpcPeer& peer) {
  store_.drop_reads_of(peer.client);
  std::set<std::uint64_t> streams;
  {
    const MutexLock lock(mutex_);
    if (const auto found = streams_.find(peer.client); found != streams_.end()) {
      streams = std::move(found->second);
      streams_.erase(found);
    }
  }
  for (const std::uint64_t stream : streams) store_.end_client(stream);
}

}  // namespace tutti::internal
