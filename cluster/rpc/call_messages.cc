// Encodes and decodes the messages of calls.proto.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/call_messages.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "cluster/control/job_messages.h"
#include "cluster/net/handshake.h"
#include "tensor/cpu/vectorized.h"

namespace tutti::internal {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using Wire = google::protobuf::internal::WireFormatLite;

// Field numbers that all call messages share (calls.proto).
constexpr int kCall = 1, kHead = 2, kTensorBytes = 3, kError = 4, kTensors = 15;

/// Size below which copying a chunk is cheaper than referencing it.
constexpr std::size_t kWorthKeeping = 4096;
/// Chunks below this size are copied together, because one more slice costs gRPC more than copying
/// that many bytes.
constexpr std::size_t kWorthSlice = std::size_t{16} << 10;
/// A payload of at least this size evicts its first bytes from the caches before it is complete.
constexpr std::size_t kPastCaches = std::size_t{8} << 20;
constexpr std::size_t kLongestText = 65536;

/// Returns a slice that keeps the owner of the bytes alive until gRPC has sent them.
grpc::Slice slice_of(std::span<const std::byte> bytes, const std::shared_ptr<const void>& owner) {
  if (bytes.size() < kWorthKeeping) return {bytes.data(), bytes.size()};
  using Owner = std::shared_ptr<const void>;
  auto keeps = std::make_unique<Owner>(owner);
  void* const data = const_cast<std::byte*>(bytes.data());  // gRPC only reads the bytes
  return {data, bytes.size(),
          [](void* kept) {
            const std::unique_ptr<Owner> ends(static_cast<Owner*>(kept));
            DeferredRelease::end(std::move(*ends));
          },
          keeps.release()};
}

std::size_t length_of(std::span<const SharedBytes> pieces) {
  std::size_t bytes = 0;
  for (const SharedBytes& piece : pieces) bytes += piece.bytes.size();
  return bytes;
}

bool is_error_code(ErrorCode code) {
  return code != ErrorCode::kOk && to_string(code) != "UNKNOWN";
}

v1::CallError to_proto(const Error& error) {
  v1::CallError proto;
  const ErrorCode code = is_error_code(error.code()) ? error.code() : ErrorCode::kInternal;
  proto.set_code(static_cast<std::uint32_t>(code));
  proto.set_message(error.message().substr(0, kLongestText));
  return proto;
}

/// The encoded fields that precede the tensors' bytes in a message.
class Front {
 public:
  explicit Front(std::size_t head_bytes) { bytes_.reserve(head_bytes + 64); }
  void number(int field, std::uint64_t value) {
    if (value == 0) return;
    varint(Wire::MakeTag(field, Wire::WIRETYPE_VARINT));
    varint(value);
  }
  /// Writes the length of a field; the caller then appends the field's bytes.
  void length(int field, std::size_t count) {
    varint(Wire::MakeTag(field, Wire::WIRETYPE_LENGTH_DELIMITED));
    varint(count);
  }
  void bytes(int field, std::span<const std::byte> bytes) {
    length(field, bytes.size());
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  grpc::Slice slice() const { return {bytes_.data(), bytes_.size()}; }

 private:
  void varint(std::uint64_t value) {
    std::uint8_t out[10];
    const std::uint8_t* const end = CodedOutputStream::WriteVarint64ToArray(value, out);
    bytes_.append(reinterpret_cast<const char*>(out), static_cast<std::size_t>(end - out));
  }
  std::string bytes_;
};

[[noreturn]] void fail_message(const std::string& what) {
  fail(ErrorCode::kDataLoss, "rpc: got ", what, "; expected a message defined in calls.proto");
}

thread_local DeferredRelease* current_owners = nullptr;

}  // namespace

DeferredRelease::DeferredRelease() : outer_(std::exchange(current_owners, this)) {}
DeferredRelease::~DeferredRelease() {
  current_owners = outer_;  // restored first, because owners may call back
}
void DeferredRelease::end(std::shared_ptr<const void> owner) {
  if (current_owners) current_owners->owners_.push_back(std::move(owner));
}

/// Returns the unsent bytes of the current chunk, at most `room` bytes, without copying them.
SharedBytes CallWriter::next_piece(Outgoing& out, std::size_t room) {
  const SharedBytes& piece = out.message.packet.payload[out.piece];
  const auto left = piece.bytes.subspan(out.offset);
  const auto bytes = left.first(std::min(left.size(), room));
  out.offset += bytes.size();
  if (bytes.size() == left.size()) ++out.piece, out.offset = 0;
  return {bytes, piece.owner};
}

/// Returns the total length of the next consecutive short chunks, at most `room`; 0 for fewer than
/// two chunks.
std::size_t CallWriter::small_run(const Outgoing& out, std::size_t room) {
  const auto& pieces = out.message.packet.payload;
  std::size_t bytes = 0, piece = out.piece, offset = out.offset;
  for (; piece < pieces.size() && bytes < room; ++piece, offset = 0) {
    const std::size_t left = pieces[piece].bytes.size() - offset;
    if (left >= kWorthSlice) break;
    bytes += left;
  }
  return piece - out.piece > 1 ? std::min(bytes, room) : 0;
}

SharedBytes CallWriter::gathered(Outgoing& out, std::size_t count) {
  const PayloadMemory memory(count);
  for (std::size_t done = 0; done < count;) {
    const SharedBytes piece = next_piece(out, count - done);
    std::memcpy(memory.bytes().data() + done, piece.bytes.data(), piece.bytes.size());
    done += piece.bytes.size();
  }
  return memory.shared();
}

grpc::ByteBuffer CallWriter::make(std::vector<CallMessage>& sent) {
  Outgoing& out = calls_.front();
  const auto& pieces = out.message.packet.payload;
  const bool begins = !std::exchange(out.has_begun, true);
  Front front(begins ? out.message.packet.head.size() : 0);
  front.number(kCall, out.message.call);
  if (begins) {
    if (!out.message.packet.head.empty()) front.bytes(kHead, out.message.packet.head);
    front.number(kTensorBytes, length_of(pieces));
    if (out.message.error) {
      const std::string error = to_proto(*out.message.error).SerializeAsString();
      front.bytes(kError, std::as_bytes(std::span(error)));
    }
  }
  std::vector<grpc::Slice> slices(1);
  std::size_t room = kPieceBytes;  // bytes left in the message; a full message fits in the L2 cache
  while (out.piece < pieces.size() && room > 0) {
    const std::size_t small = small_run(out, room);
    const SharedBytes bytes = small > 0 ? gathered(out, small) : next_piece(out, room);
    if (!bytes.bytes.empty()) slices.push_back(slice_of(bytes.bytes, bytes.owner));
    room -= bytes.bytes.size();
  }
  if (room < kPieceBytes) front.length(kTensors, kPieceBytes - room);
  slices.front() = front.slice();
  if (out.piece == pieces.size()) {
    sent.push_back(std::move(out.message));
    calls_.pop_front();
  }
  return {slices.data(), slices.size()};
}

/// The fields of a decoded message; the bytes of its tensors are not copied.
struct CallReader::Fields {
  std::uint64_t call = 0, tensor_bytes = 0;
  std::vector<std::byte> head;
  bool has_error = false;
  v1::CallError error;
  std::vector<SharedBytes> tensors;

  explicit Fields(const grpc::ByteBuffer& message) {
    grpc::ByteBuffer buffer = message;  // shares its memory
    std::size_t front = 0;
    {
      grpc::ProtoBufferReader reader(&buffer);
      CodedInputStream in(&reader);
      const std::uint64_t count = read_front(in);
      front = static_cast<std::size_t>(in.CurrentPosition());
      if (count != message.Length() - front)
        fail_message("a message whose length differs from its fields");
    }
    if (front < message.Length()) keep_behind(message, front);
  }

 private:
  /// Parses the fields that precede the tensor bytes, and returns the number of tensor bytes.
  std::uint64_t read_front(CodedInputStream& in) {
    while (const std::uint32_t tag = in.ReadTag()) {
      std::uint32_t length = 0;
      const int field = Wire::GetTagFieldNumber(tag);
      if (tag == Wire::MakeTag(kCall, Wire::WIRETYPE_VARINT)) {
        if (!in.ReadVarint64(&call)) fail_message("a number that ends too early");
      } else if (tag == Wire::MakeTag(kTensorBytes, Wire::WIRETYPE_VARINT)) {
        if (!in.ReadVarint64(&tensor_bytes)) fail_message("a number that ends too early");
      } else if (Wire::GetTagWireType(tag) != Wire::WIRETYPE_LENGTH_DELIMITED) {
        if (!Wire::SkipField(&in, tag)) fail_message("a field that ends too early");
      } else if (!in.ReadVarint32(&length)) {
        fail_message("a length that ends too early");
      } else if (field == kTensors) {
        return length;
      } else if (field == kHead) {
        read_head(in, length);
      } else if (field == kError) {
        std::string bytes;
        has_error = in.ReadString(&bytes, static_cast<int>(std::min(length, 1u << 20))) &&
                    error.ParseFromString(bytes);
        if (!has_error) fail_message("an error that cannot be parsed");
      } else if (!in.Skip(static_cast<int>(std::min(length, 1u << 30)))) {
        fail_message("a field that ends too early");
      }
    }
    if (!in.ConsumedEntireMessage()) fail_message("bytes that are not a field");
    return 0;
  }
  void read_head(CodedInputStream& in, std::size_t length) {
    if (length > tutti::kLongestHead) {
      fail_message(
          concat("a request or answer of ", length, " bytes, more than ", tutti::kLongestHead));
    }
    head.resize(length);
    if (!in.ReadRaw(head.data(), static_cast<int>(length))) fail_message("a head that is cut off");
  }
  void keep_behind(const grpc::ByteBuffer& message, std::size_t front) {
    auto slices = std::make_shared<std::vector<grpc::Slice>>();
    if (!message.Dump(slices.get()).ok()) fail_message("a message without bytes");
    for (const grpc::Slice& slice : *slices) {
      const auto bytes = std::as_bytes(std::span(slice.begin(), slice.size()));
      const std::size_t skipped = std::min(front, bytes.size());
      front -= skipped;
      if (skipped < bytes.size()) tensors.push_back({bytes.subspan(skipped), slices});
    }
  }
};

void CallReader::begin(Fields& fields) {
  const bool is_answer = side_ == Side::kClient;
  const auto code = static_cast<ErrorCode>(std::min(fields.error.code(), 65535u));
  if (fields.has_error && (!is_answer || !is_error_code(code))) {
    fail_message("an error in a request, or with an unknown code");
  }
  if (fields.tensor_bytes > longest_payload_ || (fields.has_error && fields.tensor_bytes > 0)) {
    fail_message(
        concat("tensors of ", fields.tensor_bytes, " bytes; expected at most ", longest_payload_));
  }
  payload_bytes_ = static_cast<std::size_t>(fields.tensor_bytes);
  received_ = copied_ = 0;
  is_copied_ = false;
  first_.clear();
  call_.emplace();
  call_->call = fields.call;
  call_->packet.head = std::move(fields.head);
  if (fields.has_error) call_->error = Error(code, fields.error.message());
}

void CallReader::take(const grpc::ByteBuffer& message) {
  Fields fields(message);
  if (!call_) {
    begin(fields);
  } else if (fields.call != call_->call || !fields.head.empty() || fields.has_error) {
    fail_message("another call before the previous one is complete");
  }
  const std::size_t bytes = length_of(fields.tensors);
  if (bytes > payload_bytes_ - received_)
    fail_message("more bytes of tensors than the call announced");
  if (bytes == 0 && received_ < payload_bytes_) fail_message("no bytes of tensors");
  received_ += bytes;
  if (is_copied_) {
    copy(fields.tensors);
  } else {
    first_ = std::move(fields.tensors);
  }
}

void CallReader::copy(const std::vector<SharedBytes>& pieces) {
  const bool past_caches = payload_bytes_ >= kPastCaches;
  for (const SharedBytes& piece : pieces) {
    std::byte* const to = payload_.bytes().data() + copied_;
    if (past_caches) {
      copy_past_caches(to, piece.bytes.data(), piece.bytes.size());
    } else {
      std::memcpy(to, piece.bytes.data(), piece.bytes.size());
    }
    copied_ += piece.bytes.size();
  }
  if (past_caches) finish_copies();
}

std::optional<CallMessage> CallReader::next() {
  if (!call_) return std::nullopt;
  const bool came_at_once = !is_copied_ && received_ == payload_bytes_;
  if (came_at_once && side_ == Side::kClient && payload_bytes_ >= kWorthSlice) {
    call_->packet.payload = std::exchange(first_, {});
    return std::exchange(call_, std::nullopt);
  }
  if (!std::exchange(is_copied_, true)) {
    payload_ = PayloadMemory(payload_bytes_);
    copy(std::exchange(first_, {}));
  }
  if (received_ < payload_bytes_) return std::nullopt;
  if (payload_bytes_ > 0) call_->packet.payload = {std::exchange(payload_, {}).shared()};
  return std::exchange(call_, std::nullopt);
}

// Descriptions of callers and servers. Builds are compared in the same way as when processes join a
// job.

namespace {

v1::Member member_of(const MemberTask& task, std::uint64_t incarnation) {
  return internal::to_proto(Member{task, incarnation, "", 0, true});
}

template <class Message>
bool read(const Metadata& metadata, const char* key, Message& message) {
  const auto found = metadata.find(key);
  return found != metadata.end() &&
         message.ParseFromArray(found->second.data(), static_cast<int>(found->second.size()));
}

}  // namespace

const char* path_of(RpcMethod method) {
  switch (method) {
    case RpcMethod::kApply:
      return "/tutti.v1.ParameterServer/Apply";
    case RpcMethod::kRun:
      return "/tutti.v1.Worker/Run";
    case RpcMethod::kOperate:
      return "/tutti.v1.Session/Operate";
  }
  return "";
}

v1::Caller make_caller(const RpcClientOptions& options, std::uint64_t client) {
  v1::Caller caller;
  *caller.mutable_task() = member_of(options.self, options.incarnation);
  *caller.mutable_build() = make_build(options.job_id, options.secret);
  caller.set_client(client);
  *caller.mutable_server() = member_of(options.server, 0);
  return caller;
}

std::optional<v1::Caller> caller_in(const Metadata& metadata) {
  if (!metadata.contains(kCallerKey)) return std::nullopt;
  v1::Caller caller;
  if (read(metadata, kCallerKey, caller) && caller.client() != 0) return caller;
  fail(ErrorCode::kDataLoss, "rpc: the metadata ", kCallerKey,
       " is not a Caller message as defined in calls.proto");
}

std::string refusal_of(const v1::Caller& caller, const RpcServerOptions& options) {
  const MemberTask met = from_proto(caller.task()).task,
                   expected = from_proto(caller.server()).task;
  const v1::Build own = make_build(options.job_id, options.secret);
  if (std::string why = refusal_of(own, options.self.to_string(), caller.build(), met.to_string());
      !why.empty())
    return why;
  if (expected.job.empty() || expected.same_task(options.self)) return "";
  return concat(options.self.job, " ", options.self.index, " answers there, expected ", expected,
                "; check the addresses of the cluster");
}

v1::CalledServer make_called_server(const RpcServerOptions& options, std::uint64_t run) {
  v1::CalledServer server;
  *server.mutable_task() = member_of(options.self, options.incarnation);
  server.set_run(run);
  server.set_longest_tensors(options.longest_payload);
  return server;
}

std::optional<v1::CalledServer> called_server_in(const Metadata& metadata) {
  v1::CalledServer server;
  if (!read(metadata, kServerKey, server) || server.run() == 0) return std::nullopt;
  return server;
}

}  // namespace tutti::internal
