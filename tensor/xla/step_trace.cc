// Records steps as XLA programs, in which tensors are values and operations are lines of text.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/step_trace.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/hash.h"
#include "tensor/op_checks.h"
#include "tensor/xla/emitters.h"
#include "tutti/core/logging.h"
#include "tutti/core/trace.h"

namespace tutti::internal {

// Copies values to the host, or reports why they were not computed.

namespace {

std::size_t num_bytes_of(const TensorSpec& spec) {
  return size_of(spec.dtype) * static_cast<std::size_t>(spec.shape.num_elements());
}

}  // namespace

std::string StepValue::maker() const { return who(what_, where_); }

std::shared_ptr<PjrtBuffer> StepValue::buffer() const {
  MutexLock lock(mutex_);
  return buffer_;
}

void StepValue::set_buffer(std::shared_ptr<PjrtBuffer> buffer) {
  MutexLock lock(mutex_);
  buffer_ = std::move(buffer);
}

void StepValue::give_up() {
  MutexLock lock(mutex_);
  is_lost_ = !buffer_;
}

void StepValue::materialize(std::byte* to) {
  MutexLock lock(mutex_);
  if (is_materialized_) return;
  if (buffer_) {
    buffer_->to_host(to, num_bytes_of(spec_));
    is_materialized_ = true;
    return;
  }
  if (is_lost_) {
    fail(ErrorCode::kFailedPrecondition, "the value of ", maker(),
         " was not computed, because its step failed; restore the last checkpoint");
  }
  fail(ErrorCode::kFailedPrecondition, "the value of ", maker(),
       " was read on the host within the step, before XLA computed it; return the tensor and "
       "read it after run()");
}

namespace {

std::uint64_t next_trace_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

/// Values with fewer elements are concatenated and combined across replicas by one operation.
constexpr std::int64_t kSmallValue = 64 * 1024;

std::shared_ptr<StepValue> step_value(const Tensor& tensor) {
  return std::dynamic_pointer_cast<StepValue>(lazy_value(tensor));
}

}  // namespace

std::string Trace::Operation::maker() const { return who(what, where); }

Trace::Trace(int replica, int num_replicas, int xla_device)
    : number_(next_trace_number()),
      replica_(replica),
      num_replicas_(num_replicas),
      xla_device_(xla_device),
      device_{DeviceType::kCpu, xla_device} {}

Trace::~Trace() {
  for (const Made& each : made_) {
    if (const auto value = each.value.lock()) value->give_up();
  }
}

void Trace::begin(std::string_view what, const SourceLocation& where) {
  operations_.push_back({what, callers_line(where), text().size()});
}

bool Trace::holds(const Tensor& value) const { return step_value(value) != nullptr; }

/// Records a variable whose value is still on the host, as in the first step. The whole variable
/// becomes an argument of this step, as in later steps.
void Trace::note_variable(const Tensor& whole) {
  if (step_value(whole)) return;
  variables_.insert_or_assign(whole.buffer().get(), TensorSpec{whole.shape(), whole.dtype()});
}

Hlo Trace::argument(Argument argument) {
  arguments_.push_back(std::move(argument));
  const TensorSpec& spec = arguments_.back().spec;
  return {&text_, -static_cast<int>(arguments_.size()), spec.shape, hlo_type(spec.dtype)};
}

Hlo Trace::host_argument(const Tensor& tensor) {
  const std::byte* const data = tensor.bytes().data();  // materializes it, or throws
  const BufferRef& buffer = tensor.buffer();
  const auto variable = variables_.find(buffer.get());
  if (variable != variables_.end() && variable->second.dtype == tensor.dtype() &&
      num_bytes_of(variable->second) == buffer->size()) {
    return view(host_argument(buffer, buffer->data(), variable->second), tensor);
  }
  return host_argument(buffer, data, {tensor.shape(), tensor.dtype()});
}

Hlo Trace::host_argument(const BufferRef& buffer, const std::byte* data, const TensorSpec& spec) {
  const auto key = std::tuple(data, spec.shape.to_string(), spec.dtype);
  const auto known = host_arguments_.find(key);
  if (known != host_arguments_.end()) return known->second;
  return host_arguments_.emplace(key, argument({buffer, data, nullptr, spec})).first->second;
}

Hlo Trace::device_argument(const Tensor& tensor, const std::shared_ptr<StepValue>& value) {
  const auto known = device_arguments_.find(value.get());
  if (known != device_arguments_.end()) return view(known->second, tensor);
  const Hlo made = argument({tensor.buffer(), nullptr, value, value->spec()});
  device_arguments_.emplace(value.get(), made);
  return view(made, tensor);
}

/// Returns a range of rows of a buffer, or the reshaped buffer. Such views are not recorded as
/// operations.
Hlo Trace::view(const Hlo& whole, const Tensor& tensor) {
  const std::int64_t count = tensor.num_elements();
  if (count == whole.shape.num_elements()) return text_.reshape(whole, tensor.shape());
  const auto first = static_cast<std::int64_t>(offset_in_buffer(tensor) / size_of(tensor.dtype()));
  const Hlo flat = text_.reshape(whole, {whole.shape.num_elements()});
  return text_.reshape(text_.slice(flat, std::array{first}, {count}), tensor.shape());
}

Hlo Trace::value_of(const Tensor& tensor) {
  const std::shared_ptr<StepValue> value = step_value(tensor);
  if (!value) return host_argument(tensor);
  if (value->trace() == number_) return view(made_[value->index()].hlo, tensor);
  if (value->buffer() && value->device() == xla_device_) return device_argument(tensor, value);
  return host_argument(tensor);  // materializes it, or throws
}

Hlo Trace::widened_value(const Tensor& tensor) {
  const Hlo value = value_of(tensor);
  return is_half(tensor.dtype()) ? text_.convert(value, HloType::kF32) : value;
}

Tensor Trace::result(Hlo value, const TensorSpec& spec) {
  const Operation& operation = operations_.back();
  if (is_half(spec.dtype)) value = text_.convert(value, hlo_type(spec.dtype));
  TUTTI_CHECK(value.shape == spec.shape && value.type == hlo_type(spec.dtype), operation.maker(),
              ": expected ", tensor_type(spec.shape, hlo_type(spec.dtype)), ", got ",
              tensor_type(value.shape, value.type));
  const auto made = std::make_shared<StepValue>(number_, made_.size(), xla_device_, spec,
                                                operation.what, operation.where);
  made_.push_back({value, made});
  return lazy_tensor(spec, device_, made);
}

std::vector<Tensor> Trace::run(const OpCall& call) {
  const HloEmitter emit = find_emitter(call.op);
  if (!emit) {
    fail(ErrorCode::kUnimplemented, who(call.op, call.where),
         ": cannot be part of a step that XLA compiles; call the operation "
         "outside run(), or use another strategy");
  }
  begin(to_string(call.op), call.where);
  std::vector<Hlo> inputs;
  for (const Tensor& input : call.inputs) inputs.push_back(widened_value(input));
  if (call.op == OpId::kDropout) {
    const auto words = words_of_key(call.attributes_as<DropoutAttributes>().key);
    inputs.push_back(host_argument(
        Tensor::from<std::int64_t>({4}, std::span<const std::int64_t>(words), device_)));
  }
  const std::vector<Hlo> values = emit(text_, call, inputs);
  TUTTI_CHECK(values.size() == call.outputs.size(), to_string(call.op), ": expected ",
              call.outputs.size(), " outputs, got ", values.size());
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < values.size(); ++i)
    outputs.push_back(result(values[i], call.outputs[i]));
  return outputs;
}

/// Returns the rule's constants as an argument of the program. Within a step, rules with the same
/// constants share one argument.
Hlo Trace::constants_of(const DeviceRule& rule, DType dtype) {
  for (const auto& [numbers, type, known] : constants_) {
    if (numbers == rule.constants && type == dtype) return known;
  }
  constexpr auto kCount = static_cast<std::int64_t>(DeviceRule::kNumConstants);
  const std::vector<float> narrow(rule.constants.begin(), rule.constants.end());
  const Tensor tensor =
      dtype == DType::kFloat64
          ? Tensor::from<double>({kCount}, std::span<const double>(rule.constants), device_)
          : Tensor::from<float>({kCount}, narrow, device_);
  return std::get<2>(constants_.emplace_back(rule.constants, dtype, host_argument(tensor)));
}

std::vector<Tensor> Trace::update(const DeviceRule& rule, std::span<const Tensor> values,
                                  const Tensor& gradient) {
  begin("update", SourceLocation());
  const DType dtype = values.front().dtype();
  std::vector<Hlo> before;
  for (const Tensor& value : values) before.push_back(value_of(value));
  const std::vector<Hlo> after =
      emit_update(rule, before, value_of(gradient), constants_of(rule, dtype));
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < after.size(); ++i)
    results.push_back(result(after[i], {values[i].shape(), values[i].dtype()}));
  return results;
}

Hlo Trace::combined(ReduceOp op, const Hlo& value) {
  const Hlo all = text_.all_reduce(hlo_name(op), value, num_replicas_);
  return op == ReduceOp::kMean ? all / static_cast<double>(num_replicas_) : all;
}

Tensor Trace::sum_of_one(ReduceOp op, const Tensor& value) {
  return result(combined(op, widened_value(value)), {value.shape(), value.dtype()});
}

std::vector<Tensor> Trace::sums_of_many(ReduceOp op, std::span<const Tensor> values) {
  std::vector<Hlo> parts;
  std::int64_t total = 0;
  for (const Tensor& value : values) {
    parts.push_back(text_.reshape(widened_value(value), {value.num_elements()}));
    total += value.num_elements();
  }
  const Hlo all = combined(op, text_.concatenate(parts, 0));
  std::vector<Tensor> results;
  std::int64_t first = 0;
  for (const Tensor& value : values) {
    const Hlo part = total == value.num_elements()
                         ? all
                         : text_.slice(all, std::array{first}, {value.num_elements()});
    results.push_back(result(text_.reshape(part, value.shape()), {value.shape(), value.dtype()}));
    first += value.num_elements();
  }
  return results;
}

std::vector<Tensor> Trace::all_reduce(ReduceOp op, std::span<const Tensor> values,
                                      const SourceLocation& where) {
  begin("all_reduce", where);
  std::vector<Tensor> results(values.size());
  std::map<DType, std::vector<std::size_t>> small;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (op == ReduceOp::kMean && !is_floating(values[i].dtype())) {
      fail(ErrorCode::kInvalidArgument, operations_.back().maker(),
           ": expected a floating-point type for MEAN, got ", values[i].dtype(), "; call cast()");
    }
    if (num_replicas_ == 1) {
      results[i] = values[i].alias();
    } else if (values[i].num_elements() < kSmallValue) {
      small[values[i].dtype()].push_back(i);
    } else {
      results[i] = sum_of_one(op, values[i]);
    }
  }
  for (const auto& [dtype, places] : small) {
    std::vector<Tensor> together;
    for (const std::size_t i : places) together.push_back(values[i]);
    const std::vector<Tensor> sums = sums_of_many(op, together);
    for (std::size_t i = 0; i < places.size(); ++i) results[places[i]] = sums[i];
  }
  return results;
}

Tensor Trace::all_gather(const Tensor& value, int axis, const SourceLocation& where) {
  begin("all_gather", where);
  if (num_replicas_ == 1) return value.alias();
  const Hlo all = text_.all_gather(value_of(value), axis, num_replicas_);
  const int placed = value.shape().normalized_axis(axis, "all_gather");
  return result(all, {value.shape().with_dim(placed, value.shape().dim(placed) * num_replicas_),
                      value.dtype()});
}

// Compilation of traces into a program, and conversion of its results to values.

namespace {

/// Compiled programs, one file each, in the folder that TUTTI_XLA_CACHE names. A plugin accepts a
/// program that another plugin version compiled, but then computes wrong values, so each file
/// records the plugin's hash, the processor, the options and the text. Thread-safe, and safe across
/// processes.
class ProgramFiles {
 public:
  explicit ProgramFiles(const PjrtClient& client) : client_(client) {}

  /// Returns the saved program; nullptr if there is no folder or file. Ignores, with a warning,
  /// damaged files and files that contain other programs.
  std::unique_ptr<PjrtExecutable> find(std::string_view text,
                                       const std::vector<int>& devices) const;
  /// Writes the program to the folder, if there is one. Logs failures as warnings.
  void keep(const PjrtExecutable& program, std::string_view text,
            const std::vector<int>& devices) const;

 private:
  const PjrtClient& client_;
};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// Returns a hash of the processor's features, for which machine code is compiled.
std::string processor() {
  std::istringstream lines(read_file_if_any("/proc/cpuinfo"));
  std::string text;
  for (std::string line; std::getline(lines, line) && !line.empty();) {
    for (const char* key : {"model name", "flags", "CPU implementer", "CPU part", "Features"}) {
      if (line.starts_with(key)) text += line;
    }
  }
  return hash_of(text);
}

/// Returns a one-line key; only equal programs have equal keys.
std::string key_of(const PjrtClient& client, std::string_view text,
                   const std::vector<int>& devices) {
  static const std::string this_processor = processor();
  return concat("tutti program 1, plugin ", client.plugin().file_hash(), " ", client.platform(),
                ", processor ", this_processor, ", options ",
                hash_of(client.compile_options(devices)), " ", hash_of(variable("XLA_FLAGS")),
                ", text ", hash_of(text), "\n");
}

std::string folder() { return variable("TUTTI_XLA_CACHE"); }

std::string path_of(const std::string& key) {
  return (std::filesystem::path(folder()) / (hash_of(key) + ".xla")).string();
}

constexpr std::size_t kHashSize = 32;

void warn(const std::string& path, std::string_view what, std::string_view reason) {
  log_warning(concat("XLA: program file ", path, " ", what, ": ", reason,
                     "; the step is compiled in this process; remove the file, or set "
                     "TUTTI_XLA_CACHE to another folder"));
}

std::unique_ptr<PjrtExecutable> ProgramFiles::find(std::string_view text,
                                                   const std::vector<int>& devices) const {
  if (folder().empty()) return nullptr;
  const std::string key = key_of(client_, text, devices), path = path_of(key);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return nullptr;
  try {
    const std::string file = read_file(path);
    const std::string_view all = file;
    if (!all.starts_with(key)) {
      warn(path, "is not used", "it is not a program of this plugin, processor and text");
      return nullptr;
    }
    const std::string_view rest = all.substr(key.size());
    const std::string_view bytes = rest.substr(std::min(kHashSize, rest.size()));
    if (rest.substr(0, kHashSize) != hash_of(bytes)) {
      warn(path, "is not used", "it is damaged (wrong checksum)");
      return nullptr;
    }
    return client_.load(bytes, devices.size());
  } catch (const Error& failure) {
    warn(path, "is not used", failure.message());
    return nullptr;
  }
}

void ProgramFiles::keep(const PjrtExecutable& program, std::string_view text,
                        const std::vector<int>& devices) const {
  if (folder().empty()) return;
  const std::string key = key_of(client_, text, devices), path = path_of(key);
  try {
    const std::string bytes = program.serialize();
    write_file_atomically(path, concat(key, hash_of(bytes), bytes));
  } catch (const Error& failure) {
    warn(path, "was not written", failure.message());
  }
}

using Traces = std::span<const std::unique_ptr<Trace>>;

/// Returns the program text of operation `index`.
std::string_view lines_of(const Trace& trace, std::size_t index) {
  const std::size_t begin = trace.operations()[index].begin;
  const std::size_t end = index + 1 < trace.operations().size()
                              ? trace.operations()[index + 1].begin
                              : trace.text().size();
  return std::string_view(trace.text()).substr(begin, end - begin);
}

std::string operation_at(const Trace& trace, std::size_t index) {
  if (index >= trace.operations().size()) return "no further operation";
  const std::string_view lines = lines_of(trace, index);
  const std::size_t type = lines.rfind(" : ");
  return concat(trace.operations()[index].maker(), " (",
                type == lines.npos ? std::string_view()
                                   : lines.substr(type + 3, lines.rfind('\n') - type - 3),
                ")");
}

[[noreturn]] void fail_different(const Trace& first, const Trace& other) {
  std::size_t index = 0;
  while (index < first.operations().size() && index < other.operations().size() &&
         lines_of(first, index) == lines_of(other, index)) {
    ++index;
  }
  fail(ErrorCode::kInvalidArgument, "step compiled by XLA: expected the same operations on the ",
       "same shapes in all replicas, got ", operation_at(first, index), " in replica ",
       first.replica(), " and ", operation_at(other, index), " in replica ", other.replica(),
       "; use batches that divide equally among the replicas: batch(n, drop_remainder)");
}

bool same_arguments(const Trace& a, const Trace& b) {
  return std::ranges::equal(a.arguments(), b.arguments(), [](const auto& x, const auto& y) {
    return x.spec.shape == y.spec.shape && x.spec.dtype == y.spec.dtype;
  });
}

void check_same(Traces traces) {
  for (const auto& trace : traces) {
    const Trace& first = *traces.front();
    if (trace->text() != first.text() || !same_arguments(first, *trace))
      fail_different(first, *trace);
  }
}

/// Returns the indices, in made(), of the values that any replica still holds.
std::vector<std::size_t> live_values(Traces traces) {
  std::vector<std::size_t> live;
  for (std::size_t i = 0; i < traces.front()->made().size(); ++i) {
    const bool any = std::ranges::any_of(
        traces, [i](const auto& trace) { return !trace->made()[i].value.expired(); });
    if (any) live.push_back(i);
  }
  return live;
}

std::string type_of(const TensorSpec& spec) {
  return tensor_type(spec.shape, hlo_type(spec.dtype));
}

/// Returns the program that every replica runs.
std::string program_of(const Trace& trace, const std::vector<std::size_t>& live,
                       const std::vector<bool>& donated) {
  std::string inputs, names, types;
  for (std::size_t i = 0; i < trace.arguments().size(); ++i) {
    inputs += concat(i > 0 ? ", " : "", "%a", i, ": ", type_of(trace.arguments()[i].spec),
                     donated[i] ? " {jax.buffer_donor = true}" : "");
  }
  for (const std::size_t i : live) {
    const Hlo& value = trace.made()[i].hlo;
    names += (names.empty() ? "" : ", ") + value.name();
    types += (types.empty() ? "" : ", ") + tensor_type(value.shape, value.type);
  }
  return concat("module @step {\n  func.func public @main(", inputs, ") -> (", types, ") {\n",
                trace.text(), "    return ", names, " : ", types, "\n  }\n}\n");
}

/// Writes a file per program to the folder that TUTTI_XLA_DUMP names, for debugging.
void dump(const std::string& text, std::size_t number) {
  const char* const folder = std::getenv("TUTTI_XLA_DUMP");
  if (!folder || !*folder) return;
  const auto path = std::filesystem::path(folder) / concat("step_", number, ".mlir");
  write_file_atomically(path.string(), text);
  log_info(concat("XLA: program ", number, " was written to ", path.string()));
}

}  // namespace

/// Returns, for each argument, true if only the traces and the uploads still hold its buffer.
std::vector<bool> StepPrograms::find_donated(Traces traces) const {
  std::unordered_map<const Buffer*, int> own;
  for (const auto& trace : traces) {
    for (const auto& argument : trace->arguments()) ++own[argument.buffer.get()];
  }
  for (const auto& [key, upload] : uploads_) ++own[upload.buffer.get()];
  std::vector<bool> donated;
  for (std::size_t i = 0; i < traces.front()->arguments().size(); ++i) {
    donated.push_back(std::ranges::all_of(traces, [&](const auto& trace) {
      const BufferRef& buffer = trace->arguments()[i].buffer;
      return buffer.num_references() == own[buffer.get()];
    }));
  }
  return donated;
}

const PjrtExecutable& StepPrograms::find_or_compile(std::string text) {
  const auto found = programs_.find(text);
  if (found != programs_.end()) return *found->second;
  const TraceSpan span("compile", "compute");
  dump(text, programs_.size());
  const ProgramFiles files(PjrtClient::get());
  std::unique_ptr<PjrtExecutable> program = files.find(text, devices_);
  if (!program) {
    program = PjrtClient::get().compile(text, devices_);
    ++num_compiled_;
    files.keep(*program, text, devices_);
  }
  return *programs_.emplace(std::move(text), std::move(program)).first->second;
}

std::vector<PjrtExecutable::Buffers> StepPrograms::put_arguments(Traces traces,
                                                                 const std::vector<bool>& donated) {
  Uploads uploads;
  std::vector<PjrtExecutable::Buffers> buffers(traces.size());
  for (std::size_t r = 0; r < traces.size(); ++r) {
    const int device = traces[r]->xla_device();
    for (std::size_t i = 0; i < donated.size(); ++i) {
      const Trace::Argument& argument = traces[r]->arguments()[i];
      if (argument.value) {
        buffers[r].push_back(argument.value->buffer());
        buffers[r].back()->check(argument.spec.shape, argument.spec.dtype,
                                 "argument of an XLA step");
        continue;
      }
      const auto key = std::pair(argument.data, device);
      const auto known = uploads_.find(key);
      const bool is_there = known != uploads_.end() &&
                            known->second.spec.shape == argument.spec.shape &&
                            known->second.spec.dtype == argument.spec.dtype;
      buffers[r].push_back(is_there && !donated[i]
                               ? known->second.copy
                               : PjrtClient::get().upload(argument.data, argument.spec.shape,
                                                          argument.spec.dtype, device));
      if (!donated[i]) uploads[key] = {argument.buffer, argument.spec, buffers[r].back()};
    }
  }
  uploads_ = std::move(uploads);
  return buffers;
}

void StepPrograms::run(Traces traces) {
  check_same(traces);
  const std::vector<std::size_t> live = live_values(traces);
  if (live.empty()) return;
  const std::vector<bool> donated = find_donated(traces);
  last_text_ = program_of(*traces.front(), live, donated);
  const PjrtExecutable& program = find_or_compile(last_text_);
  const TraceSpan span("run", "compute");
  const auto results = program.run(put_arguments(traces, donated));
  for (std::size_t r = 0; r < traces.size(); ++r) {
    TUTTI_CHECK(results[r].size() == live.size(), "XLA step: expected ", live.size(),
                " results, got ", results[r].size());
    for (std::size_t i = 0; i < live.size(); ++i) {
      const auto value = traces[r]->made()[live[i]].value.lock();
      if (!value) continue;
      results[r][i]->check(value->spec().shape, value->spec().dtype, "result of an XLA step");
      value->set_buffer(results[r][i]);
    }
  }
}

}  // namespace tutti::internal
