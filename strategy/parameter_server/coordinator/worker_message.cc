// Requests and outcomes as packets: a kind, numbers and texts, then a nest where there is one.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/worker_message.h"

#include <utility>

#include "tutti/cluster/handshake/byte_stream.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

[[noreturn]] void fail_message(const char* what) {
  fail(ErrorCode::kDataLoss, "message between coordinator and worker: ", what);
}

/// Reads numbers and texts in front of a nest.
class MessageReader {
 public:
  explicit MessageReader(const Packet& packet) : packet_(packet), bytes_(packet.head) {}

  std::uint8_t byte(std::uint8_t least, std::uint8_t most) {
    const auto value = bytes_.number<std::uint8_t>();
    if (value < least || value > most) fail_message("a number is out of its range");
    return value;
  }
  std::uint64_t number() { return bytes_.number<std::uint64_t>(); }
  int integer() { return static_cast<int>(bytes_.number<std::uint32_t>()); }
  std::string text() { return bytes_.text(kLongestHead); }
  Nest nest() {
    if (bytes_.failed()) fail_message("it ends too early");
    std::size_t place = packet_.head.size() - bytes_.num_left(), payload_place = 0;
    Nest nest = decode_nest(packet_, place, payload_place);
    if (place != packet_.head.size() || payload_place != packet_.payload_bytes()) {
      fail_message("it goes on behind its end");
    }
    return nest;
  }
  /// Of a message without nest.
  void finish() const {
    if (!bytes_.is_complete() || packet_.payload_bytes() != 0)
      fail_message("it has another length");
  }

 private:
  const Packet& packet_;
  ByteReader bytes_;
};

void put(ByteWriter& bytes, int value) { bytes.number(static_cast<std::uint32_t>(value)); }
template <class Enum>
void put_enum(ByteWriter& bytes, Enum value) {
  bytes.number(static_cast<std::uint8_t>(value));
}

/// A kind, and what `write` adds; `nest`, if any, behind it.
template <class Write>
Packet packet_of(std::size_t kind, const Write& write, const Nest* nest = nullptr) {
  ByteWriter bytes;
  bytes.number(static_cast<std::uint8_t>(kind));
  write(bytes);
  Packet packet{std::move(bytes.bytes()), {}};
  if (nest != nullptr) encode_nest(*nest, packet);
  return packet;
}

}  // namespace

Packet encode(const WorkerRequest& request) {
  const std::size_t kind = request.index();
  if (const auto* hello = std::get_if<WorkerHello>(&request)) {
    return packet_of(kind, [&](ByteWriter& bytes) { bytes.text(hello->steps); });
  }
  if (const auto* run = std::get_if<RunTask>(&request)) {
    const auto write = [&](ByteWriter& bytes) {
      bytes.number(run->call), bytes.number(run->number), put(bytes, run->attempt);
      bytes.number(run->term), bytes.number(run->finished_below), bytes.text(run->step);
    };
    return packet_of(kind, write, &run->arguments);
  }
  if (const auto* cancel = std::get_if<CancelTask>(&request)) {
    return packet_of(kind, [&](ByteWriter& bytes) { bytes.number(cancel->call); });
  }
  if (const auto* recall = std::get_if<RecallTask>(&request)) {
    return packet_of(kind, [&](ByteWriter& bytes) {
      bytes.number(recall->number), put(bytes, recall->attempt);
    });
  }
  const PerWorkerHandle& handle = std::get<ReleaseValue>(request).handle;
  return packet_of(kind, [&](ByteWriter& bytes) {
    bytes.number(handle.id), bytes.number(handle.instance), bytes.text(handle.type);
  });
}

WorkerRequest decode_worker_request(const Packet& packet) {
  MessageReader reader(packet);
  switch (reader.byte(0, 4)) {
    case 0: {
      WorkerHello hello{reader.text()};
      reader.finish();
      return hello;
    }
    case 1: {
      RunTask run;
      run.call = reader.number(), run.number = reader.number(), run.attempt = reader.integer();
      run.term = reader.number(), run.finished_below = reader.number(), run.step = reader.text();
      run.arguments = reader.nest();
      return run;
    }
    case 2: {
      CancelTask cancel{reader.number()};
      reader.finish();
      return cancel;
    }
    case 3: {
      RecallTask recall;
      recall.number = reader.number(), recall.attempt = reader.integer();
      reader.finish();
      return recall;
    }
    default: {
      ReleaseValue release;
      release.handle.id = reader.number(), release.handle.instance = reader.number();
      release.handle.type = reader.text();
      reader.finish();
      return release;
    }
  }
}

Packet encode(const TaskOutcome& outcome) {
  const std::size_t kind = outcome.index();
  if (const auto* value = std::get_if<Nest>(&outcome)) {
    return packet_of(
        kind, [](ByteWriter&) {}, value);
  }
  if (const auto* failure = std::get_if<TaskFailure>(&outcome)) {
    return packet_of(kind, [&](ByteWriter& bytes) {
      put_enum(bytes, failure->origin), put_enum(bytes, failure->code), bytes.text(failure->text);
    });
  }
  if (const auto* report = std::get_if<AttemptReport>(&outcome)) {
    return packet_of(kind, [&](ByteWriter& bytes) {
      put_enum(bytes, report->kind), put(bytes, report->worker), put_enum(bytes, report->origin);
      put_enum(bytes, report->code), bytes.text(report->text);
    });
  }
  return packet_of(kind, [](ByteWriter&) {});
}

TaskOutcome decode_outcome(const Packet& packet) {
  MessageReader reader(packet);
  switch (reader.byte(0, 3)) {
    case 0:
      return reader.nest();
    case 1: {
      TaskFailure failure;
      failure.origin = static_cast<ErrorOrigin>(reader.byte(1, 4));
      failure.code = static_cast<ErrorCode>(reader.byte(0, 15));
      failure.text = reader.text();
      reader.finish();
      return failure;
    }
    case 2:
      reader.finish();
      return TaskStopped();
    default: {
      AttemptReport report;
      report.kind = static_cast<AttemptReport::Kind>(reader.byte(1, 3));
      report.worker = reader.integer();
      report.origin = static_cast<ErrorOrigin>(reader.byte(1, 4));
      report.code = static_cast<ErrorCode>(reader.byte(0, 15));
      report.text = reader.text();
      reader.finish();
      return report;
    }
  }
}

}  // namespace tutti::internal
