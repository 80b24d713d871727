#!/usr/bin/env python3
# Inspects a running job with a client in another language, which has only gRPC and the .proto
# files.
# SPDX-License-Identifier: Apache-2.0
"""Usage: any_client_test.py TUTTI CONTROL_MEMBER VARIABLE_SERVER PROTO_FOLDER

Finds the services of a running job by reflection, calls the health service, observes the job, lists its members, reads a value of its store,
and tries to change a value, which observers may not do. Then it creates a variable on a parameter server, adds to it and reads
it, runs a step on a worker, and runs a session's program on the server.
"""
import importlib
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile

try:
    import grpc
except ImportError:  # the system's Python may have gRPC
    if os.path.realpath(sys.executable) == os.path.realpath("/usr/bin/python3"):
        raise
    os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import Job  # noqa: E402

LIMIT = 60  # seconds
# The parts of grpc.reflection.v1alpha and grpc.health.v1 that this test uses.
REFLECTION = """syntax = "proto3";
package grpc.reflection.v1alpha;
message ServerReflectionRequest { oneof message_request { string file_containing_symbol = 4; string list_services = 7; } }
message ServiceResponse { string name = 1; }
message ListServiceResponse { repeated ServiceResponse service = 1; }
message FileDescriptorResponse { repeated bytes file_descriptor_proto = 1; }
message ServerReflectionResponse {
  oneof message_response { FileDescriptorResponse file_descriptor_response = 4; ListServiceResponse list_services_response = 6; } }
"""
HEALTH = """syntax = "proto3";
package grpc.health.v1;
message HealthCheckRequest { string service = 1; }
message HealthCheckResponse { enum ServingStatus { UNKNOWN = 0; SERVING = 1; NOT_SERVING = 2; } ServingStatus status = 1; }
"""
MEMBER = """index=${TF_CONFIG##*'"index":'}; index=${index%%[!0-9 ]*}
echo "control=$TUTTI_CONTROL"; tail -f /dev/null | "$0" "$TUTTI_CONTROL" worker $index "" 30 30"""


def load(folder, proto_folder, name):
    subprocess.run(["protoc", f"--python_out={folder}", f"-I{proto_folder}", f"{name}.proto"], check=True)
    sys.path.insert(0, folder)
    return importlib.import_module(f"{name}_pb2")


def path_of(target):
    """Returns the UNIX-domain socket that serves a loopback target (grpc://127.0.0.1:4711); see docs/security.md."""
    host, port = re.fullmatch(r"grpc://([\d.]+):(\d+)", target).groups()
    network = os.readlink("/proc/self/ns/net")[len("net:["):-1]
    return f"unix:/tmp/tutti-{os.geteuid()}/{network}/{host}_{port}"


def method(channel, kind, service, name, request, reply):
    return getattr(channel, kind)(f"/{service}/{name}", request_serializer=request.SerializeToString,
                                  response_deserializer=reply.FromString)


def check(name, got, expected):
    if got != expected:
        sys.exit(f"FAILED: {name}: expected {expected!r}, got {got!r}")
    print(f"  {name}: {got}")


def services_of(channel, folder):
    for name, text in (("reflection", REFLECTION), ("health", HEALTH)):
        with open(os.path.join(folder, f"{name}.proto"), "w", encoding="utf-8") as file:
            file.write(text)
    reflection, health = load(folder, folder, "reflection"), load(folder, folder, "health")
    info = method(channel, "stream_stream", "grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo",
                  reflection.ServerReflectionRequest, reflection.ServerReflectionResponse)
    listed = next(info(iter([reflection.ServerReflectionRequest(list_services="")]), timeout=LIMIT))
    services = sorted(each.name for each in listed.list_services_response.service)
    health_of = method(channel, "unary_unary", "grpc.health.v1.Health", "Check", health.HealthCheckRequest,
                       health.HealthCheckResponse)
    check("health", health_of(health.HealthCheckRequest(), timeout=LIMIT).status, health.HealthCheckResponse.SERVING)
    return [each for each in services if each.startswith("tutti.")]


def look_around(channel, folder, proto_folder):
    check("services", services_of(channel, folder), ["tutti.v1.Job"])
    job = load(folder, proto_folder, "job")

    def call(name, request, reply):
        return method(channel, "unary_unary", "tutti.v1.Job", name, type(request), reply)(request, timeout=LIMIT)

    members = call("ListMembers", job.ListMembersRequest(until_all_are_here=True), job.ListMembersReply).members
    check("members", [f"{each.job} {each.index} {each.is_here}" for each in members], ["worker 0 True", "worker 1 True"])
    join = method(channel, "stream_stream", "tutti.v1.Job", "Join", job.MemberReport, job.JobEvent)
    events = join(iter([job.MemberReport(join=job.JoinRequest(observes=True))]), timeout=LIMIT)
    check("welcome", next(events).joined.member, 0)
    seen = sorted(verdict.message.split(" (")[0] for verdict in next(events).history.verdicts)
    check("members in the history", seen, ["worker 0", "worker 1"])
    check("a missing key has a value", call("Get", job.GetRequest(key="k"), job.GetReply).HasField("value"), False)
    try:
        call("Put", job.PutRequest(key="k", value=b"v"), job.PutReply)
        sys.exit("FAILED: an observer changed a value")
    except grpc.RpcError as error:
        check("a change by an observer", error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        check("the refusal has the tutti-error mark", ("tutti-error", "1") in tuple(tuple(each) for each in error.trailing_metadata()), True)


def reading(ps, shard):
    columns = ps.ShardOperations(kinds=bytes([1, 0]), shards=[shard], versions=[0], at_least_steps=[0])
    return ps.Operation(shards=columns)


def floats_of_last(stream, message, field, calls):
    """Makes calls, each given as a request and the elements of its tensor. Returns the two elements of the last reply's tensor."""
    requests = []
    for request, values in calls:
        tensors = struct.pack(f"<{len(values)}f", *values)
        tensors += bytes(-len(tensors) % 64)
        requests.append(message(call=len(requests) + 1, tensor_bytes=len(tensors), tensors=tensors, **{field: request}))
    replies = list(stream(iter(requests), timeout=LIMIT))  # a half-closed stream still receives its replies
    check("errors", [each.error.message for each in replies], [""] * len(calls))
    return struct.unpack("<2f", next(each for each in replies if each.call == len(calls)).tensors[:8])


def run_step(channel, folder, proto_folder):
    load(folder, proto_folder, "nest")
    worker = load(folder, proto_folder, "worker")
    nest = worker.nest__pb2.Nest
    arguments = nest(list=nest.List(elements=[nest(tensor={"dtype": 0, "dims": [2]})]))
    calls = [(worker.WorkerRequest(hello=worker.WorkerRequest.Hello(steps=b"double(Tensor) -> Tensor\n")), []),
             (worker.WorkerRequest(run=worker.WorkerRequest.RunTask(step=b"double", arguments=arguments)), [1.5, -2.0])]
    run = method(channel, "stream_stream", "tutti.v1.Worker", "Run", worker.RunRequest, worker.RunReply)
    check("the result of a step", floats_of_last(run, worker.RunRequest, "request", calls), (3.0, -4.0))


def use_session(channel, folder, proto_folder, add):
    session = load(folder, proto_folder, "session")
    program, request = session.TaskProgram, session.SessionRequest
    head = {"dtype": 0, "dims": [2]}
    doubled = program(arguments=[0], operations=[
        program.Operation(kind=program.CREATE, variable=b"v", inputs=[0], specs=[head]),
        program.Operation(kind=program.READ, variable=b"v", outputs=[1]),
        program.Operation(op=add, integers=[0], inputs=[1, 1], outputs=[2], specs=[head]),
    ], kept=[program.Kept(value=2)])
    run = request.Run(number=1, signature=b"doubled", program=doubled.SerializeToString(),
                      arguments=[request.Argument(tensor=head)])
    fetch = request.ValueAddress(job=b"local", run=1, value=2)
    calls = [(request(session=9, open=10000), []), (request(session=9, run=run), [0.5, 4.0]),
             (request(session=9, fetch=fetch), [])]
    operate = method(channel, "stream_stream", "tutti.v1.Session", "Operate", session.OperateRequest, session.OperateReply)
    check("a value of a session", floats_of_last(operate, session.OperateRequest, "request", calls), (1.0, 8.0))


def use_variable(channel, folder, proto_folder, shard):
    check("services", services_of(channel, folder),
          ["tutti.v1.ParameterServer", "tutti.v1.Session", "tutti.v1.Worker"])
    for name in ("job", "calls"):
        load(folder, proto_folder, name)
    ps = load(folder, proto_folder, "parameter_server")
    head, heads = {"dtype": 0, "dims": [2]}, {"kinds": bytes([0, 1]), "dims": [2]}
    spec = ps.ShardSpec(variable=b"w", whole_dims=[2], num_shards=1, num_rows=2)
    batches = [
        (ps.OperationBatch(stream_kind=1, stream_id=7, operations=[
            ps.Operation(create=ps.CreateShard(spec=spec, value=head))]), [1.5, -2.0]),
        (ps.OperationBatch(stream_kind=1, stream_id=7, operations=[
            ps.Operation(shards=ps.ShardOperations(kinds=bytes([3, 1]), shards=[shard], tensors=heads))]),
         [0.25, 4.0]),
        (ps.OperationBatch(stream_kind=1, stream_id=7, first_ordinal=1, operations=[
            reading(ps, shard)]), []),
    ]
    apply = method(channel, "stream_stream", "tutti.v1.ParameterServer", "Apply", ps.ApplyRequest, ps.ApplyReply)
    check("the variable", floats_of_last(apply, ps.ApplyRequest, "batch", batches), (1.75, 2.0))
    wrong = ps.OperationBatch(stream_kind=1, stream_id=8, operations=[
        reading(ps, shard + 1)])
    refused = next(apply(iter([ps.ApplyRequest(call=1, batch=wrong)]), timeout=LIMIT))
    check("a missing shard", refused.error.code, grpc.StatusCode.NOT_FOUND.value[0])


def test_variables_steps_and_sessions(program, folder, proto_folder):
    with subprocess.Popen([program], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            pattern = r"server=(\S+) worker=(\S+) shard=(\d+) add=(\d+)\n"
            target, worker, shard, add = re.fullmatch(pattern, server.stdout.readline()).groups()
            with grpc.insecure_channel(path_of(target)) as channel:
                use_variable(channel, folder, proto_folder, int(shard))
            with grpc.insecure_channel(path_of(worker)) as channel:
                run_step(channel, folder, proto_folder)
            with grpc.insecure_channel(path_of(target)) as channel:
                use_session(channel, folder, proto_folder, int(add))
        finally:
            server.stdin.close()


def main():
    tutti, member, variable_server, proto_folder = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        job = Job([tutti, "run", "-n", "2", "--", "sh", "-c", MEMBER, member])
        target = job.wait_for_line(r"control=(\S+)").match[1]
        with grpc.insecure_channel(path_of(target)) as channel:
            look_around(channel, folder, proto_folder)
        job.send(signal.SIGTERM)
        test_variables_steps_and_sessions(variable_server, folder, proto_folder)
    print("all as expected")


if __name__ == "__main__":
    main()
