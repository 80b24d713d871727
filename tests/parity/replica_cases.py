# Training under tf.distribute.MirroredStrategy with 3 logical CPU devices, which divide no batch evenly, in float64:
# batch normalisation of each replica and of all, Adam with amsgrad.
# SPDX-License-Identifier: Apache-2.0
import numpy

REPLICAS, STEPS, EXAMPLES, GLOBAL_BATCH = 3, 9, 27, 10  # the last batch of an epoch has 7 rows


def data():
    random = numpy.random.RandomState(17)
    return random.uniform(-1.0, 1.0, (EXAMPLES, 6, 5, 2)), random.randint(0, 3, EXAMPLES).astype("int64")


def train(tf, keras, synchronized):
    images, labels = data()
    # The default reduction cannot serve groups of different sizes in one process.
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)],
                                              cross_device_ops=tf.distribute.ReductionToOneDevice())
    batches = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices((images, labels)).batch(GLOBAL_BATCH))
    layers = keras.layers
    with strategy.scope():
        model = keras.Sequential([
            keras.Input((6, 5, 2)), layers.Conv2D(3, 3, padding="same", activation="relu", use_bias=False),
            layers.BatchNormalization(momentum=7 / 8, synchronized=synchronized), layers.MaxPooling2D(2),
            layers.Flatten(), layers.Dense(3)])
        optimizer = keras.optimizers.Adam(1 / 64, beta_1=7 / 8, beta_2=31 / 32, epsilon=1 / 1024, amsgrad=True)
        optimizer.build(model.trainable_variables)
    random = numpy.random.RandomState(18)
    for weight in model.trainable_variables:
        weight.assign(random.uniform(-0.5, 0.5, weight.shape))
    initial = [weight.numpy() for weight in model.weights]

    def step(images, labels, rows):
        with tf.GradientTape() as tape:
            each = keras.losses.sparse_categorical_crossentropy(labels, model(images, training=True), from_logits=True)
            loss = tf.nn.compute_average_loss(each, global_batch_size=rows)
        gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss, tf.shape(labels)[0]

    @tf.function
    def distributed_step(batch, rows):
        losses, counts = strategy.run(step, args=(batch[0], batch[1], rows))
        return (strategy.reduce("SUM", losses, axis=None),
                tf.stack(strategy.experimental_local_results(counts)))

    losses, counts = [], []
    while len(losses) < STEPS:
        for batch, first in zip(batches, range(0, EXAMPLES, GLOBAL_BATCH)):
            loss, rows_of_replicas = distributed_step(batch, tf.constant(min(GLOBAL_BATCH, EXAMPLES - first)))
            losses.append(loss.numpy())
            counts.append(rows_of_replicas.numpy())
    # Each replica's own: moving averages of batch normalisation differ.
    final = [numpy.stack([part.numpy() for part in strategy.experimental_local_results(weight.value)])
             for weight in model.weights]
    return initial, numpy.array(losses), numpy.array(counts), final


def record(tf, keras):
    images, labels = data()
    tensors = {"images": images, "labels": labels}
    for name, synchronized in {"each_replica": False, "synchronized": True}.items():
        initial, tensors[f"{name}/losses"], tensors[f"{name}/rows"], final = train(tf, keras, synchronized)
        for i, (before, after) in enumerate(zip(initial, final)):
            tensors[f"{name}/initial{i}"] = before
            tensors[f"{name}/final{i}"] = after
    return tensors
