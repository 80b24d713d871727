// The service Job on gRPC's threads: streams of members, and calls that may wait.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>

#include "job.grpc.pb.h"
#include "tutti/cluster/control/control_core.h"
#include "tutti/cluster/net/strangers.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Hands what comes to the core, and what the core says to the streams. Threads: any.
class JobService final : public v1::Job::CallbackService {
 public:
  explicit JobService(ControlCore& core);
  ~JobService() override;

  grpc::ServerBidiReactor<v1::MemberReport, v1::JobEvent>* Join(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const v1::LeaveRequest* request, v1::LeaveReply* reply) override;
  grpc::ServerUnaryReactor* ListMembers(grpc::CallbackServerContext* context,
                                        const v1::ListMembersRequest* request,
                                        v1::ListMembersReply* reply) override;
  grpc::ServerUnaryReactor* ReportFailure(grpc::CallbackServerContext* context,
                                          const v1::ReportFailureRequest* request,
                                          v1::ReportFailureReply* reply) override;
  grpc::ServerUnaryReactor* ReportDisconnection(grpc::CallbackServerContext* context,
                                                const v1::ReportDisconnectionRequest* request,
                                                v1::ReportDisconnectionReply* reply) override;
  grpc::ServerUnaryReactor* RequestStop(grpc::CallbackServerContext* context,
                                        const v1::RequestStopRequest* request,
                                        v1::RequestStopReply* reply) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const v1::GetRequest* request,
                                v1::GetReply* reply) override;
  grpc::ServerUnaryReactor* Put(grpc::CallbackServerContext* context, const v1::PutRequest* request,
                                v1::PutReply* reply) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const v1::DeleteRequest* request,
                                   v1::DeleteReply* reply) override;
  grpc::ServerUnaryReactor* CompareAndSet(grpc::CallbackServerContext* context,
                                          const v1::CompareAndSetRequest* request,
                                          v1::CompareAndSetReply* reply) override;

  /// Ends the streams on which nothing was said within the time for it.
  void cancel_late(TimePoint now);
  /// Each stream ends when what it has to send is sent.
  void finish_all();

 private:
  class Stream;
  void note_refusal(const std::string& reason);
  std::unique_ptr<Stream> remove(Stream* stream);

  ControlCore& core_;
  Mutex mutex_;
  std::map<Stream*, std::unique_ptr<Stream>> streams_ TUTTI_GUARDED_BY(mutex_);
  RefusalLog refusals_ TUTTI_GUARDED_BY(mutex_){"control"};
};

}  // namespace tutti::internal
