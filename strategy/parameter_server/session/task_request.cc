// Requests and answers of sessions, as messages and as nests.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/task_request.h"

#include <tuple>
#include <utility>

#include "session.pb.h"
#include "strategy/parameter_server/protocol/message.h"
#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"

namespace tutti::internal {
namespace {

using WelcomeTuple = std::tuple<std::string, int, std::string, std::vector<std::string>>;
using Message = v1::SessionRequest;

}  // namespace

Nest to_answer(const TaskWelcome& welcome) {
  return to_nest(
      WelcomeTuple(welcome.task.type, welcome.task.index, welcome.cluster, welcome.devices));
}

TaskWelcome to_welcome(const Nest& answer) {
  auto [job, index, cluster, devices] = from_nest<WelcomeTuple>(answer, "description of a task");
  return {{std::move(job), index}, std::move(cluster), std::move(devices)};
}

namespace {

void put_address(const ValueAddress& address, Message::ValueAddress& out) {
  out.set_job(address.task.type), out.set_index(address.task.index);
  out.set_run(address.run), out.set_value(address.value);
}

ValueAddress get_address(const Message::ValueAddress& in) {
  return {{in.job(), in.index()}, in.run(), in.value()};
}

void put_run(const RunRequest& run, Message::Run& out, PayloadWriter& payload) {
  out.set_number(run.number);
  out.set_signature(run.signature), out.set_program(run.program);
  for (const auto& argument : run.arguments) {
    Message::Argument& put = *out.add_arguments();
    if (const Tensor* const tensor = std::get_if<Tensor>(&argument)) {
      put_tensor(*tensor, payload, *put.mutable_tensor());
    } else {
      put_address(std::get<ValueAddress>(argument), *put.mutable_address());
    }
  }
  for (const ValueAddress& each : run.released) put_address(each, *out.add_released());
  out.mutable_ended_runs()->Add(run.ended_runs.begin(), run.ended_runs.end());
}

RunRequest get_run(const Message::Run& in, PayloadReader& payload) {
  RunRequest run{in.number(), in.signature(), in.program()};
  for (const Message::Argument& each : in.arguments()) {
    if (each.has_tensor()) {
      run.arguments.emplace_back(get_tensor(each.tensor(), payload));
    } else if (each.has_address()) {
      run.arguments.emplace_back(get_address(each.address()));
    } else {
      fail(ErrorCode::kDataLoss, "request of a session: expected a value or where it is");
    }
  }
  for (const Message::ValueAddress& each : in.released()) run.released.push_back(get_address(each));
  run.ended_runs.assign(in.ended_runs().begin(), in.ended_runs().end());
  return run;
}

}  // namespace

Packet encode(const TaskRequest& request) {
  const auto put_request = [&](Message& out, PayloadWriter& payload) {
    out.set_session(request.session);
    const auto put = [&]<class Request>(const Request& each) {
      if constexpr (std::is_same_v<Request, OpenRequest>) {
        out.set_open(each.milliseconds);
      } else if constexpr (std::is_same_v<Request, RunRequest>) {
        put_run(each, *out.mutable_run(), payload);
      } else if constexpr (std::is_same_v<Request, FetchRequest>) {
        put_address(each.address, *out.mutable_fetch());
      } else if constexpr (std::is_same_v<Request, TransfersRequest>) {
        out.set_transfers(true);
      } else {
        out.set_stay(each.milliseconds);
      }
    };
    std::visit(put, request.request);
  };
  return packet_of<Message>(put_request);
}

TaskRequest decode_task_request(const Packet& packet) {
  const auto get_request = [](const Message& in, PayloadReader& payload) {
    TaskRequest request{in.session()};
    if (in.has_open()) {
      request.request = OpenRequest{in.open()};
    } else if (in.has_run()) {
      request.request = get_run(in.run(), payload);
    } else if (in.has_fetch()) {
      request.request = FetchRequest{get_address(in.fetch())};
    } else if (in.has_transfers()) {
      request.request = TransfersRequest{};
    } else if (in.has_stay()) {
      request.request = StayRequest{in.stay()};
    } else {
      fail(ErrorCode::kDataLoss, "request of a session: expected one of open, run, fetch, ",
           "transfers and stay, got none");
    }
    return request;
  };
  return read_packet<Message>(packet, get_request);
}

}  // namespace tutti::internal
