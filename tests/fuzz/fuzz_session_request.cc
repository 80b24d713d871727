// Fuzzes requests and programs that a task reads from session clients and then runs.
// SPDX-License-Identifier: Apache-2.0
//
// An input is a sequence of requests. Each begins with the lengths of its head and of its payload
// (two bytes each), followed by the head and the payload. A task runs the decoded requests in one
// session. If a request runs a program, the target sets the request's signature, because an input
// could not guess it.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "strategy/parameter_server/session/task_sessions.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"

namespace {

using namespace tutti;
using namespace tutti::internal;

constexpr std::uint64_t kSession = 7;
constexpr std::size_t kMostRequests = 8;

std::size_t take_length(std::span<const std::byte>& bytes) {
  const std::size_t length =
      std::to_integer<std::size_t>(bytes[0]) | std::to_integer<std::size_t>(bytes[1]) << 8;
  bytes = bytes.subspan(2);
  return length;
}

std::optional<Packet> next_packet(std::span<const std::byte>& bytes) {
  if (bytes.size() < 4) return std::nullopt;
  const std::size_t head = take_length(bytes), payload = take_length(bytes);
  Packet packet;
  const auto head_bytes = bytes.first(std::min(head, bytes.size()));
  packet.head.assign(head_bytes.begin(), head_bytes.end());
  bytes = bytes.subspan(head_bytes.size());
  const auto payload_bytes = bytes.first(std::min(payload, bytes.size()));
  if (!payload_bytes.empty()) packet.payload.push_back({payload_bytes, nullptr});
  bytes = bytes.subspan(payload_bytes.size());
  return packet;
}

std::string bytes_of_packet(const Packet& packet) {
  std::string bytes(reinterpret_cast<const char*>(packet.head.data()), packet.head.size());
  for (const SharedBytes& piece : packet.payload) {
    bytes.append(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
  }
  return bytes;
}

class Call final : public RpcCall {
 public:
  Call(Packet packet, std::shared_ptr<Event> answered)
      : packet_(std::move(packet)), answered_(std::move(answered)) {}
  const RpcPeer& peer() const override { return peer_; }
  const Packet& request() const override { return packet_; }
  void reply(Packet answer) override {
    // The client must be able to decode the task's reply.
    if (!answer.head.empty()) (void)decode_nest(answer);
    answered_->set();
  }
  void fail(const Error& error) override {
    if (error.message().empty()) std::abort();
    answered_->set();
  }

 private:
  const Packet packet_;
  const RpcPeer peer_ = {};
  const std::shared_ptr<Event> answered_;
};

/// Decodes a request. An accepted request must survive encoding and decoding.
std::optional<TaskRequest> read(const Packet& packet) {
  try {
    TaskRequest request = decode_task_request(packet);
    const Packet again = encode(request);
    if (bytes_of_packet(encode(decode_task_request(again))) != bytes_of_packet(again)) std::abort();
    return request;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) std::abort();
    return std::nullopt;
  }
}

/// Returns true if the program needs an acceptable amount of memory and time. Programs may declare
/// results of any size.
bool is_small(const TaskProgram& program) {
  constexpr std::int64_t kMostElements = 1 << 12;
  if (program.operations_size() > 64) return false;
  for (const ProgramOperation& operation : program.operations()) {
    for (const auto& spec : operation.specs()) {
      std::int64_t elements = 1;
      for (const std::int64_t dim : spec.dims()) {
        if (dim < 0 || dim > kMostElements) return false;
        elements *= std::max<std::int64_t>(dim, 1);
        if (elements > kMostElements) return false;
      }
    }
  }
  return true;
}

class FuzzedTask {
 public:
  FuzzedTask() {
    TaskRequest open;
    open.message.set_open(1000);
    send(open);
  }

  void send(TaskRequest& request) {
    request.message.set_session(kSession);
    const bool is_run = request.message.has_run();
    if (is_run) {
      auto& run = *request.message.mutable_run();
      TaskProgram program;
      if (!program.ParseFromString(run.program()) || !is_small(program)) return;
      run.set_number(++last_run_);
      run.set_signature(hash_of(run.program()));
    }
    const auto answered = std::make_shared<Event>();
    try {
      sessions_.take(std::make_shared<Call>(encode(request), answered));
    } catch (const Error&) {  // the request was refused; other exceptions are crashes
      return;
    }
    if (!is_run) return;  // any other request may block until the session ends
    const auto deadline = deadline_after(Clock::system().now(), std::chrono::seconds(100));
    if (!answered->wait_until(deadline)) std::abort();
  }

 private:
  TaskSessions sessions_{ClusterSpec({{"worker", {"127.0.0.1:1"}}}), Task{"worker", 0},
                         ServerOptions{}};
  std::uint64_t last_run_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto bytes = std::as_bytes(std::span(data, size));
  FuzzedTask task;
  for (std::size_t i = 0; i < kMostRequests; ++i) {
    const auto packet = next_packet(bytes);
    if (!packet) break;
    auto request = read(*packet);
    if (request && request->message.request_case() != v1::SessionRequest::kOpen) {
      task.send(*request);
    }
  }
  return 0;
}
