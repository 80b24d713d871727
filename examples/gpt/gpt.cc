// Trains a GPT with any strategy, on the bytes or byte pairs of a text, and generates text.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "examples/common/fit_recorder.h"
#include "examples/gpt/pretrained.h"
#include "tutti/cluster/resolver_registry.h"
#include "tutti/model/generate.h"
#include "tutti/strategy/mesh/mesh_strategy.h"
#include "tutti/tensor/device_memory.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

struct GptOptions : ExampleOptions {
  GptConfig config;
  std::string text = "";
  std::string load = "";
  std::string save = "";
  std::string prompt = "\n";
  std::int64_t tokens = 200;
  double learning_rate = 2e-3;
  double temperature = 0.8;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  double min_accuracy = 0.0;
  std::int64_t max_memory = 0;
  bool explain = false;

  void add_to(Flags& flags) {
    flags.remove({"--data-dir"});
    flags.add("--text", text,
              "file to train on; without it, --load is needed, and text is only generated");
    flags.add("--vocabulary", config.vocabulary,
              "number of tokens, learned from the text; 256: bytes");
    config.add_to(flags);
    flags.add("--learning-rate", learning_rate, "learning rate of AdamW");
    flags.add("--load", load, "folder with config.json, model.safetensors and tokenizer.json");
    flags.add("--save", save, "folder for the files that --load reads");
    flags.add("--prompt", prompt, "text that the model continues");
    flags.add("--tokens", tokens, "number of tokens to generate");
    flags.add("--temperature", temperature,
              "randomness of generated tokens; 0: always the likeliest token");
    flags.add("--top-k", top_k, "draws from the K likeliest tokens; 0: from all");
    flags.add("--top-p", top_p, "draws from the likeliest tokens with this total probability");
    flags.add("--min-accuracy", min_accuracy, "fails below this accuracy of predicted tokens");
    flags.add("--explain", explain, "prints the cost of a step per device of the mesh, and exits");
    flags.add("--max-memory", max_memory, "memory of each device, in MiB; 0: no limit");
  }
};

/// Text as rows of `context` tokens: nine tenths for training, the remaining tenth for testing.
struct Corpus {
  Corpus(const std::vector<std::int64_t>& tokens, std::int64_t context)
      : all(static_cast<std::int64_t>(tokens.size())), first_tested(all * 9 / 10) {
    const Tensor stream = Tensor::from(Shape{all}, tokens);
    const PackOptions labels{.next_as_labels = true};
    train = Dataset::from_tensors({slice(stream, {0}, {first_tested})}).pack(context, labels);
    test = Dataset::from_tensors({slice(stream, {first_tested}, {-1})}).pack(context, labels);
    num_rows = (first_tested - 1) / context;
    if (all - first_tested > context) return;
    fail(ErrorCode::kInvalidArgument, "gpt: --text: expected more than ", context,
         " tokens in the last tenth, which is for testing, got ", all - first_tested,
         "; use a longer text or a smaller --context");
  }
  std::int64_t all, first_tested, num_rows = 0;
  Dataset train = Dataset::range(0), test = Dataset::range(0);
};

int train(Gpt& model, const GptOptions& options, const Corpus& corpus, Strategy& strategy) {
  model.compile({.optimizer = AdamWOptions{.learning_rate = options.learning_rate,
                                           .beta_2 = 0.99,
                                           .weight_decay = 0.1,
                                           .clipping = {.global_clipnorm = 1.0}},
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy"}});
  if (strategy.is_chief()) std::printf("%s", model.summary().c_str());
  TrainingRecord record = make_record(options);
  // Counts only the rows of full batches.
  const std::int64_t rows = corpus.num_rows / options.batch_size * options.batch_size;
  FitOptions fit = fit_options(options, record, rows);
  fit.verbose = Verbosity::kLinePerEpoch;
  const CheckpointedFit checkpoints(options, model, fit);
  model.fit(corpus.train.shuffle(10'000, static_cast<std::uint64_t>(options.seed))
                .batch(options.batch_size, {.drop_remainder = true}),
            fit);
  checkpoints.save(record.steps());
  const Logs result = model.evaluate(corpus.test.batch(options.batch_size));
  write_metrics(options, record, result.at("accuracy"), strategy, model.variables(),
                model.optimizer().state_variables());
  if (strategy.is_chief())
    std::printf("speed      %.0f tokens/s\n",
                record.examples_per_second() * static_cast<double>(model.config().context));
  return report(strategy, result, record, options.min_accuracy);
}

std::string written(const Gpt& model, const BytePairTokenizer& tokenizer,
                    const GptOptions& options) {
  const std::vector<std::int64_t> prompt = tokenizer.encode(options.prompt);
  GenerateOptions generation{
      .max_new_tokens = options.tokens,
      .sampling = {.temperature = options.temperature, .top_p = options.top_p},
      .seed = static_cast<std::uint64_t>(options.seed),
      .window = model.config().context};
  if (options.top_k > 0) generation.sampling.top_k = options.top_k;
  const Tensor tokens = generate(
      model, Tensor::from(Shape{1, static_cast<std::int64_t>(prompt.size())}, prompt), generation);
  return tokenizer.decode(tokens.host_span<std::int64_t>());
}

/// Prints the cost of a training step on each device of the mesh, without allocating the model's
/// memory.
int explain(Strategy& strategy, const GptOptions& options) {
  auto* const mesh = dynamic_cast<MeshStrategy*>(&strategy);
  if (!mesh) fail(ErrorCode::kInvalidArgument, "gpt: expected --mesh with --explain, got none");
  const TensorSpec tokens{{options.batch_size, options.config.context}, DType::kInt64};
  const MeshReport report = mesh->explain(
      [&]() -> MeshStep {
        const auto model = std::make_shared<Gpt>(options.config);
        const auto optimizer = std::make_shared<AdamW>(model->trainable_variables());
        return [=](const Batch& batch) {
          GradientTape tape;
          const Tensor logits = (*model)(batch.features(), {.training = true});
          optimizer->minimize(
              tape, reduce_mean(losses::sparse_categorical_crossentropy(batch.labels(), logits)));
        };
      },
      {tokens, tokens});
  std::printf("%s", report.to_string().c_str());
  return 0;
}

int run(GptOptions options) {
  if (options.explain) return explain(*make_strategy(options), options);
  if (options.text.empty() && options.load.empty())
    fail(ErrorCode::kInvalidArgument, "gpt: expected --text to train on, or --load, got neither");
  std::unique_ptr<Strategy> strategy = make_strategy(options);
  if (options.max_memory > 0) {
    for (const Device& device : strategy->worker_devices())
      set_memory_limit(device, static_cast<std::size_t>(options.max_memory) << 20);
  }
  if (const auto code = strategy->serve()) return *code;  // tasks that do not train return here
  print_setup(options, *strategy);
  std::string text, learnt;
  if (!options.text.empty()) text = text_of(options.text);
  if (options.load.empty()) learnt = train_tokenizer(text, options.config.vocabulary);
  const BytePairTokenizer tokenizer = options.load.empty() ? parse_tokenizer(learnt, options.text)
                                                           : read_tokenizer_of(options.load);
  options.config.vocabulary = tokenizer.vocabulary_size();

  auto scope = strategy->scope();
  Gpt model(options.load.empty() ? options.config : read_config(options.load));
  if (!options.load.empty()) load_pretrained(model, options.load);
  int code = 0;
  if (!text.empty()) {
    const Corpus corpus(tokenizer.encode(text), model.config().context);
    if (strategy->is_chief()) {
      std::printf("text       %zu bytes, %lld tokens of %lld\n", text.size(),
                  static_cast<long long>(corpus.all),
                  static_cast<long long>(tokenizer.vocabulary_size()));
    }
    code = train(model, options, corpus, *strategy);
  }
  if (!options.save.empty()) {
    const SafetensorsFile weights = pretrained_file(model);  // collective, so all workers call it
    if (learnt.empty()) learnt = text_of(options.load + "/tokenizer.json");
    if (strategy->is_chief()) save_pretrained(model.config(), weights, learnt, options.save);
  }
  const std::string result = written(model, tokenizer, options);
  if (strategy->is_chief()) std::printf("----\n%s\n----\n", result.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  GptOptions options;
  const int code = parse_options(argc, argv, "Trains a GPT on a text, and generates text", options,
                                 [&](Flags& flags) { options.add_to(flags); });
  return code >= 0 ? code : run_example([&] { return run(options); });
}
