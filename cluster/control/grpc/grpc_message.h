// Messages in the form of control.proto.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>

#include "control.grpc.pb.h"
#include "tutti/cluster/control/message.h"
#include "tutti/cluster/handshake/seal.h"

namespace tutti::internal {

control::Envelope to_envelope(std::span<const std::byte> handshake);
/// Sealed as the next one of its direction.
control::Envelope to_envelope(const Message& message, FrameSeals& seals);
/// Nothing: damaged, or no message.
std::optional<Message> open_envelope(const control::Envelope& envelope, FrameSeals& seals);

std::string to_protobuf(const Message& message);
/// Nothing: no message, or parts beyond their bounds (message.h).
std::optional<Message> from_protobuf(std::string_view bytes);

}  // namespace tutti::internal
