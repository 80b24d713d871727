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

void serve(VariableStore& store, std::shared_ptr<RpcCall> call, OperationBatch batch) {
  const std::uint64_t owner = call->peer().client;
  store.apply(std::move(batch), owner,
              [call = std::move(call)](BatchResult result) { answer(*call, result); });
}

}  // namespace tutti::internal
