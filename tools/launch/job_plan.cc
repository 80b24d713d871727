// Addresses, environments and cores of a job's processes; shell commands that start them.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/job_plan.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <span>

#include "core/file.h"
#include "core/names.h"
#include "core/network_address.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/random.h"

namespace tutti::launch {

using internal::FileDescriptor;

namespace {

const std::string* find(const Variables& variables, const std::string& name) {
  const auto at = std::ranges::find_if(variables, [&](const auto& v) { return v.first == name; });
  return at == variables.end() ? nullptr : &at->second;
}

/// Returns the index of a rank's host. Consecutive ranks are divided equally among the hosts.
std::size_t host_of(std::size_t rank, std::size_t num_processes, std::size_t num_hosts) {
  return rank * num_hosts / num_processes;
}

std::vector<std::string> choose_addresses(const JobRequest& request) {
  const auto num_processes = static_cast<std::size_t>(request.counts.total());
  std::vector<std::string> addresses;
  if (request.hosts.empty()) {
    for (const int port : free_ports(request.counts.total())) {
      addresses.push_back(concat("127.0.0.1:", port));
    }
    return addresses;
  }
  std::vector<int> next_port(request.hosts.size(), request.first_port);
  for (std::size_t rank = 0; rank < num_processes; ++rank) {
    const std::size_t host = host_of(rank, num_processes, request.hosts.size());
    addresses.push_back(internal::join_address(request.hosts[host], next_port[host]++));
  }
  return addresses;
}

Variables environment_of(const JobRequest& request, const std::vector<Task>& tasks,
                         std::size_t rank, const std::string& job_id) {
  Variables variables{{"TF_CONFIG", tf_config(tasks, tasks[rank])},
                      {"TUTTI_JOB_ID", job_id},
                      {"TUTTI_RESTART", "0"}};
  // The number of cores on other machines is unknown, so no thread count is set for them.
  if (request.hosts.empty() && !std::getenv("OMP_NUM_THREADS")) {
    const std::size_t share = std::max<std::size_t>(1, request.cores.size() / tasks.size());
    variables.emplace_back("OMP_NUM_THREADS", std::to_string(share));
  }
  for (const auto& chosen : request.environment) {
    std::erase_if(variables, [&](const auto& each) { return each.first == chosen.first; });
    variables.push_back(chosen);
  }
  return variables;
}

std::string command_of(const JobPlan& plan, const ProcessPlan& process,
                       const std::string& secret_file) {
  std::string line;
  for (const auto& [name, value] : process.environment) {
    line += concat(name, "=", shell_quote(value), " ");
  }
  if (!find(process.environment, "TUTTI_JOB_SECRET_FILE")) {
    line += concat("TUTTI_JOB_SECRET_FILE=", secret_file, " ");
  }
  if (!process.cores.empty()) line += concat("taskset -c ", join(process.cores, ","), " ");
  std::vector<std::string> words;
  for (const std::string& word : plan.arguments) words.push_back(shell_quote(word));
  return line + join(words, " ");
}

std::string folder_for_private_files() {
  for (const char* const name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const char* const value = std::getenv(name);
    if (value && *value == '/' && ::access(value, W_OK | X_OK) == 0) return value;
  }
  return "/tmp";
}

// --- Free ports on this machine, found by briefly binding all of them at once.

constexpr int kFirstPort = 10'000;
constexpr int kTriesPerPort = 1000;

/// Returns the first port of the kernel's ephemeral range; tutti uses only lower ports.
int end_of_own_ports() {
  // The file does not exist in some containers.
  const std::string range = read_file_if_any("/proc/sys/net/ipv4/ip_local_port_range");
  const int first = std::atoi(range.c_str());
  return first > kFirstPort + 1000 ? first : 32'768;
}

/// Reserves a port until this process ends, so that no other job on this machine takes it before a
/// task of this job binds it. Uses an abstract socket, which leaves no file and, like a port,
/// belongs to the network namespace.
bool reserve_port(int port) {
  FileDescriptor holder(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!holder.is_open()) fail(ErrorCode::kResourceExhausted, "run: cannot create a socket");
  const std::string name = concat("tutti-port-", port);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::ranges::copy(name, address.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(holder.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return false;
  holder.release();  // kept until the process ends
  return true;
}

/// Returns a socket that is bound to the port, or a closed descriptor if the port is taken.
FileDescriptor bind_port(int port) {
  FileDescriptor holder(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!holder.is_open()) fail(ErrorCode::kResourceExhausted, "run: cannot create a socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Binds without SO_REUSEADDR, so that a port with connections in TIME_WAIT counts as taken.
  const bool is_free =
      ::bind(holder.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  return is_free ? std::move(holder) : FileDescriptor();
}

}  // namespace

std::vector<int> free_ports(int count) {
  const int end = end_of_own_ports();
  std::uint64_t seed = 0;
  internal::fill_random(std::as_writable_bytes(std::span(&seed, 1)));
  const RandomStream random({.seed = seed});
  std::vector<FileDescriptor> holders;  // keeps the ports bound until all have been found
  std::vector<int> ports;
  for (int tries = 0; static_cast<int>(ports.size()) < count; ++tries) {
    if (tries > kTriesPerPort * count) {
      fail(ErrorCode::kResourceExhausted, "run: expected ", count, " free ports between ",
           kFirstPort, " and ", end, ", found ", ports.size(), "; try fewer processes");
    }
    const int port =
        kFirstPort + static_cast<int>(random.below(static_cast<std::uint64_t>(tries),
                                                   static_cast<std::uint64_t>(end - kFirstPort)));
    holders.push_back(bind_port(port));
    if (holders.back().is_open() && reserve_port(port)) ports.push_back(port);
  }
  return ports;
}

std::string Task::name() const { return concat(type, "-", index); }

std::vector<Task> make_tasks(const TaskCounts& counts, const std::vector<std::string>& addresses) {
  TUTTI_CHECK(static_cast<int>(addresses.size()) == counts.total(), "make_tasks: expected ",
              counts.total(), " addresses, got ", addresses.size());
  std::vector<Task> tasks;
  const auto add = [&](const char* type, int count) {
    for (int index = 0; index < count; ++index) {
      tasks.push_back({type, index, addresses[tasks.size()]});
    }
  };
  add("chief", counts.chiefs);
  add("worker", counts.workers);
  add("ps", counts.ps);
  return tasks;
}

std::string tf_config(const std::vector<Task>& tasks, const Task& self) {
  Json cluster = Json::object();
  for (const Task& task : tasks) {
    const Json* const earlier = cluster.find(task.type);
    Json addresses = earlier ? *earlier : Json::array();
    addresses.push_back(task.address);
    cluster.set(task.type, std::move(addresses));
  }
  return Json(Json::Object{{"cluster", std::move(cluster)},
                           {"task", Json::Object{{"type", self.type}, {"index", self.index}}}})
      .dump();
}

void JobPlan::add_variable(const std::string& name, const std::string& value) {
  for (ProcessPlan& process : processes) {
    if (!find(process.environment, name)) process.environment.emplace_back(name, value);
  }
}

const std::string* JobPlan::variable(const std::string& name) const {
  return find(processes.front().environment, name);
}

std::string make_job_id() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S-", &parts);
  return text.data() + internal::new_unique_name().substr(0, 6);
}

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(static_cast<int>(core));
  }
  return cores;
}

std::vector<int> cores_of_rank(const std::vector<int>& cores, int rank, int num_processes) {
  const auto count = static_cast<std::ptrdiff_t>(cores.size());
  if (num_processes > count) return {cores[static_cast<std::size_t>(rank % count)]};
  return {cores.begin() + rank * count / num_processes,
          cores.begin() + (rank + 1) * count / num_processes};
}

JobPlan make_plan(const JobRequest& request) {
  JobPlan plan;
  plan.job_id = make_job_id();
  plan.arguments = request.arguments;
  const std::vector<Task> tasks = make_tasks(request.counts, choose_addresses(request));
  for (std::size_t rank = 0; rank < tasks.size(); ++rank) {
    ProcessPlan process;
    process.task = tasks[rank];
    process.environment = environment_of(request, tasks, rank, plan.job_id);
    if (!request.hosts.empty()) {
      process.host = request.hosts[host_of(rank, tasks.size(), request.hosts.size())];
    }
    if (request.bind_cores) {
      process.cores =
          cores_of_rank(request.cores, static_cast<int>(rank), static_cast<int>(tasks.size()));
    }
    plan.processes.push_back(std::move(process));
  }
  return plan;
}

std::string shell_quote(const std::string& text) {
  if (!text.empty() && internal::has_only_alphanumerics_and("_-+=./:,@%", text)) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string dry_run_text(const JobPlan& plan) {
  const std::string secret_file = concat("~/.tutti/", plan.job_id, ".secret");
  std::string text = concat("# Job ", plan.job_id, ", processes: ", plan.processes.size(),
                            ". The next command creates the job's secret; ",
                            "copy the file to other machines with mode 0600.\n",
                            "(umask 077; mkdir -p ~/.tutti; head -c 48 /dev/urandom | base64 > ",
                            secret_file, ")\n");
  for (const ProcessPlan& process : plan.processes) {
    text += concat("# ", process.task.name(), process.host.empty() ? "" : " on ", process.host,
                   "\n", command_of(plan, process, secret_file), "\n");
  }
  return text;
}

SecretFolder::SecretFolder() : folder_(folder_for_private_files() + "/tutti-XXXXXX") {
  if (!::mkdtemp(folder_.data())) {  // mkdtemp() creates folders with mode 0700
    fail(ErrorCode::kUnavailable, "run: cannot create the folder ", folder_,
         " for the job's secret: ", ::strerror(errno),
         "; use TMPDIR=FOLDER with a folder that you can write to");
  }
  const std::string text = internal::new_unique_name() + internal::new_unique_name() + "\n";
  FileDescriptor secret(::open(file().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (secret.is_open() && internal::write_all(secret.get(), std::as_bytes(std::span(text)))) return;
  const int reason = errno;
  ::unlink(file().c_str());
  ::rmdir(folder_.c_str());
  fail(ErrorCode::kUnavailable, "run: cannot write ", file(), ": ", ::strerror(reason));
}

SecretFolder::~SecretFolder() {
  ::unlink(file().c_str());
  ::rmdir(folder_.c_str());
}

}  // namespace tutti::launch
