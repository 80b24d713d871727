// Tests one session on one task: programs as a client sends them, and values that the task keeps.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/task_session.h"

#include "core/hash.h"
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace {
namespace task_session_tests {

using strategy_tests::error_of;
using testing::expect_tensor;
using testing::HangWatchdog;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

/// Fixture that ends a test whose tasks wait indefinitely.
class TaskSession : public ::testing::Test {
  const HangWatchdog watchdog_{"a session", 100s};
};

/// RPC call that stores its reply.
class HeldCall final : public RpcCall {
 public:
  const RpcPeer& peer() const override { return peer_; }
  const Packet& request() const override { return request_; }
  void reply(Packet answer) override {
    answer_ = std::move(answer);
    done_.set();
  }
  void fail(const Error& error) override {
    error_ = error;
    done_.set();
  }
  Packet answer() {
    EXPECT_TRUE(done_.wait_until(deadline_after(Clock::system().now(), 60s)));
    if (error_) throw *error_;
    return answer_;
  }

 private:
  RpcPeer peer_{{"client", 0, ""}, 0, 7, "here"};
  Packet request_;
  Packet answer_;
  std::optional<Error> error_;
  Event done_;
};

using internal::TaskProgram;
using internal::TaskRequest;
using internal::value_address;

const Task kSelf{"worker", 0};

/// Returns a request that runs `program` with these tensors as arguments.
TaskRequest run_of(std::uint64_t number, const TaskProgram& program,
                   const std::vector<Tensor>& arguments = {}) {
  TaskRequest request;
  auto& run = *request.message.mutable_run();
  run.set_number(number);
  run.set_program(program.SerializeAsString());
  run.set_signature(hash_of(run.program()));
  for (const Tensor& each : arguments) request.add_argument(each);
  return request;
}

void run_in(internal::TaskSession& session, const TaskRequest& request) {
  const auto call = std::make_shared<HeldCall>();
  session.run(internal::decode_task_request(internal::encode(request)), call);
  EXPECT_TRUE(call->answer().head.empty());
}

void add_operation(TaskProgram& program, std::initializer_list<internal::ValueNumber> inputs,
                   internal::ValueNumber output) {
  internal::ProgramOperation& add = *program.add_operations();
  add.set_op(static_cast<std::uint32_t>(OpId::kAdd));
  for (const internal::ValueNumber input : inputs) add.add_inputs(input);
  add.add_outputs(output);
  internal::put_attributes({}, add);
  internal::put_specs({{{2}, DType::kFloat32}}, add);
  add.set_where("add at train.cc:41");
}

/// Returns a program that doubles its argument, which has value number 0; the result has number 1.
TaskProgram doubling() {
  TaskProgram program;
  program.add_arguments(0);
  add_operation(program, {0, 0}, 1);
  program.add_kept()->set_value(1);
  return program;
}

TEST_F(TaskSession, KeepsValuesUntilTheyAreReleased) {
  internal::TaskParts parts{kSelf};
  internal::TaskSession session(parts, 3, 10s);
  const auto fetch = [&](std::uint64_t run, internal::ValueNumber value) {
    const auto call = std::make_shared<HeldCall>();
    session.fetch(value_address(kSelf, run, value), call);
    return *internal::decode_nest(call->answer()).tensor();
  };
  run_in(session, run_of(1, doubling(), {Tensor::from<float>({2}, {1.0f, 3.0f})}));
  TaskRequest of_value = run_of(2, doubling());
  *of_value.message.mutable_run()->add_arguments()->mutable_address() = value_address(kSelf, 1, 1);
  run_in(session, of_value);
  expect_tensor(fetch(1, 1), {2}, {2.0, 6.0});
  expect_tensor(fetch(2, 1), {2}, {4.0, 12.0});
  EXPECT_EQ(session.num_held(), 2u);
  EXPECT_ERROR((void)fetch(2, 7), kCancelled, "worker 0: the value was released");
  TaskRequest third = run_of(3, doubling(), {Tensor::ones({2})});
  *third.message.mutable_run()->add_released() = value_address(kSelf, 1, 1);
  run_in(session, third);
  EXPECT_EQ(session.num_held(), 2u);
  EXPECT_ERROR((void)fetch(1, 1), kCancelled, "the value was released");
  EXPECT_ERROR(run_in(session, third), kInvalidArgument,
               "run 3 is out of order; expected a number above");
  EXPECT_ERROR(run_in(session, run_of(4, doubling())), kInvalidArgument,
               "number of arguments: expected 1, got 0");
  TaskRequest unknown = run_of(5, doubling());
  unknown.message.mutable_run()->set_signature("other");
  unknown.message.mutable_run()->clear_program();
  EXPECT_ERROR(run_in(session, unknown), kInvalidArgument, "no program with the signature 'other'");
  const auto unheard = std::make_shared<HeldCall>();
  session.fetch(value_address(kSelf, 9, 0), unheard);
  session.end();
  EXPECT_ERROR((void)unheard->answer(), kCancelled, "worker 0: the session has ended");
}

TEST_F(TaskSession, ValueForRemoteTasksIsDroppedAfterLastFetch) {
  internal::TaskParts parts{kSelf};
  internal::TaskSession session(parts, 3, 10s);
  TaskProgram program = doubling();
  program.mutable_kept(0)->set_num_receivers(2);
  const auto start_fetch = [&] {
    auto call = std::make_shared<HeldCall>();
    session.fetch(value_address(kSelf, 1, 1), call);
    return call;
  };
  const auto early = start_fetch();
  run_in(session, run_of(1, program, {Tensor::from<float>({2}, {1.0f, 3.0f})}));
  EXPECT_EQ(session.num_held(), 1u);
  expect_tensor(*internal::decode_nest(early->answer()).tensor(), {2}, {2.0, 6.0});
  expect_tensor(*internal::decode_nest(start_fetch()->answer()).tensor(), {2}, {2.0, 6.0});
  EXPECT_EQ(session.num_held(), 0u);
  EXPECT_ERROR((void)start_fetch(), kCancelled, "the value was released");
}

TEST_F(TaskSession, ValueReleasedDuringRunIsNotKept) {
  internal::TaskParts parts{kSelf};
  internal::TaskSession session(parts, 3, 10s);
  TaskProgram program = doubling();
  for (internal::ValueNumber value = 2; value < 5000; ++value) {
    add_operation(program, {value - 1, 0}, value);
  }
  const auto slow = std::make_shared<HeldCall>();
  session.run(
      internal::decode_task_request(internal::encode(run_of(1, program, {Tensor::ones({2})}))),
      slow);
  TaskRequest next = run_of(2, doubling(), {Tensor::ones({2})});
  *next.message.mutable_run()->add_released() = value_address(kSelf, 1, 1);
  run_in(session, next);
  (void)slow->answer();
  EXPECT_EQ(session.num_held(), 1u);  // only the value of the second run
}

TEST_F(TaskSession, FailedRunDoesNotKeepValues) {
  internal::TaskParts parts{kSelf};
  internal::TaskSession session(parts, 3, 10s);
  TaskProgram program = doubling();
  program.add_arguments(2);
  add_operation(program, {1, 2}, 3);
  program.add_kept()->set_value(3);
  EXPECT_ERROR(run_in(session, run_of(1, program, {Tensor::ones({2}), Tensor::ones({3})})),
               kInvalidArgument, "worker 0: add at train.cc:41: ", "shapes that broadcast");
  EXPECT_EQ(session.num_held(), 0u);
}

TEST_F(TaskSession, InvalidOperationsAreRejected) {
  internal::TaskParts parts{kSelf};
  internal::TaskSession session(parts, 3, 10s);
  std::uint64_t number = 0;
  const auto refused = [&](const auto& change, const std::string& part) {
    TaskProgram program = doubling();
    program.clear_kept();
    internal::ProgramOperation& operation = *program.mutable_operations(0);
    change(operation);
    const auto error =
        error_of([&] { run_in(session, run_of(++number, program, {Tensor::ones({2})})); });
    EXPECT_THAT(error.message(), HasSubstr(part));
    EXPECT_TRUE(error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kDataLoss)
        << error.message();
  };
  refused([](auto& each) { each.set_op(255); }, "255 is not a known value");
  refused([](auto& each) { each.clear_inputs(); }, "inputs");
  refused([](auto& each) { each.clear_specs(); }, "expected outputs float32 [2]");
  refused([](auto& each) { each.mutable_specs(0)->set_dims(0, 3); }, "expected outputs");
  refused([](auto& each) { each.mutable_specs(0)->set_dtype(99); },
          "the number of a dtype, got 99");
  refused([](auto& each) { each.set_integers(0, 77); }, "got kind 77");
  refused([](auto& each) { each.set_integers(0, 1); }, "a number is missing");
  refused([](auto& each) { each.add_integers(1); }, "more numbers");
  refused([](auto& each) { each.add_outputs(5); }, "1 outputs, got 2");
  refused([](auto& each) { each.set_kind(static_cast<TaskProgram::Kind>(9)); }, "kind 9");
  refused([](auto& each) { each.set_kind(TaskProgram::CREATE); }, "1 inputs, got 2");
  refused(
      [](auto& each) {
        each.set_kind(TaskProgram::CREATE);
        each.clear_inputs(), each.clear_outputs(), each.set_variable("w");
      },
      "initial value of a variable");
}

TEST_F(TaskSession, MalformedRequestsAreRejected) {
  TaskRequest request = run_of(7, doubling(), {Tensor::ones({100})});
  *request.message.mutable_run()->add_arguments()->mutable_address() =
      value_address({"worker", 1}, 4, 2);
  Packet packet = internal::encode(request);
  const TaskRequest same = internal::decode_task_request(packet);
  EXPECT_EQ(same.message.SerializeAsString(), request.message.SerializeAsString());
  expect_tensor(same.tensors.at(0), {100}, std::vector<double>(100, 1.0));
  packet.head.push_back(std::byte{0});
  EXPECT_ERROR((void)internal::decode_task_request(packet), kDataLoss, "expected a message");
  packet.head.resize(packet.head.size() / 2);
  EXPECT_ERROR((void)internal::decode_task_request(packet), kDataLoss, "");
  packet = internal::encode(request);
  packet.payload.push_back(packet.payload.front());
  EXPECT_ERROR((void)internal::decode_task_request(packet), kDataLoss, "bytes more");
}

TEST(TaskProgram, RoundTripsEveryAttribute) {
  const std::vector<Attributes> all = {
      std::monostate{},
      ClipAttributes{-1.5, 2.0},
      CastAttributes{DType::kFloat16},
      AxesAttributes{0x80000001u, true},
      MatMulAttributes{true, false, FusedActivation::kTanh},
      Conv2dAttributes{1, 2, 3, 4, 5, 6, FusedActivation::kSigmoid, 7, 8, 9},
      Pool2dAttributes{1, 2, 3, 4, 5, 6, 7, 8},
      BatchNormAttributes{1e-5},
      LrnAttributes{2, 3.0, 4.0, 5.0},
      TransposeAttributes{{2, 0, 1}},
      SliceAttributes{{5, 0, 7}},
      PadAttributes{{1, 0, 2}, -0.0},
      AxisAttributes{-3},
      OneHotAttributes{2.0, -1.0},
      DropoutAttributes{0.25, {}, nullptr},
      GroupNormAttributes{3, 4, 1e-6},
      CumulativeSumAttributes{1, true, false},
      UpsampleAttributes{3, 5, Interpolation::kBilinear},
      AttentionAttributes{0.125, true, 6}};
  ASSERT_EQ(all.size(), std::variant_size_v<Attributes>);
  for (std::size_t i = 0; i < all.size(); ++i) {
    internal::ProgramOperation operation, again;
    internal::put_attributes(all[i], operation);
    const Attributes same = internal::get_attributes(operation);
    EXPECT_EQ(same.index(), i);
    internal::put_attributes(same, again);
    EXPECT_EQ(again.SerializeAsString(), operation.SerializeAsString());
  }
  internal::ProgramOperation operation;
  internal::put_attributes(all[5], operation);
  EXPECT_EQ(std::get<Conv2dAttributes>(internal::get_attributes(operation)),
            std::get<Conv2dAttributes>(all[5]));
  operation.set_integers(7, 4);  // an invalid activation
  EXPECT_ERROR((void)internal::get_attributes(operation), kDataLoss, "4 is out of range");
}

TEST(TaskProgram, MalformedProgramsAreRejected) {
  const auto refused = [](const auto& change, const std::string& part) {
    TaskProgram program = doubling();
    change(program);
    EXPECT_ERROR((void)internal::parse_program(program.SerializeAsString()), kDataLoss, part);
  };
  refused([](auto& each) { each.mutable_operations(0)->add_inputs(5); }, "value 5 is used before");
  refused([](auto& each) { each.mutable_operations(0)->set_outputs(0, 0); }, "0 is defined twice");
  refused([](auto& each) { each.add_arguments(0); }, "value 0 is defined twice");
  refused([](auto& each) { each.add_kept()->set_value(9); }, "value 9 is used before");
  const std::string bytes = doubling().SerializeAsString();
  EXPECT_ERROR((void)internal::parse_program(bytes.substr(0, 7)), kDataLoss, "");
}

}  // namespace task_session_tests
}  // namespace
}  // namespace tutti
