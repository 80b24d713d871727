// Implements the lower bound of the time of a call: a gRPC stream of raw messages, which are slices
// of existing memory.
// SPDX-License-Identifier: Apache-2.0
//
// Each request is one message that consists of one slice of any length, without checksums. The
// server does not read the bytes: it echoes a short request, and answers a long one with one byte.
// No real service can be as fast.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <utility>
#include <vector>

#include "benchmarks/rpc/contender.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti::rpc_bench {
namespace {

/// Same channel arguments as in cluster/grpc.
constexpr std::pair<const char*, int> kArguments[] = {
    {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, (1 << 20) + 4096},
    {GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 4 << 20},
    {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 << 20},
};

class Answering final : public grpc::ServerGenericBidiReactor {
 public:
  Answering() { StartRead(&incoming_); }
  void OnReadDone(bool ok) override {
    MutexLock lock(mutex_);
    if (ok) {
      waiting_.push_back(incoming_.Length() > kLongestEcho ? one_byte() : incoming_);
      StartRead(&incoming_);
    }
    is_over_ = is_over_ || !ok;
    if (!is_writing_) write_next();
  }
  void OnWriteDone(bool) override {
    MutexLock lock(mutex_);
    waiting_.erase(waiting_.begin());
    write_next();
  }
  void OnDone() override { const std::unique_ptr<Answering> self(this); }

 private:
  static grpc::ByteBuffer one_byte() {
    const grpc::Slice slice("x", 1);
    return {&slice, 1};
  }
  void write_next() TUTTI_REQUIRES(mutex_) {
    is_writing_ = !waiting_.empty();
    if (is_writing_) {
      StartWrite(&waiting_.front());
    } else if (is_over_) {
      Finish(grpc::Status::OK);
    }
  }
  grpc::ByteBuffer incoming_;
  Mutex mutex_;
  std::vector<grpc::ByteBuffer> waiting_ TUTTI_GUARDED_BY(mutex_);
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_over_ TUTTI_GUARDED_BY(mutex_) = false;
};

class Service final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return std::make_unique<Answering>().release();
  }
};

class Asking final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit Asking(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {
    stub_.PrepareBidiStreamingCall(&context_, "/bare/Stream", grpc::StubOptions(), this);
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }
  ~Asking() override {
    StartWritesDone();
    RemoveHold();
    done_.wait_until(TimePoint::max());
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      MutexLock lock(mutex_);
      ++num_answers_;
      changed_.notify_all();
    }
    StartRead(&incoming_);
  }
  void OnWriteDone(bool) override {
    MutexLock lock(mutex_);
    is_writing_ = false;
    changed_.notify_all();
  }
  void OnDone(const grpc::Status&) override { done_.set(); }

  void exchange(std::size_t bytes, int count, int at_once) {
    if (memory_.size() < bytes) memory_.resize(bytes, 'x');
    MutexLock lock(mutex_);
    const int begin = num_answers_;
    for (int i = 0; i < count; ++i) {
      wait([&]() TUTTI_REQUIRES(mutex_) {
        return !is_writing_ && i - (num_answers_ - begin) < at_once;
      });
      const grpc::Slice slice(
          memory_.data(), bytes, [](void*) {}, nullptr);
      outgoing_ = grpc::ByteBuffer(&slice, 1);
      is_writing_ = true;
      StartWrite(&outgoing_);
    }
    wait([&]() TUTTI_REQUIRES(mutex_) { return num_answers_ - begin == count; });
  }

 private:
  template <class Condition>
  void wait(const Condition& condition) TUTTI_REQUIRES(mutex_) {
    if (!changed_.wait_for(mutex_, std::chrono::seconds(60), condition)) {
      fail(ErrorCode::kDeadlineExceeded,
           "bare gRPC stream: timed out after 60 s waiting for the server");
    }
  }
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_, outgoing_;
  std::vector<char> memory_;
  Event done_;
  Mutex mutex_;
  CondVar changed_;
  int num_answers_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
};

class BareStream final : public Contender {
 public:
  BareStream() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.SetMaxReceiveMessageSize(-1);
    for (const auto& [name, value] : kArguments) builder.AddChannelArgument(name, value);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    if (!server_)
      fail(ErrorCode::kUnavailable,
           "bare gRPC stream: the server cannot listen on a port of 127.0.0.1");
    grpc::ChannelArguments arguments;
    for (const auto& [name, value] : kArguments) arguments.SetInt(name, value);
    arguments.SetMaxReceiveMessageSize(-1);
    asking_ = std::make_unique<Asking>(grpc::CreateCustomChannel(
        concat("127.0.0.1:", port), grpc::InsecureChannelCredentials(), arguments));
  }
  ~BareStream() override {
    asking_.reset();
    server_->Shutdown();
    server_->Wait();
  }
  std::string name() const override { return "bare grpc"; }
  void exchange(std::size_t bytes, int count, int at_once) override {
    asking_->exchange(bytes, count, at_once);
  }

 private:
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Asking> asking_;
};

}  // namespace

std::unique_ptr<Contender> bare_grpc_stream() { return std::make_unique<BareStream>(); }

}  // namespace tutti::rpc_bench
