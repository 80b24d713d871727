// What a running fit goes on from, beyond the model.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/fit_loop.h"

#include <utility>

namespace tutti::internal {

Json FitProgress::to_json() const {
  Json json = Json::object();
  json.set("epoch", point.epoch).set("batches", point.batches).set("steps", point.steps);
  json.set("is_ended", is_ended);
  json.set("history", history.to_json()).set("logs", logs.to_json());
  return json;
}

FitProgress FitProgress::from_json(const Json& json) {
  FitProgress progress;
  progress.point = {json.at("epoch").as_int(), json.at("batches").as_int(),
                    json.at("steps").as_int()};
  progress.is_ended = json.at("is_ended").as_bool();
  progress.history = History::from_json(json.at("history"));
  progress.logs = Logs::from_json(json.at("logs"));
  return progress;
}

namespace {

/// Calls `visit` with each variable of a metric and the prefix of its tensors: metrics of different
/// outputs may have equal names, so it is their place that counts.
template <class Visitor>
void for_each_sum(CompiledModel& compiled, const Visitor& visit) {
  const auto metrics = compiled.all_metrics();
  for (std::size_t m = 0; m < metrics.size(); ++m) {
    const std::vector<Variable>& variables = metrics[m].second->variables();
    for (std::size_t v = 0; v < variables.size(); ++v) {
      visit(variables[v], concat(m, '/', v, '/'));
    }
  }
}

}  // namespace

TensorProvider tensors_of_metrics(CompiledModel& compiled) {
  TensorProvider provider;
  provider.save = [&compiled] {
    std::vector<NamedTensor> all;
    for_each_sum(compiled, [&](const Variable& variable, const std::string& prefix) {
      for (NamedTensor& tensor : variable.storage().save()) {
        all.push_back({prefix + tensor.name, std::move(tensor.value)});
      }
    });
    return all;
  };
  provider.restore = [&compiled](const TensorLookup& lookup) {
    for_each_sum(compiled, [&](const Variable& variable, const std::string& prefix) {
      variable.storage().restore([&](const std::string& name) { return lookup(prefix + name); });
    });
  };
  return provider;
}

StateProvider state_of_callbacks(const std::vector<AnyCallback>& callbacks) {
  StateProvider provider;
  provider.save = [&callbacks] {
    Json states = Json::array();
    for (const AnyCallback& callback : callbacks) states.push_back(callback->save_state());
    return states;
  };
  provider.restore = [&callbacks](const Json& json) {
    const Json::Array& states = json.as_array();
    if (states.size() != callbacks.size()) {
      fail(ErrorCode::kInvalidArgument, "Model::fit: expected the state of ", callbacks.size(),
           " callbacks, got that of ", states.size(),
           "; try the callbacks of the run that saved it, in their order");
    }
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (!states[i].is_null()) callbacks[i]->restore_state(states[i]);
    }
  };
  return provider;
}

TensorProvider tensors_of_callbacks(const std::vector<AnyCallback>& callbacks) {
  TensorProvider provider;
  provider.save = [&callbacks] {
    std::vector<NamedTensor> all;
    for (std::size_t c = 0; c < callbacks.size(); ++c) {
      const std::vector<Tensor> tensors = callbacks[c]->save_tensors();
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        all.push_back({concat(c, '/', i), tensors[i]});
      }
    }
    return all;
  };
  provider.restore = [&callbacks](const TensorLookup& lookup) {
    for (std::size_t c = 0; c < callbacks.size(); ++c) {
      std::vector<Tensor> tensors;
      for (Tensor next; (next = lookup(concat(c, '/', tensors.size()))).defined();) {
        tensors.push_back(next);
      }
      callbacks[c]->restore_tensors(std::move(tensors));
    }
  };
  return provider;
}

}  // namespace tutti::internal
