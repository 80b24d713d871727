// Batches and their answers as packets: a message, and the elements of its tensors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/protocol/encoding.h"

#include "tutti/strategy/parameter_server/protocol/message.h"
#include "tutti/strategy/parameter_server/protocol/operation_columns.h"
#include "tutti/strategy/parameter_server/protocol/operation_message.h"

namespace tutti::internal {

Packet encode(const OperationBatch& batch) {
  return packet_of<v1::OperationBatch>(
      [&](auto& message, auto& payload) { put_batch(batch, payload, message); });
}
OperationBatch decode_batch(const Packet& packet) {
  return read_packet<v1::OperationBatch>(packet, get_batch, InPlace::kAll);
}

Packet encode(const std::vector<OperationAnswer>& answers) {
  return packet_of<v1::OperationAnswers>(
      [&](auto& message, auto& payload) { put_answers(answers, payload, message); });
}
std::vector<OperationAnswer> decode_answers(const Packet& packet) {
  return read_packet<v1::OperationAnswers>(packet, get_answers);
}

}  // namespace tutti::internal
